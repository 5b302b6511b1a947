package kernel

import (
	"encoding/binary"
	"fmt"
	"math"
	"testing"

	"github.com/bigmoe/bigmoe/sdk/dtype"
)

// TestMatMulExtremes holds every set to the reference where 16-bit sums are largest and scales are no ordinary numbers: all codes of
// the weights at one end, or at the ends by turns, with activations likewise, and scales that are zero, subnormal, infinite
// or NaN on either side.
func TestMatMulExtremes(t *testing.T) {
	const rows, tokens = 19, 11
	scales := []uint16{0x3c00, 0xbc00, 0, 0x8000, 1, 0x83ff, 0x7bff, 0x7c00, 0xfc00, 0x7e00}
	for _, typ := range supported {
		a, _ := ActFor(typ)
		if a == ActF32 {
			continue // TestFloatsExtremes
		}
		n := 2 * max(256, typ.BlockElems())
		size := typ.BlockBytes()
		for pattern, fill := range map[string]func(i int) byte{
			"ff": func(int) byte { return 0xff }, "00": func(int) byte { return 0 }, "0f": func(int) byte { return 0x0f }, "f0": func(int) byte { return 0xf0 },
			"80": func(int) byte { return 0x80 }, "7f": func(int) byte { return 0x7f },
			"turns": func(i int) byte { return byte(-(i & 1)) }, "fours": func(i int) byte { return byte(-(i >> 2 & 1)) },
		} {
			w := make([]byte, rows*n/typ.BlockElems()*size+1)[1:]
			for i := range w {
				w[i] = fill(i % size)
			}
			d, m := scaleOffsets(typ)
			for b := 0; b < len(w)/size; b++ {
				block, s := w[b*size:], scales[b/3%len(scales)]
				switch {
				case typ == dtype.IQ1_M:
					setIQ1M(block, s)
				case typ == dtype.MXFP4:
					block[0] = []byte{127, 0, 1, 2, 253, 254, 255}[b/3%7]
				case d >= 0:
					binary.LittleEndian.PutUint16(block[d:], s)
				}
				if m >= 0 {
					binary.LittleEndian.PutUint16(block[m:], scales[b/5%len(scales)])
				}
			}
			for name, x := range map[string]func(u, i int) float32{
				"up": func(u, i int) float32 { return 127 }, "down": func(u, i int) float32 { return -127 },
				"turns": func(u, i int) float32 { return 127 * float32(1-2*(i&1)) }, "fours": func(u, i int) float32 { return 127 * float32(1-2*(i>>2&1)) },
				"scales": func(u, i int) float32 {
					return float32(1-2*(i>>u%7&1)) * []float32{127, 0, 1e-45, 1e-38, 1e-6, 8e6, 3e38, float32(math.Inf(1)), float32(math.NaN()), 1, 60000}[(u+i/64)%11]
				},
			} {
				in := make([]float32, tokens*n)
				for i := range in {
					in[i] = x(i/n, i%n)
				}
				act, stride := activations(Reference(), typ, in, n)
				want := product(Reference(), typ, w, rows, n, act, stride, tokens)
				for _, k := range Sets()[1:] {
					for _, r := range []int{rows, 8, 5, 1} {
						for _, u := range []int{tokens, 1} {
							got := product(k, typ, w, r, n, act, stride, u)
							for i := range u {
								sameBits(t, want[i*rows:][:r], got[i*r:][:r], fmt.Sprintf("%s %v, codes %s, activations %s, %d rows, %d tokens", k.Name, typ, pattern, name, r, u))
							}
						}
					}
				}
			}
		}
	}
}

// TestFloatsExtremes does the same for float weights, whose sums have another order in every set: infinite and NaN elements wherever a
// row has room for them, the part that fills no vector included, and elements so small that they are subnormal.
func TestFloatsExtremes(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	for _, typ := range []dtype.Type{dtype.F32, dtype.F16, dtype.BF16} {
		for _, n := range []int{1, 7, 8, 17, 31, 64, 100} {
			for _, special := range [][2]float32{{inf, 1}, {-inf, 1}, {nan, 1}, {inf, -inf}, {inf, 0}} {
				w, x := make([]float32, n*n), make([]float32, n*n) // row r of either has its special number at r
				for i := range w {
					w[i], x[i] = 0x1p-15, 0x1p-10 // subnormal as F16, and exact in any order of adding
					if i/n == i%n {
						w[i], x[i] = special[0], special[1]
					}
				}
				raw := make([]byte, n*n*typ.BlockBytes()+1)[1:]
				for i, v := range w {
					switch typ {
					case dtype.F32:
						binary.LittleEndian.PutUint32(raw[4*i:], math.Float32bits(v))
					case dtype.F16:
						binary.LittleEndian.PutUint16(raw[2*i:], floatToHalf(v))
					case dtype.BF16:
						binary.LittleEndian.PutUint16(raw[2*i:], uint16(math.Float32bits(v)>>16))
					}
				}
				act, stride := activations(Reference(), typ, x, n)
				want := product(Reference(), typ, raw, n, n, act, stride, n)
				for _, k := range Sets()[1:] {
					sameBits(t, want, product(k, typ, raw, n, n, act, stride, n), fmt.Sprintf("%s %v, n %d, %v", k.Name, typ, n, special))
				}
			}
		}
	}
	// The least of all numbers times one: nothing is flushed to zero.
	for _, k := range Sets() {
		least := math.Float32frombits(1)
		act, stride := activations(k, dtype.F32, []float32{1, 1, 1, 1, 1, 1, 1, 1, 1}, 9)
		w := floatBytes([]float32{0, 0, 0, 0, 0, least, 0, 0, least})
		if got := product(k, dtype.F32, w, 1, 9, act, stride, 1)[0]; got != 2*least {
			t.Errorf("%s: the sum of two subnormal numbers is %v", k.Name, got)
		}
	}
}
