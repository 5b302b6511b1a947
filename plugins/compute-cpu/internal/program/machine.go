package program

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/bigmoe/bigmoe/plugins/compute-cpu/internal/arena"
	"github.com/bigmoe/bigmoe/plugins/compute-cpu/internal/kernel"
	"github.com/bigmoe/bigmoe/plugins/compute-cpu/internal/pool"
	"github.com/bigmoe/bigmoe/sdk/compute"
	"github.com/bigmoe/bigmoe/sdk/dtype"
	"github.com/bigmoe/bigmoe/sdk/fault"
)

// Machine runs a loaded program. It holds the states of one sequence.
type Machine struct {
	*Program
	set     *kernel.Set
	region  *compute.Region
	pool    *pool.Pool
	scratch *arena.Arena
	states  *arena.Arena
	workers []scratch

	length  int  // positions in the states
	written int  // positions that have been in them since they were empty
	torn    bool // an evaluation stopped half way through fixed states

	// The evaluation in progress.
	ctx  context.Context
	host compute.Host

	predictor compute.Predictor // nil when guesses are not wanted
	scorer    compute.Scorer    // nil when nobody wants to see scores
	batch     *compute.Batch
	tokens    int // of the batch
	wanted    int // rows of logits
	skip      int // tokens before the first wanted one
	wave      compute.Wave
	phase     phase
	failed    atomic.Bool // some chunk met a value it cannot go on with
}

// Eval runs one batch. See [compute.Sequence]. A failed Eval leaves the positions before it as they were, unless the model
// has fixed states, which must then be reset.
func (m *Machine) Eval(ctx context.Context, b *compute.Batch, host compute.Host) error {
	if err := m.check(b); err != nil {
		return err
	}
	m.ctx, m.host, m.batch = ctx, host, b
	m.predictor = m.predictorFor(host, b)
	m.scorer, _ = host.(compute.Scorer)
	defer func() {
		m.ctx, m.host, m.batch, m.wave, m.predictor, m.scorer, m.logits.f32 = nil, nil, nil, compute.Wave{}, nil, nil, nil
	}()
	m.tokens, m.wanted = len(b.Tokens), 1
	if b.All {
		m.wanted = m.tokens
	}
	m.skip = m.tokens - m.wanted
	m.logits.f32 = b.Logits
	m.torn = len(m.fixed) > 0
	m.written = max(m.written, b.Position+m.tokens)
	for _, s := range m.steps {
		if err := s.run(m); err != nil {
			return err
		}
	}
	m.length, m.torn = b.Position+m.tokens, false
	return nil
}

func (m *Machine) check(b *compute.Batch) error {
	n, rows := len(b.Tokens), 1
	if b.All {
		rows = n
	}
	switch {
	case n == 0 || n > int(m.options.Batch):
		return fault.Bugf("batch of %d tokens, the sequence was loaded for 1 to %d", n, m.options.Batch)
	case m.torn:
		return m.tornError()
	case b.Position != m.length:
		return fault.Bugf("batch at position %d, the sequence has %d", b.Position, m.length)
	case b.Position+n > int(m.options.Context):
		return fault.Userf("%d positions do not fit the context of %d", b.Position+n, m.options.Context)
	case rows > int(m.options.LogitRows):
		return fault.Bugf("logits of %d tokens wanted, the sequence was loaded for %d", rows, m.options.LogitRows)
	case len(b.Logits) < rows*m.vocab:
		return fault.Bugf("room for %d logits, %d rows of %d are wanted", len(b.Logits), rows, m.vocab)
	case len(b.Rows) != len(m.byRow):
		return fault.Bugf("rows of %d weights, the plan reads %d by row", len(b.Rows), len(m.byRow))
	}
	for i, rowBytes := range m.byRow {
		if len(b.Rows[i]) < n*rowBytes {
			return fault.Bugf("by-row weight %d: %d bytes for %d rows of %d", i, len(b.Rows[i]), n, rowBytes)
		}
	}
	return nil
}

// Trim forgets every position from the given one on. Fixed states only know the current position and 0, windowed caches
// those whose window they still hold. A refused Trim changes nothing.
func (m *Machine) Trim(position int) error {
	if position < 0 || position > m.length {
		return fault.Bugf("trim to position %d of %d", position, m.length)
	}
	if err := m.windowsAt(position); err != nil {
		return err
	}
	if err := m.rewind(position); err != nil {
		return err
	}
	m.length = position
	if position == 0 {
		m.written = 0
	}
	return nil
}

// Close ends the workers and gives the memory back.
func (m *Machine) Close() error {
	m.pool.Close()
	return errors.Join(m.scratch.Close(), m.states.Close())
}

// parallel runs p over all workers.
func (m *Machine) parallel(p phase, chunks int) {
	m.phase = p
	m.pool.Run(chunks)
}

// rows is how many rows a step works on.
func (m *Machine) rows(head bool) int {
	if head {
		return m.wanted
	}
	return m.tokens
}

// first is the row of r that the step's first row reads.
func (m *Machine) first(r ref) int {
	if r.late {
		return m.skip
	}
	return 0
}

// floats returns row i of r.
func (m *Machine) floats(r ref, i int) []float32 {
	w := r.width()
	return r.f32[(m.first(r)+i)*w:][:w:w]
}

// ints returns row i of r.
func (m *Machine) ints(r ref, i int) []int32 {
	w := r.width()
	return r.i32[(m.first(r)+i)*w:][:w:w]
}

// bytes returns r from row i on.
func (m *Machine) bytes(r ref, i int) []byte {
	return r.raw[(m.first(r)+i)*r.rowBytes:]
}

// bind finds the weight's bytes.
func (w *weight) bind(set *kernel.Set, region *compute.Region) error {
	if w.byRow >= 0 {
		return nil
	}
	size := uint64(w.rowBytes) * uint64(w.rows)
	if w.offset > uint64(len(region.Bytes)) || size > uint64(len(region.Bytes))-w.offset {
		return fault.Bugf("weight %q: %d bytes at %d do not fit the region of %d", w.name, size, w.offset, len(region.Bytes))
	}
	w.raw = region.Bytes[w.offset:][:size:size]
	if !w.asVector {
		return nil
	}
	if w.inPlace() {
		w.vec = arena.Cast[float32](w.raw, w.n*w.rows)
		return nil
	}
	w.vec = make([]float32, w.n*w.rows)
	for r := range w.rows {
		set.Dequantize(w.t, w.vec[r*w.n:][:w.n], w.raw[r*w.rowBytes:])
	}
	return nil
}

// matmul is the kernel's product over tiles of tokens, so that a tile of activations stays in the cache next to the
// weights.
func (m *Machine) matmul(t dtype.Type, w []byte, rows, n int, act []byte, actStride, tokens int, out []float32, outStride int) {
	for u := 0; u < tokens; u += tile {
		m.set.MatMul(t, w, rows, n, act[u*actStride:], actStride, min(tile, tokens-u), out[u*outStride:], outStride)
	}
}

const (
	tile = 32 // tokens that are multiplied together

	// Weights that one worker takes at a time: every start costs a fetch from memory, so that a large matrix is cut into few
	// pieces, but as many as even out the workers.
	leastChunk = 160 << 10
	mostChunk  = 1 << 20
	cuts       = 32
)

// chunkRows is how many of so many rows of rowBytes bytes one worker takes at a time. Tiles of kernels are at most 16 rows.
func chunkRows(rows, rowBytes int) int {
	bytes := min(max(leastChunk, rows/cuts*rowBytes), mostChunk)
	return max(16, bytes/rowBytes/16*16)
}
