//go:build cgo

package kernel

import (
	"fmt"
	"testing"

	"github.com/bigmoe/bigmoe/sdk/dtype"
)

// TestAVX512IsAVX2 holds the float products of both sets to the same bits; those of other types have the bits of the reference.
func TestAVX512IsAVX2(t *testing.T) {
	if !haveAVX512() {
		t.Skip("this processor has no AVX-512")
	}
	for _, typ := range []dtype.Type{dtype.F32, dtype.F16, dtype.BF16} {
		for _, n := range []int{1, 7, 8, 9, 15, 16, 17, 24, 31, 100, 1024} {
			for _, rows := range []int{1, 4, 7} {
				for _, tokens := range []int{1, 2, 5, 9} {
					rng := newRand(uint64(n))
					w := randWeights(rng, typ, rows, n)
					act, stride := activations(Reference(), typ, randFloats(rng, tokens*n), n)
					sameBits(t, product(&avx2, typ, w, rows, n, act, stride, tokens), product(&avx512, typ, w, rows, n, act, stride, tokens),
						fmt.Sprintf("%v, rows of %d, %d of them, %d tokens", typ, n, rows, tokens))
				}
			}
		}
	}
	for _, n := range []int{1, 7, 8, 9, 15, 16, 17, 24, 31, 100, 576} {
		const rows = 6
		rng := newRand(uint64(n))
		q, k := randFloats(rng, n), randFloats(rng, rows*(n+3))
		h := make([]uint16, len(k))
		Reference().ToF16(h, k)
		a, b := make([]float32, 2*rows+1), make([]float32, 2*rows+1)
		for s, out := range map[*Set][]float32{&avx2: a, &avx512: b} {
			s.DotRowsF32(out[:rows], q, k, n+3, rows)
			s.DotRowsF16(out[rows:2*rows], q, h, n+3, rows)
			out[2*rows] = s.Dot(q, k[:n])
		}
		sameBits(t, a, b, fmt.Sprintf("scores of keys of %d", n))
	}
}
