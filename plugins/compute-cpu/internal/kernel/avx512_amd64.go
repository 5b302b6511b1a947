//go:build cgo

package kernel

/*
#cgo CFLAGS: -O3 -std=c11
#include "avx512_amd64.h"

#cgo noescape kernel_avx512_matmul
#cgo nocallback kernel_avx512_matmul
*/
import "C"

import (
	"unsafe"

	"golang.org/x/sys/cpu"

	"github.com/bigmoe/bigmoe/sdk/dtype"
)

// haveAVX512 reports whether this CPU runs the avx512 set: Ice Lake, Zen 4 and later.
func haveAVX512() bool {
	x := cpu.X86
	return haveAVX2() && x.HasAVX512F && x.HasAVX512BW && x.HasAVX512VL && x.HasAVX512DQ && x.HasAVX512VNNI && x.HasAVX512VBMI
}

// avx512 is the avx2 set with wider products. Its results are those of avx2 bit for bit, for every type.
var avx512 = newAVX512()

func newAVX512() Set {
	s := avx2
	s.Name = "avx512"
	s.MatMul = matMulAVX512
	s.Dot = func(a, b []float32) float32 {
		var out [1]float32
		dotRowsAVX512(dtype.F32, out[:], a, rawFloats512(b[:len(a)]), 0, 1)
		return out[0]
	}
	s.DotRowsF32 = func(out, q, k []float32, stride, rows int) {
		checkRows(len(k), len(q), stride, rows)
		dotRowsAVX512(dtype.F32, out[:rows], q, rawFloats512(k), 4*stride, rows)
	}
	s.DotRowsF16 = func(out, q []float32, k []uint16, stride, rows int) {
		checkRows(len(k), len(q), stride, rows)
		dotRowsAVX512(dtype.F16, out[:rows], q, (*C.uint8_t)(unsafe.Pointer(unsafe.SliceData(k))), 2*stride, rows)
	}
	return s
}

func rawFloats512(x []float32) *C.uint8_t { return (*C.uint8_t)(unsafe.Pointer(unsafe.SliceData(x))) }

// dotRowsAVX512 computes out[u] = q . (row u of k), rows stride bytes apart.
func dotRowsAVX512(t dtype.Type, out, q []float32, k *C.uint8_t, stride, rows int) {
	C.kernel_avx512_matmul(C.uint32_t(t), k, C.int64_t(stride), C.int64_t(rows), C.int64_t(len(q)), rawFloats512(q), 0, 1,
		(*C.float)(unsafe.SliceData(out)), 0)
}

func matMulAVX512(t dtype.Type, w []byte, rows, n int, act []byte, actStride, tokens int, out []float32, outStride int) {
	_, rowBytes := checkMatMul(t, w, rows, n, act, actStride, tokens, out, outStride)
	if C.kernel_avx512_matmul(C.uint32_t(t), (*C.uint8_t)(unsafe.SliceData(w)), C.int64_t(rowBytes), C.int64_t(rows), C.int64_t(n),
		(*C.uint8_t)(unsafe.SliceData(act)), C.int64_t(actStride), C.int64_t(tokens), (*C.float)(unsafe.SliceData(out)), C.int64_t(outStride)) == 0 {
		matMulAVX2(t, w, rows, n, act, actStride, tokens, out, outStride)
	}
}
