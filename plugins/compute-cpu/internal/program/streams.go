package program

import (
	"github.com/bigmoe/bigmoe/plugins/compute-cpu/internal/kernel"
	"github.com/bigmoe/bigmoe/sdk/fault"
)

// Hyper-connections keep several residual streams, one after the other in a row (specs/deepseek4.md 3.2).

// mixingNumbers emits m = fn . rms(streams), the numbers that hc_mix and hc_head work with (3, 45).
func (c *compiler) mixingNumbers() (ref, error) {
	x, fn, eps := c.in(0), c.weightAt(0), float32(c.attrs.Float("eps"))
	act, _ := kernel.ActFor(fn.t)
	if fn.n%act.BlockElems() != 0 {
		return ref{}, fault.Unsupportedf("weight %q: rows of %d are not a multiple of the %d activations that are rounded together", fn.name, fn.n, act.BlockElems())
	}
	normed := c.make(x.rowBytes)
	c.emit(&rowwise{head: c.head, cost: 2 * normed.width(), row: func(m *Machine, _, i int) {
		m.set.RMSNorm(m.floats(normed, i), m.floats(x, i), nil, eps)
	}})
	step := &linears{head: c.head, of: normed.buffer}
	rx, rounding := c.rounded(c.use(normed.buffer), act)
	if rounding != nil {
		step.roundings = append(step.roundings, rounding)
	}
	out, per := c.make(4*fn.rows), chunkRows(fn.rows, fn.rowBytes)
	step.chunks = ceilDiv(fn.rows, per)
	step.products = []product{{w: fn, rows: fn.rows, x: rx, out: out, chunkRows: per, chunks: step.chunks}}
	c.emit(step)
	return c.use(out.buffer), nil
}

// hcMix says how a sublayer reads and writes the streams (4 to 9).
func hcMix(c *compiler) error {
	mixed, err := c.mixingNumbers()
	if err != nil {
		return err
	}
	scale, base := c.vector(1), c.vector(2)
	n, rounds, eps := int(c.attrs.Int("streams")), int(c.attrs.Int("iterations")), c.attrs.Float("hc_eps")
	pre, post, comb := c.out(0), c.out(1), c.out(2)
	return c.rows(comb, 8*rounds, func(m *Machine, _, i int) {
		x := m.floats(mixed, i)
		number := func(k, group int) float64 { return float64(x[k]*scale.vec[group] + base.vec[k]) }
		in, out, a := m.floats(pre, i), m.floats(post, i), m.floats(comb, i)
		for s := range n {
			in[s] = float32(sigmoid(number(s, 0)) + eps)
			out[s] = float32(2 * sigmoid(number(n+s, 1)))
		}
		for k := range a {
			a[k] = float32(number(2*n+k, 2))
		}
		for s := 0; s < len(a); s += n {
			m.set.Softmax(a[s : s+n])
		}
		for k := range a {
			a[k] += float32(eps)
		}
		for round := range rounds {
			if round > 0 {
				balance(a, n, n, 1, eps) // rows
			}
			balance(a, n, 1, n, eps) // columns
		}
	})
}

// balance divides each of n lines of a by its sum plus eps. Lines begin stride elements apart, their elements lie step
// apart.
func balance(a []float32, n, stride, step int, eps float64) {
	for line := range n {
		sum := eps
		for k := range n {
			sum += float64(a[line*stride+k*step])
		}
		for k := range n {
			a[line*stride+k*step] = float32(float64(a[line*stride+k*step]) / sum)
		}
	}
}

// hcHead says how the head reads the streams (45).
func hcHead(c *compiler) error {
	mixed, err := c.mixingNumbers()
	if err != nil {
		return err
	}
	scale, base, eps := c.vector(1), c.vector(2), c.attrs.Float("hc_eps")
	pre := c.out(0)
	return c.rows(pre, 16, func(m *Machine, _, i int) {
		x, out := m.floats(mixed, i), m.floats(pre, i)
		for s, v := range x {
			out[s] = float32(sigmoid(float64(v*scale.vec[0]+base.vec[s])) + eps)
		}
	})
}

// hcCollapse makes one row of the streams (10, 46).
func hcCollapse(c *compiler) error {
	streams, pre, out := c.in(0), c.in(1), c.out(0)
	return c.rows(out, pre.width(), func(m *Machine, _, i int) {
		x, y := m.floats(streams, i), m.floats(out, i)
		clear(y)
		for s, a := range m.floats(pre, i) {
			m.set.Axpy(y, a, x[s*len(y):][:len(y)])
		}
	})
}

// hcExpand is the residual connection: it mixes the streams and adds a sublayer's result to each (12).
func hcExpand(c *compiler) error {
	streams, y, post, comb := c.in(0), c.in(1), c.in(2), c.in(3)
	out := c.out(0)
	n := post.width()
	return c.rows(out, n, func(m *Machine, _, i int) {
		x, result, factors, mix, dst := m.floats(streams, i), m.floats(y, i), m.floats(post, i), m.floats(comb, i), m.floats(out, i)
		clear(dst)
		for b := range n {
			d := dst[b*len(result):][:len(result)]
			m.set.Axpy(d, factors[b], result)
			for a := range n {
				m.set.Axpy(d, mix[a*n+b], x[a*len(result):][:len(result)])
			}
		}
	})
}
