package program

import (
	"github.com/bigmoe/bigmoe/plugins/compute-cpu/internal/arena"
	"github.com/bigmoe/bigmoe/plugins/compute-cpu/internal/kernel"
	"github.com/bigmoe/bigmoe/plugins/compute-cpu/internal/kv"
	"github.com/bigmoe/bigmoe/plugins/compute-cpu/internal/pool"
	"github.com/bigmoe/bigmoe/sdk/compute"
	"github.com/bigmoe/bigmoe/sdk/dtype"
)

// Program is a compiled plan.
type Program struct {
	options *compute.Options
	steps   []step
	buffers []*buffer
	logits  *buffer
	vocab   int
	weights []*weight // by index into Plan.Weights
	byRow   []int     // bytes of a row of every weight that is read by row, in plan order
	caches  []*cache
	fixed   []*fixed
	angles  []*angles
	sorted  sorted

	valueBytes int // of buffers
	work       scratchSizes
}

// step is one part of a batch's work. run is called on worker 0.
type step interface {
	run(m *Machine) error
}

// phase is work that is split over the workers. Chunks may run in any order and at the same time.
type phase interface {
	chunk(m *Machine, worker, chunk int)
}

// weight is a dense weight.
type weight struct {
	name     string
	t        dtype.Type
	n, rows  int // elements of a row, rows
	rowBytes int
	byRow    int // resident: -1, else its place among the weights that are read by row
	offset   uint64
	asVector bool // some op wants vec

	raw []byte
	vec []float32 // one-dimensional weights as float32
}

// scratchSizes is what each worker needs for itself, in elements.
type scratchSizes struct {
	scores  int // float32
	row     int // float32
	rank    int // float32
	gate    int // float32
	up      int // float32
	gathers int // bytes
}

func (s scratchSizes) bytes() int {
	n := 0
	for _, e := range []int{4 * s.scores, 4 * s.row, 4 * s.rank, 4 * s.gate, 4 * s.up, s.gathers} {
		n += roundUp(e, arena.Align)
	}
	return n
}

// scratch is the memory of one worker.
type scratch struct {
	scores  []float32 // attention: one score per visible position and sink
	row     []float32 // a row of some value
	rank    []float32 // routing: what selection compares
	gate    []float32 // experts: a tile of gate and up
	up      []float32
	gathers []byte // experts: a tile of activation rows
}

func carve(s scratchSizes, mem []byte) scratch {
	take := func(bytes int) []byte {
		b := mem[:bytes:bytes]
		mem = mem[roundUp(bytes, arena.Align):]
		return b
	}
	floats := func(n int) []float32 { return arena.Cast[float32](take(4*n), n) }
	return scratch{scores: floats(s.scores), row: floats(s.row), rank: floats(s.rank), gate: floats(s.gate), up: floats(s.up), gathers: take(s.gathers)}
}

// processBytes is what the process takes for its code, the Go runtime, the control connection and the plan: 15.3 MiB
// resident were measured before the first model.
const processBytes = 24 << 20

// Needs says what memory Load and Eval take. Caches take theirs as positions are filled, fixed states all of it at once.
func (p *Program) Needs() *compute.Needs {
	return &compute.Needs{StateBytes: p.stateBytes(), ScratchBytes: p.scratchBytes() + p.vectorBytes(), ProcessBytes: processBytes}
}

func (p *Program) stateBytes() (n uint64) {
	for _, c := range p.caches {
		n += uint64(roundUp(int(c.layout.Bytes()), arena.Align))
	}
	for _, f := range p.fixed {
		n += uint64(roundUp(f.bytes(), arena.Align))
	}
	return n
}

func (p *Program) scratchBytes() uint64 {
	return uint64(p.valueBytes) + uint64(p.options.Threads)*uint64(p.work.bytes()) + uint64(p.sorted.bytes())
}

// vectorBytes is what one-dimensional weights take that have to be decoded.
func (p *Program) vectorBytes() (n uint64) {
	for _, w := range p.weights {
		if w.asVector && !w.inPlace() {
			n += 4 * uint64(w.n) * uint64(w.rows)
		}
	}
	return n
}

func (w *weight) inPlace() bool { return w.t == dtype.F32 && w.offset%4 == 0 }

// Load binds the program to memory and to the weights in region. Results come from the kernels of set.
func (p *Program) Load(set *kernel.Set, region *compute.Region) (*Machine, error) {
	m := &Machine{Program: p, set: set, region: region}
	for _, w := range p.weights {
		if err := w.bind(set, region); err != nil {
			return nil, err
		}
	}
	for _, a := range p.angles {
		if err := a.prepare(); err != nil {
			return nil, err
		}
	}
	var err error
	if m.scratch, err = arena.New(p.scratchBytes()); err != nil {
		return nil, err
	}
	if m.states, err = arena.New(p.stateBytes()); err != nil {
		m.scratch.Close()
		return nil, err
	}
	mem := m.scratch.Bytes()
	bind(p.buffers, mem, int(p.options.Batch), int(p.options.LogitRows))
	mem = mem[p.valueBytes:]
	for range p.options.Threads {
		m.workers = append(m.workers, carve(p.work, mem))
		mem = mem[p.work.bytes():]
	}
	p.sorted.bind(mem)
	mem = m.states.Bytes()
	for _, c := range p.caches {
		c.Cache = kv.New(set, c.layout, mem)
		mem = mem[roundUp(int(c.layout.Bytes()), arena.Align):]
	}
	for _, f := range p.fixed {
		f.f32 = arena.Cast[float32](mem, f.elements)
		mem = mem[roundUp(f.bytes(), arena.Align):]
	}
	m.pool = pool.New(int(p.options.Threads), func(worker, chunk int) { m.phase.chunk(m, worker, chunk) })
	return m, nil
}
