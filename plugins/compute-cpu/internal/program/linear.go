package program

import (
	"github.com/bigmoe/bigmoe/plugins/compute-cpu/internal/arena"
	"github.com/bigmoe/bigmoe/plugins/compute-cpu/internal/kernel"
	"github.com/bigmoe/bigmoe/sdk/dtype"
)

// rounding makes the activation rows of a product: in rounded to a format, once per value and format.
type rounding struct {
	rowwise
}

func newRounding(a kernel.Act, in, out ref, head bool) *rounding {
	return &rounding{rowwise{head: head, cost: 4 * in.width(), row: func(m *Machine, _, i int) {
		m.set.Quantize(a, m.bytes(out, i), m.floats(in, i))
	}}}
}

// product is a run of rows of a weight times a value.
type product struct {
	w         *weight
	firstRow  int
	rows      int
	x         ref // activations
	xOffset   int // bytes into an activation row: the group's share
	out       ref
	bias      *weight
	exact     bool // float32 activations whatever the weight
	chunkRows int
	chunks    int
}

// linears are the products of one value: they need each other's results in no way, so they share one parallel region.
type linears struct {
	head      bool
	of        *buffer
	roundings []*rounding // that have not been made before
	products  []product
	chunks    int
}

func (s *linears) run(m *Machine) error {
	for _, r := range s.roundings {
		if err := r.run(m); err != nil {
			return err
		}
	}
	m.parallel(s, s.chunks)
	return nil
}

func (s *linears) chunk(m *Machine, worker, chunk int) {
	p := &s.products[0]
	for i := 1; chunk >= p.chunks; i++ {
		chunk -= p.chunks
		p = &s.products[i]
	}
	r0 := chunk * p.chunkRows
	p.multiply(m, worker, r0, min(p.chunkRows, p.rows-r0), m.rows(s.head))
}

func (p *product) multiply(m *Machine, worker, r0, rows, tokens int) {
	row := p.firstRow + r0
	x, out := m.bytes(p.x, 0)[p.xOffset:], p.out.f32[row:]
	stride := p.out.width()
	w := p.w.raw[row*p.w.rowBytes:][:rows*p.w.rowBytes]
	if p.exact {
		decoded := m.workers[worker].row[:p.w.n]
		for r := range rows {
			m.set.Dequantize(p.w.t, decoded, w[r*p.w.rowBytes:])
			m.matmul(dtype.F32, arena.Bytes(decoded), 1, p.w.n, x, p.x.rowBytes, tokens, out[r:], stride)
		}
	} else {
		m.matmul(p.w.t, w, rows, p.w.n, x, p.x.rowBytes, tokens, out, stride)
	}
	if p.bias != nil {
		b := p.bias.vec[row:][:rows]
		for u := range tokens {
			o := out[u*stride:][:rows]
			m.set.Add(o, o, b)
		}
	}
}
