package kernel

import (
	"fmt"

	"github.com/bigmoe/bigmoe/sdk/dtype"
)

// Set is one implementation of every kernel. All fields are set and safe for concurrent use; none keeps its arguments
// or allocates. Slices that are too short, or a type ActFor does not know, panic as an index out of range would: the
// caller has checked the plan.
type Set struct {
	// Name is the instruction set, as ByName takes it: "go", "avx2", "avx512", "neon" or "neon-dotprod".
	Name string

	// Quantize rounds the row x into format a (specs/quants.md 5). len(x) is a multiple of a.BlockElems() and dst holds
	// a.RowBytes(len(x)). Every set writes the same bytes. A block with an Inf or NaN gets scale NaN.
	Quantize func(a Act, dst []byte, x []float32)

	// MatMul computes out[u*outStride+r] = (row r of w) . (activation row u) for 0 <= r < rows, 0 <= u < tokens, with the
	// formulas of specs/quants.md 4. w holds rows of n elements of type t, one after another, at any alignment; act holds
	// rows of ActFor(t).RowBytes(n) bytes, actStride bytes apart. tokens may be 0, and so may rows. Cheapest with rows a
	// multiple of 16 (below 8 each row costs about as much as 8), and with all tokens in one call: weights are unpacked
	// once for 64 of them.
	//
	// Promise: an output depends only on its own two rows, bit for bit, whatever rows and tokens the call spans, so no
	// split into threads, waves or batches changes a result. For types whose Act is not ActF32 every set gives the same
	// bits; the others differ in summation order.
	MatMul func(t dtype.Type, w []byte, rows, n int, act []byte, actStride, tokens int, out []float32, outStride int)

	// Dequantize decodes one row of len(dst) elements, exactly (specs/quants.md 2 and 3).
	Dequantize func(t dtype.Type, dst []float32, src []byte)

	// RMSNorm computes dst[j] = x[j] / sqrt(mean(x^2)+eps) * w[j], the mean in float64. w nil means ones; dst may be x.
	RMSNorm func(dst, x, w []float32, eps float32)

	// SwiGLU computes dst[j] = silu(gate[j]) * up[j], silu(v) = v/(1+exp(-v)). dst may be gate or up.
	SwiGLU func(dst, gate, up []float32)

	// Softmax replaces x by exp(x-max(x)) / sum of the same. -Inf becomes 0, unless all of x is, which gives NaN.
	Softmax func(x []float32)

	// Axpy adds a*x to dst. Add and Mul write a+b and a*b, element by element; dst may be a or b. Dot returns a.b.
	Axpy     func(dst []float32, a float32, x []float32)
	Add, Mul func(dst, a, b []float32)
	Dot      func(a, b []float32) float32

	// RopeNeox rotates the pairs (x[j], x[j+h]) by the angle with the given cosine and sine, j < h = len(cos) = len(sin).
	// x holds at least 2*h elements; the rest stays.
	RopeNeox func(x, cos, sin []float32)

	// DotRowsF32 and DotRowsF16 compute out[u] = q . k[u*stride : u*stride+len(q)] for 0 <= u < rows: the scores of one
	// query head against cached keys. F16 keys are IEEE binary16 bits. Each output depends only on its row.
	DotRowsF32 func(out, q, k []float32, stride, rows int)
	DotRowsF16 func(out, q []float32, k []uint16, stride, rows int)

	// AccRowsF32 and AccRowsF16 add the sum over 0 <= u < rows of p[u] * v[u*stride : u*stride+len(out)] to out: the
	// weighted sum of cached values, in row order, so that two calls over halves equal one over the whole.
	AccRowsF32 func(out, p, v []float32, stride, rows int)
	AccRowsF16 func(out, p []float32, v []uint16, stride, rows int)

	// Delta advances rows of the memory of a delta net by one token (specs/qwen35moe.md D9 to D13, in the form that reads
	// each row once). s holds len(v) rows of len(k) elements: row j is column j of the matrix S. For every row,
	//
	//	e      = beta * (v[j] - decay * (s_j . k))
	//	out[j] = decay * (s_j . q) + (k . q) * e
	//	s_j    = decay * s_j + e * k
	//
	// A row depends on no other, so no split into calls changes a result.
	Delta func(s, out, v, q, k []float32, beta, decay float32)

	// MixRows computes out_t = keep*out_t + sum over u < terms of p[t*pRow + u*pTerm] * v_u for the first rows rows of out,
	// with keep 0 without reading them. out and v hold rows of n elements, one after another. Terms are added in the order of
	// u, and an output depends on no other, so no split into calls changes a result.
	MixRows func(out []float32, keep float32, p []float32, pRow, pTerm int, v []float32, rows, n, terms int)

	// ToF16 rounds x to IEEE binary16, ties to even.
	ToF16 func(dst []uint16, x []float32)
}

// Reference returns the plain Go set: what every other is compared with, and what builds without cgo use.
func Reference() *Set { return &reference }

// Best returns the fastest set this CPU and build can run.
func Best() *Set {
	all := Sets()
	return all[len(all)-1]
}

// Sets returns every set this CPU and build can run, slowest (Reference) first.
func Sets() []*Set { return append([]*Set{&reference}, native()...) }

// ByName returns the runnable set called name.
func ByName(name string) (*Set, bool) {
	for _, s := range Sets() {
		if s.Name == name {
			return s, true
		}
	}
	return nil, false
}

// checkMatMul panics unless the arguments of Set.MatMul fit together, and returns the format and bytes of a row of w.
func checkMatMul(t dtype.Type, w []byte, rows, n int, act []byte, actStride, tokens int, out []float32, outStride int) (*format, int) {
	f := formatOf(t)
	if f == nil {
		panic(fmt.Sprintf("kernel: no product for %v weights", t))
	}
	if n < 0 || n%f.blockElems != 0 || rows < 0 || tokens < 0 {
		panic(fmt.Sprintf("kernel: product of %d rows of %d %v elements with %d tokens", rows, n, t, tokens))
	}
	rowBytes := n / f.blockElems * f.blockBytes
	if rows > 0 && tokens > 0 {
		_ = w[:rows*rowBytes]
		checkRows(len(act), f.act.RowBytes(n), actStride, tokens)
		checkRows(len(out), rows, outStride, tokens)
	}
	return f, rowBytes
}

// checkRows panics unless rows of size elements, stride apart, fit into have elements.
func checkRows(have, size, stride, rows int) {
	if rows > 0 && (stride < 0 || (rows-1)*stride+size > have) {
		panic(fmt.Sprintf("kernel: %d rows of %d elements, %d apart, in a slice of %d", rows, size, stride, have))
	}
}

// checkMixRows panics unless the arguments of Set.MixRows fit together.
func checkMixRows(out, p []float32, pRow, pTerm int, v []float32, rows, n, terms int) {
	checkRows(len(out), n, n, rows)
	checkRows(len(v), n, n, terms)
	if rows > 0 && terms > 0 {
		checkRows(len(p), (terms-1)*pTerm+1, pRow, rows)
	}
}
