package kernel

import (
	"math"

	"github.com/bigmoe/bigmoe/sdk/dtype"
)

var reference = Set{
	Name:       "go",
	Quantize:   quantize,
	MatMul:     matMul,
	Dequantize: dequantize,
	RMSNorm:    rmsNorm,
	SwiGLU:     swiGLU,
	Softmax:    softmax,
	Axpy:       axpy,
	Add:        add,
	Mul:        mul,
	Dot:        dot,
	RopeNeox:   ropeNeox,
	DotRowsF32: dotRowsF32,
	DotRowsF16: dotRowsF16,
	AccRowsF32: accRowsF32,
	AccRowsF16: accRowsF16,
	Delta:      delta,
	MixRows:    mixRows,
	ToF16:      toF16,
}

func matMul(t dtype.Type, w []byte, rows, n int, act []byte, actStride, tokens int, out []float32, outStride int) {
	f, rowBytes := checkMatMul(t, w, rows, n, act, actStride, tokens, out, outStride)
	for r := range rows {
		for u := range tokens {
			out[u*outStride+r] = f.dot(w[r*rowBytes:], act[u*actStride:], n)
		}
	}
}

func dequantize(t dtype.Type, dst []float32, src []byte) {
	f := formatOf(t)
	if f == nil || len(dst)%f.blockElems != 0 {
		panic("kernel: cannot decode a row of " + t.String())
	}
	f.decode(dst, src[:len(dst)/f.blockElems*f.blockBytes])
}

func rmsNorm(dst, x, w []float32, eps float32) {
	dst = dst[:len(x)]
	var sum float64
	for _, v := range x {
		sum += float64(v) * float64(v)
	}
	scale := float32(1 / math.Sqrt(sum/float64(len(x))+float64(eps)))
	if w == nil {
		for j, v := range x {
			dst[j] = v * scale
		}
		return
	}
	w = w[:len(x)]
	for j, v := range x {
		dst[j] = v * scale * w[j]
	}
}

func swiGLU(dst, gate, up []float32) {
	gate, up = gate[:len(dst)], up[:len(dst)]
	for j, g := range gate {
		dst[j] = float32(float64(g)/(1+math.Exp(-float64(g)))) * up[j]
	}
}

func softmax(x []float32) {
	top := float32(math.Inf(-1))
	for _, v := range x {
		top = max(top, v) // the built-in keeps a NaN
	}
	var sum float64
	for j, v := range x {
		e := math.Exp(float64(v - top))
		x[j] = float32(e)
		sum += e
	}
	scale := float32(1 / sum)
	for j := range x {
		x[j] *= scale
	}
}

func axpy(dst []float32, a float32, x []float32) {
	x = x[:len(dst)]
	for j := range dst {
		dst[j] += a * x[j]
	}
}

func add(dst, a, b []float32) {
	a, b = a[:len(dst)], b[:len(dst)]
	for j := range dst {
		dst[j] = a[j] + b[j]
	}
}

func mul(dst, a, b []float32) {
	a, b = a[:len(dst)], b[:len(dst)]
	for j := range dst {
		dst[j] = a[j] * b[j]
	}
}

func dot(a, b []float32) float32 {
	b = b[:len(a)]
	var sum float64
	for j, v := range a {
		sum += float64(v) * float64(b[j])
	}
	return float32(sum)
}

func ropeNeox(x, cos, sin []float32) {
	h := len(cos)
	lo, hi, sin := x[:h], x[h:2*h], sin[:h]
	for j, c := range cos {
		a, b, s := lo[j], hi[j], sin[j]
		lo[j] = float32(a*c) - float32(b*s) // not fused where the processor could
		hi[j] = float32(a*s) + float32(b*c)
	}
}

func dotRowsF32(out, q, k []float32, stride, rows int) {
	for u := range rows {
		out[u] = dot(q, k[u*stride:])
	}
}

func dotRowsF16(out, q []float32, k []uint16, stride, rows int) {
	for u := range rows {
		row := k[u*stride:][:len(q)]
		var sum float64
		for j, v := range q {
			sum += float64(v) * float64(halfToFloat(row[j]))
		}
		out[u] = float32(sum)
	}
}

func accRowsF32(out, p, v []float32, stride, rows int) {
	for u := range rows {
		axpy(out, p[u], v[u*stride:])
	}
}

func accRowsF16(out, p []float32, v []uint16, stride, rows int) {
	for u := range rows {
		row := v[u*stride:][:len(out)]
		for j := range out {
			out[j] += p[u] * halfToFloat(row[j])
		}
	}
}

func delta(s, out, v, q, k []float32, beta, decay float32) {
	n, kq := len(k), dot(k, q)
	for j, want := range v {
		row := s[j*n:][:n]
		e := beta * (want - decay*dot(row, k))
		out[j] = decay*dot(row, q) + kq*e
		for i, x := range k {
			row[i] = decay*row[i] + e*x
		}
	}
}

func mixRows(out []float32, keep float32, p []float32, pRow, pTerm int, v []float32, rows, n, terms int) {
	checkMixRows(out, p, pRow, pTerm, v, rows, n, terms)
	for t := range rows {
		row := out[t*n:][:n]
		for i := range row {
			if keep == 0 {
				row[i] = 0
			} else {
				row[i] *= keep
			}
		}
		for u := range terms {
			axpy(row, p[t*pRow+u*pTerm], v[u*n:])
		}
	}
}

func toF16(dst []uint16, x []float32) {
	dst = dst[:len(x)]
	for j, v := range x {
		dst[j] = floatToHalf(v)
	}
}
