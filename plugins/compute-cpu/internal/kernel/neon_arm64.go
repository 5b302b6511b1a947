//go:build cgo

package kernel

/*
#cgo CFLAGS: -O3 -std=c11
#cgo LDFLAGS: -lm
#include "neon_arm64.h"

#cgo noescape kernel_neon_matmul
#cgo nocallback kernel_neon_matmul
#cgo noescape kernel_neon_dotprod_matmul
#cgo nocallback kernel_neon_dotprod_matmul
#cgo noescape kernel_neon_quantize_q8_0
#cgo nocallback kernel_neon_quantize_q8_0
#cgo noescape kernel_neon_quantize_q8_1
#cgo nocallback kernel_neon_quantize_q8_1
#cgo noescape kernel_neon_quantize_q8_k
#cgo nocallback kernel_neon_quantize_q8_k
#cgo noescape kernel_neon_rms_norm
#cgo nocallback kernel_neon_rms_norm
#cgo noescape kernel_neon_swiglu
#cgo nocallback kernel_neon_swiglu
#cgo noescape kernel_neon_softmax
#cgo nocallback kernel_neon_softmax
#cgo noescape kernel_neon_axpy
#cgo nocallback kernel_neon_axpy
#cgo noescape kernel_neon_add
#cgo nocallback kernel_neon_add
#cgo noescape kernel_neon_mul
#cgo nocallback kernel_neon_mul
#cgo noescape kernel_neon_rope_neox
#cgo nocallback kernel_neon_rope_neox
#cgo noescape kernel_neon_acc_rows_f32
#cgo nocallback kernel_neon_acc_rows_f32
#cgo noescape kernel_neon_acc_rows_f16
#cgo nocallback kernel_neon_acc_rows_f16
#cgo noescape kernel_neon_delta
#cgo nocallback kernel_neon_delta
#cgo noescape kernel_neon_mix_rows
#cgo nocallback kernel_neon_mix_rows
#cgo noescape kernel_neon_to_f16
#cgo nocallback kernel_neon_to_f16
*/
import "C"

import (
	"unsafe"

	"golang.org/x/sys/cpu"

	"github.com/bigmoe/bigmoe/sdk/dtype"
)

// native returns the sets beyond Reference that this build has and this CPU runs, slowest first. NEON is in every 64-bit ARM
// processor; the dot product instructions are in all since about 2018.
func native() []*Set {
	sets := []*Set{&neon}
	if cpu.ARM64.HasASIMDDP {
		sets = append(sets, &neonDotprod)
	}
	return sets
}

var (
	neon = neonSet("neon", func(t dtype.Type, w []byte, rowBytes, rows, n int, act []byte, actStride, tokens int, out []float32, outStride int) bool {
		return C.kernel_neon_matmul(C.uint32_t(t), raw(w), C.int64_t(rowBytes), C.int64_t(rows), C.int64_t(n), raw(act), C.int64_t(actStride),
			C.int64_t(tokens), floats(out), C.int64_t(outStride)) != 0
	})
	neonDotprod = neonSet("neon-dotprod", func(t dtype.Type, w []byte, rowBytes, rows, n int, act []byte, actStride, tokens int, out []float32, outStride int) bool {
		return C.kernel_neon_dotprod_matmul(C.uint32_t(t), raw(w), C.int64_t(rowBytes), C.int64_t(rows), C.int64_t(n), raw(act), C.int64_t(actStride),
			C.int64_t(tokens), floats(out), C.int64_t(outStride)) != 0
	})
)

// neonSet returns the set of neon_*.c with the products of matMulC, which reports false for types it has no kernel for:
// those run in Go. Decoding whole rows is rare (one embedding row a token) and stays in Go.
func neonSet(name string, matMulC func(t dtype.Type, w []byte, rowBytes, rows, n int, act []byte, actStride, tokens int,
	out []float32, outStride int) bool) Set {
	return Set{
		Name:     name,
		Quantize: quantizeNEON,
		MatMul: func(t dtype.Type, w []byte, rows, n int, act []byte, actStride, tokens int, out []float32, outStride int) {
			_, rowBytes := checkMatMul(t, w, rows, n, act, actStride, tokens, out, outStride)
			if !matMulC(t, w, rowBytes, rows, n, act, actStride, tokens, out, outStride) {
				matMul(t, w, rows, n, act, actStride, tokens, out, outStride)
			}
		},
		Dequantize: dequantize,
		RMSNorm: func(dst, x, w []float32, eps float32) {
			dst = dst[:len(x)]
			if w != nil {
				w = w[:len(x)]
			}
			C.kernel_neon_rms_norm(floats(dst), floats(x), floats(w), C.int64_t(len(x)), C.float(eps))
		},
		SwiGLU: func(dst, gate, up []float32) {
			gate, up = gate[:len(dst)], up[:len(dst)]
			C.kernel_neon_swiglu(floats(dst), floats(gate), floats(up), C.int64_t(len(dst)))
		},
		Softmax: func(x []float32) { C.kernel_neon_softmax(floats(x), C.int64_t(len(x))) },
		Axpy: func(dst []float32, a float32, x []float32) {
			x = x[:len(dst)]
			C.kernel_neon_axpy(floats(dst), C.float(a), floats(x), C.int64_t(len(dst)))
		},
		Add: func(dst, a, b []float32) {
			a, b = a[:len(dst)], b[:len(dst)]
			C.kernel_neon_add(floats(dst), floats(a), floats(b), C.int64_t(len(dst)))
		},
		Mul: func(dst, a, b []float32) {
			a, b = a[:len(dst)], b[:len(dst)]
			C.kernel_neon_mul(floats(dst), floats(a), floats(b), C.int64_t(len(dst)))
		},
		Dot: func(a, b []float32) float32 {
			var out [1]float32
			dotRowsNEON(dtype.F32, out[:], a, rawFloats(b[:len(a)]), 0)
			return out[0]
		},
		RopeNeox: func(x, cos, sin []float32) {
			x, sin = x[:2*len(cos)], sin[:len(cos)]
			C.kernel_neon_rope_neox(floats(x), floats(cos), floats(sin), C.int64_t(len(cos)))
		},
		DotRowsF32: func(out, q, k []float32, stride, rows int) {
			checkRows(len(k), len(q), stride, rows)
			dotRowsNEON(dtype.F32, out[:rows], q, rawFloats(k), 4*stride)
		},
		DotRowsF16: func(out, q []float32, k []uint16, stride, rows int) {
			checkRows(len(k), len(q), stride, rows)
			dotRowsNEON(dtype.F16, out[:rows], q, (*C.uint8_t)(unsafe.Pointer(unsafe.SliceData(k))), 2*stride)
		},
		AccRowsF32: func(out, p, v []float32, stride, rows int) {
			p = p[:rows]
			checkRows(len(v), len(out), stride, rows)
			C.kernel_neon_acc_rows_f32(floats(out), floats(p), floats(v), C.int64_t(stride), C.int64_t(rows), C.int64_t(len(out)))
		},
		AccRowsF16: func(out, p []float32, v []uint16, stride, rows int) {
			p = p[:rows]
			checkRows(len(v), len(out), stride, rows)
			C.kernel_neon_acc_rows_f16(floats(out), floats(p), halves(v), C.int64_t(stride), C.int64_t(rows), C.int64_t(len(out)))
		},
		Delta: func(s, out, v, q, k []float32, beta, decay float32) {
			s, out, q = s[:len(v)*len(k)], out[:len(v)], q[:len(k)]
			C.kernel_neon_delta(floats(s), floats(out), floats(v), C.int64_t(len(v)), floats(q), floats(k), C.int64_t(len(k)),
				C.float(beta), C.float(decay))
		},
		MixRows: func(out []float32, keep float32, p []float32, pRow, pTerm int, v []float32, rows, n, terms int) {
			checkMixRows(out, p, pRow, pTerm, v, rows, n, terms)
			C.kernel_neon_mix_rows(floats(out), C.float(keep), floats(p), C.int64_t(pRow), C.int64_t(pTerm), floats(v), C.int64_t(rows),
				C.int64_t(n), C.int64_t(terms))
		},
		ToF16: func(dst []uint16, x []float32) {
			dst = dst[:len(x)]
			C.kernel_neon_to_f16(halves(dst), floats(x), C.int64_t(len(x)))
		},
	}
}

func floats(x []float32) *C.float      { return (*C.float)(unsafe.SliceData(x)) }
func halves(x []uint16) *C.uint16_t    { return (*C.uint16_t)(unsafe.SliceData(x)) }
func raw(x []byte) *C.uint8_t          { return (*C.uint8_t)(unsafe.SliceData(x)) }
func rawFloats(x []float32) *C.uint8_t { return (*C.uint8_t)(unsafe.Pointer(unsafe.SliceData(x))) }

// dotRowsNEON computes out[u] = q . k[u], for float keys of type t, strideBytes apart.
func dotRowsNEON(t dtype.Type, out, q []float32, k *C.uint8_t, strideBytes int) {
	C.kernel_neon_matmul(C.uint32_t(t), k, C.int64_t(strideBytes), C.int64_t(len(out)), C.int64_t(len(q)), rawFloats(q), 0, 1,
		floats(out), 0)
}

func quantizeNEON(a Act, dst []byte, x []float32) {
	checkQuantize(a, dst, x)
	switch a {
	case ActF32:
		copy(dst, unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(x))), 4*len(x)))
	case ActQ8_0:
		C.kernel_neon_quantize_q8_0(raw(dst), floats(x), C.int64_t(len(x)))
	case ActQ8_1:
		C.kernel_neon_quantize_q8_1(raw(dst), floats(x), C.int64_t(len(x)))
	case ActQ8_K:
		C.kernel_neon_quantize_q8_k(raw(dst), floats(x), C.int64_t(len(x)))
	default:
		panic("kernel: unknown " + a.String())
	}
}
