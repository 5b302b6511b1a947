package program

import (
	"fmt"
	"sync/atomic"

	"github.com/bigmoe/bigmoe/plugins/compute-cpu/internal/arena"
	"github.com/bigmoe/bigmoe/plugins/compute-cpu/internal/kernel"
	"github.com/bigmoe/bigmoe/plugins/compute-cpu/internal/pool"
	"github.com/bigmoe/bigmoe/sdk/compute"
	"github.com/bigmoe/bigmoe/sdk/dtype"
	"github.com/bigmoe/bigmoe/sdk/fault"
)

// fetch tells the engine which experts a layer needs. It runs as soon as they are known, so that reads go on while
// steps between it and the experts compute.
type fetch struct {
	e *experts
}

func (s fetch) run(m *Machine) (err error) {
	e := s.e
	if err := m.ctx.Err(); err != nil {
		return err
	}
	n := m.rows(e.head) * e.k
	ids, weights := e.ids.i32[m.first(e.ids)*e.k:][:n], e.weights.f32[m.first(e.weights)*e.k:][:n]
	if err := e.sort(ids, e.count); err != nil {
		return fmt.Errorf("layer %d: %w", e.layer, err)
	}
	e.todo = n
	m.wave, err = m.host.Route(e.bank, e.k, ids, weights)
	return err
}

// experts runs the picked experts of one layer (specs/qwen3moe.md R6, R7; biases: specs/gpt-oss.md R4 to R7). With e the
// expert ids[k]:
//
//	z = W_down,e . glu(W_gate,e . x + b_gate,e, W_up,e . x + b_up,e) + b_down,e
//	y = sum over k of w[k] * scale[e] * z
//
// A pick is one (token, k). Picks are sorted by expert, so that an expert multiplies all of its tokens at once, and the
// result of every pick is kept until all have come: the sum runs in routing order, whatever came first.
type experts struct {
	head  bool
	bank  int
	layer uint32
	count int // experts of the bank
	k     int
	f     int // hidden width

	glu                        gluing
	gateBias, upBias, downBias *weight // nil: none
	scale                      *weight

	gate, up, down  part
	gateUp          uint32 // parts to wait for before the hidden rows
	all             uint32 // every part
	roundings       []*rounding
	x, gateX, upX   ref
	hidden, hiddenX ref // one row per pick: F32, and rounded for down
	act             kernel.Act
	y               ref // one row per pick
	ids, weights    ref
	out             ref

	*sorted
	pending []compute.Slot
	ready   []compute.Slot
	todo    int // picks that no wave has brought yet
}

// part is one matrix of the experts.
type part struct {
	i         int // which part of the bank
	t         dtype.Type
	n, rows   int
	rowBytes  int
	offset    uint64 // of its first row from the part's first byte
	chunkRows int
	chunks    int
}

// sorted holds the picks of the layer in progress by expert. All layers share it.
type sorted struct {
	mostPicks   int
	mostExperts int

	place []int32 // pick -> row of hidden and y
	picks []int32 // row of hidden and y -> pick
	start []int32 // expert -> its first row, and at the end the number of rows

	widened []widened // by place in ready: each has at least one pick
}

func (s *sorted) bytes() int { return 4 * (2*s.mostPicks + s.mostExperts + 1) }

func (s *sorted) bind(mem []byte) {
	all := arena.Cast[int32](mem, s.bytes()/4)
	s.place, s.picks, s.start = all[:s.mostPicks], all[s.mostPicks:][:s.mostPicks], all[2*s.mostPicks:]
	s.widened = make([]widened, s.mostPicks)
}

// sort sorts picks of experts below count.
func (s *sorted) sort(ids []int32, count int) error {
	start := s.start[:count+1]
	clear(start)
	for _, id := range ids {
		if id < 0 || int(id) >= count {
			return fault.Bugf("expert %d of %d picked", id, count)
		}
		start[id]++
	}
	var end int32
	for i, n := range start {
		end += n
		start[i] = end
	}
	for pick := len(ids) - 1; pick >= 0; pick-- { // backwards: picks of one expert keep their order
		id := ids[pick]
		start[id]--
		s.place[pick], s.picks[start[id]] = start[id], int32(pick)
	}
	return nil
}

func (e *experts) run(m *Machine) error {
	for _, r := range e.roundings {
		if err := r.run(m); err != nil {
			return err
		}
	}
	for {
		if err := e.runWave(m); err != nil {
			return err
		}
		if !m.wave.More {
			break
		}
		if err := m.ctx.Err(); err != nil {
			return err
		}
		var err error
		if m.wave, err = m.host.Next(); err != nil {
			return err
		}
	}
	if e.todo != 0 {
		return fault.Bugf("layer %d: the waves left out experts of %d picks", e.layer, e.todo)
	}
	m.parallel((*reducing)(e), m.rows(e.head))
	return nil
}

// runWave computes what has landed, and waits for one expert when nothing has.
func (e *experts) runWave(m *Machine) error {
	e.pending = append(e.pending[:0], m.wave.Slots...)
	for i := range e.pending {
		if err := e.checkSlot(m, &e.pending[i]); err != nil {
			return err
		}
		e.todo -= e.rowsOf(e.pending[i].Expert)
	}
	if e.todo < 0 {
		return fault.Bugf("layer %d: an expert came twice", e.layer)
	}
	for len(e.pending) > 0 {
		e.ready = e.ready[:0]
		waiting := e.pending[:0]
		for i := range e.pending {
			if m.region.Landed(&e.pending[i], e.all) {
				e.ready = append(e.ready, e.pending[i])
			} else {
				waiting = append(waiting, e.pending[i])
			}
		}
		e.pending = waiting
		landed := len(e.ready) > 0
		if !landed {
			e.ready = append(e.ready, e.pending[0])
			e.pending = e.pending[:copy(e.pending, e.pending[1:])]
			if err := e.wait(m, e.gateUp); err != nil {
				return err
			}
		}
		for i := range e.ready {
			e.widened[i].left.Store(int32(e.gate.chunks))
			e.widened[i].Close()
		}
		if landed {
			m.parallel((*computing)(e), len(e.ready)*(e.gate.chunks+e.down.chunks))
			continue
		}
		m.parallel((*widening)(e), e.gate.chunks)
		if err := e.wait(m, e.all); err != nil {
			return err
		}
		m.parallel((*narrowing)(e), e.down.chunks)
	}
	return nil
}

// computing is all of the work on the experts that have landed: first the chunks of widening, then those of narrowing.
type computing experts

func (e *computing) chunk(m *Machine, worker, chunk int) {
	wide := len(e.ready) * e.gate.chunks
	if chunk < wide {
		(*widening)(e).chunk(m, worker, chunk)
		return
	}
	chunk -= wide
	e.widened[chunk/e.down.chunks].Wait()
	(*narrowing)(e).chunk(m, worker, chunk)
}

// widened opens when the hidden rows of one expert are complete.
type widened struct {
	pool.Gate
	left atomic.Int32 // chunks that have not run
}

func (e *experts) wait(m *Machine, parts uint32) error {
	if err := m.region.Wait(&e.ready[0], parts); err != nil {
		return fmt.Errorf("layer %d: %w", e.layer, err)
	}
	return nil
}

// rowsOf is how many picks chose an expert.
func (e *experts) rowsOf(expert int32) int { return int(e.start[expert+1] - e.start[expert]) }

func (e *experts) checkSlot(m *Machine, s *compute.Slot) error {
	if s.Expert < 0 || int(s.Expert) >= e.count || e.rowsOf(s.Expert) == 0 {
		return fault.Bugf("layer %d: expert %d came, which nobody picked", e.layer, s.Expert)
	}
	for _, p := range []*part{&e.gate, &e.up, &e.down} {
		size, have := p.offset+uint64(p.rows*p.rowBytes), uint64(len(m.region.Bytes))
		if at := s.Part[p.i]; at > have || size > have-at {
			return fault.Bugf("layer %d, expert %d: part %d lies outside the region", e.layer, s.Expert, p.i)
		}
	}
	return nil
}

// chunk finds the expert, rows and bytes of a chunk.
func (p *part) chunk(ready []compute.Slot, chunk int) (s *compute.Slot, r0, rows int) {
	s = &ready[chunk/p.chunks]
	r0 = chunk % p.chunks * p.chunkRows
	return s, r0, min(p.chunkRows, p.rows-r0)
}

func (p *part) bytes(m *Machine, s *compute.Slot, r0, rows int) []byte {
	at := s.Part[p.i] + p.offset + uint64(r0*p.rowBytes)
	return m.region.Bytes[at:][:rows*p.rowBytes]
}

// widening computes rows of the hidden layer: act(gate x, up x).
type widening experts

func (e *widening) chunk(m *Machine, worker, chunk int) {
	s, r0, rows := e.gate.chunk(e.ready, chunk)
	gate, up := e.gate.bytes(m, s, r0, rows), e.up.bytes(m, s, r0, rows)
	w := &m.workers[worker]
	first, end := int(e.start[s.Expert]), int(e.start[s.Expert+1])
	for u := first; u < end; u += tile {
		n := min(tile, end-u)
		x, stride := e.gather(m, w, e.gateX, u, n)
		m.set.MatMul(e.gate.t, gate, rows, e.gate.n, x, stride, n, w.gate, rows)
		if e.upX != e.gateX {
			x, stride = e.gather(m, w, e.upX, u, n)
		}
		m.set.MatMul(e.up.t, up, rows, e.up.n, x, stride, n, w.up, rows)
		for i := range n {
			g, t := w.gate[i*rows:][:rows], w.up[i*rows:][:rows]
			addBias(m, g, e.gateBias, int(s.Expert)*e.f+r0)
			addBias(m, t, e.upBias, int(s.Expert)*e.f+r0)
			if e.glu != nil {
				e.glu(g, t, g, t)
			}
			m.set.SwiGLU(e.hidden.f32[(u+i)*e.f+r0:][:rows], g, t)
		}
	}
	e.finish(m, chunk/e.gate.chunks, first, end)
}

// addBias adds the elements of b from at on, if there is a bias.
func addBias(m *Machine, x []float32, b *weight, at int) {
	if b != nil {
		m.set.Add(x, x, b.vec[at:][:len(x)])
	}
}

// gather brings the activation rows of picks u to u+n-1 together. A single one stays where it is.
func (e *widening) gather(m *Machine, w *scratch, x ref, u, n int) (rows []byte, stride int) {
	if n == 1 {
		return m.bytes(x, int(e.picks[u])/e.k)[:x.rowBytes], x.rowBytes
	}
	rows = w.gathers[:n*x.rowBytes]
	for i := range n {
		copy(rows[i*x.rowBytes:][:x.rowBytes], m.bytes(x, int(e.picks[u+i])/e.k))
	}
	return rows, x.rowBytes
}

// finish counts a chunk of ready expert i. The last one rounds the hidden rows, first to end-1, for the down product.
func (e *widening) finish(m *Machine, i, first, end int) {
	if e.widened[i].left.Add(-1) > 0 {
		return
	}
	if e.act != kernel.ActF32 {
		stride := e.act.RowBytes(e.f)
		for u := first; u < end; u++ {
			m.set.Quantize(e.act, e.hiddenX.raw[u*stride:][:stride], e.hidden.f32[u*e.f:][:e.f])
		}
	}
	e.widened[i].Open()
}

// narrowing computes rows of the down product.
type narrowing experts

func (e *narrowing) chunk(m *Machine, _, chunk int) {
	s, r0, rows := e.down.chunk(e.ready, chunk)
	first, end := int(e.start[s.Expert]), int(e.start[s.Expert+1])
	stride := e.act.RowBytes(e.f)
	m.matmul(e.down.t, e.down.bytes(m, s, r0, rows), rows, e.down.n,
		e.hiddenX.raw[first*stride:], stride, end-first, e.y.f32[first*e.down.rows+r0:], e.down.rows)
	for u := first; u < end; u++ {
		addBias(m, e.y.f32[u*e.down.rows+r0:][:rows], e.downBias, int(s.Expert)*e.down.rows+r0)
	}
}

// reducing sums the picks of one token in routing order.
type reducing experts

func (e *reducing) chunk(m *Machine, _, token int) {
	out, w := m.floats(e.out, token), m.floats(e.weights, token)
	clear(out)
	for k := range e.k {
		pick := token*e.k + k
		row, a := int(e.place[pick]), w[k]
		if e.scale != nil {
			a *= e.scale.vec[e.ids.i32[pick]]
		}
		m.set.Axpy(out, a, e.y.f32[row*len(out):][:len(out)])
	}
}
