package kernel

import (
	"encoding/binary"
	"math"

	"github.com/bigmoe/bigmoe/sdk/dtype"
)

// format is what the reference knows about a weight type: how a row decodes (specs/quants.md 2 and 3) and how it
// multiplies an activation row (specs/quants.md 4).
type format struct {
	act                    Act
	blockElems, blockBytes int
	decode                 func(dst []float32, src []byte)
	dot                    func(w, act []byte, n int) float32
}

func formatOf(t dtype.Type) *format {
	switch t {
	case dtype.F32:
		return &formatF32
	case dtype.F16:
		return &formatF16
	case dtype.BF16:
		return &formatBF16
	case dtype.Q8_0:
		return &formatQ8_0
	case dtype.Q4_0:
		return &formatQ4_0
	case dtype.Q4_1:
		return &formatQ4_1
	case dtype.Q5_0:
		return &formatQ5_0
	case dtype.Q5_1:
		return &formatQ5_1
	case dtype.IQ4_NL:
		return &formatIQ4_NL
	case dtype.MXFP4:
		return &formatMXFP4
	case dtype.NVFP4:
		return &formatNVFP4
	case dtype.Q1_0:
		return &formatQ1_0
	case dtype.Q2_0:
		return &formatQ2_0
	case dtype.Q2_K:
		return &formatQ2_K
	case dtype.Q3_K:
		return &formatQ3_K
	case dtype.Q4_K:
		return &formatQ4_K
	case dtype.Q5_K:
		return &formatQ5_K
	case dtype.Q6_K:
		return &formatQ6_K
	case dtype.IQ4_XS:
		return &formatIQ4_XS
	case dtype.TQ1_0:
		return &formatTQ1_0
	case dtype.TQ2_0:
		return &formatTQ2_0
	case dtype.IQ1_S:
		return &formatIQ1_S
	case dtype.IQ1_M:
		return &formatIQ1_M
	case dtype.IQ2_XXS:
		return &formatIQ2_XXS
	case dtype.IQ2_XS:
		return &formatIQ2_XS
	case dtype.IQ2_S:
		return &formatIQ2_S
	case dtype.IQ3_XXS:
		return &formatIQ3_XXS
	case dtype.IQ3_S:
		return &formatIQ3_S
	}
	return nil
}

var (
	formatF32     = format{ActF32, 1, 4, decodeF32, dotF32}
	formatF16     = format{ActF32, 1, 2, decodeF16, dotF16}
	formatBF16    = format{ActF32, 1, 2, decodeBF16, dotBF16}
	formatQ8_0    = format{ActQ8_0, 32, 34, blocks32(34, codesQ8_0), dotsQ8_0(34, codesQ8_0)}
	formatQ4_0    = format{ActQ8_0, 32, 18, blocks32(18, codesQ4_0), dotsQ8_0(18, codesQ4_0)}
	formatQ5_0    = format{ActQ8_0, 32, 22, blocks32(22, codesQ5_0), dotsQ8_0(22, codesQ5_0)}
	formatIQ4_NL  = format{ActQ8_0, 32, 18, blocks32(18, codesIQ4_NL), dotsQ8_0(18, codesIQ4_NL)}
	formatMXFP4   = format{ActQ8_0, 32, 17, blocks32(17, codesMXFP4), dotsQ8_0(17, codesMXFP4)}
	formatQ4_1    = format{ActQ8_1, 32, 20, blocks32m(20, codesQ4_1), dotsQ8_1(20, codesQ4_1)}
	formatQ5_1    = format{ActQ8_1, 32, 24, blocks32m(24, codesQ5_1), dotsQ8_1(24, codesQ5_1)}
	formatNVFP4   = format{ActQ8_0, 64, 36, decodeNVFP4, dotNVFP4}
	formatQ1_0    = format{ActQ8_0, 128, 18, decodeWide(128, codesQ1_0), dotWide(128, codesQ1_0)}
	formatQ2_0    = format{ActQ8_0, 64, 18, decodeWide(64, codesQ2_0), dotWide(64, codesQ2_0)}
	formatQ2_K    = format{ActQ8_K, 256, 84, decodeQ2_K, dotQ2_K}
	formatQ4_K    = format{ActQ8_K, 256, 144, decodeK45(144, codesQ4_K), dotK45(144, codesQ4_K)}
	formatQ5_K    = format{ActQ8_K, 256, 176, decodeK45(176, codesQ5_K), dotK45(176, codesQ5_K)}
	formatQ3_K    = scaled(110, codesQ3_K)
	formatQ6_K    = scaled(210, codesQ6_K)
	formatIQ4_XS  = scaled(136, codesIQ4_XS)
	formatTQ1_0   = scaled(54, codesTQ1_0)
	formatTQ2_0   = scaled(66, codesTQ2_0)
	formatIQ1_S   = scaled(50, codesIQ1_S)
	formatIQ1_M   = scaled(56, codesIQ1_M)
	formatIQ2_XXS = scaled(66, codesIQ2_XXS)
	formatIQ2_XS  = scaled(74, codesIQ2_XS)
	formatIQ2_S   = scaled(82, codesIQ2_S)
	formatIQ3_XXS = scaled(98, codesIQ3_XXS)
	formatIQ3_S   = scaled(110, codesIQ3_S)
)

func f16at(b []byte, off int) float32 { return halfToFloat(binary.LittleEndian.Uint16(b[off:])) }
func f32at(b []byte, off int) float32 {
	return math.Float32frombits(binary.LittleEndian.Uint32(b[off:]))
}

// Plain floats. The reference sums their products in float64.

func decodeF32(dst []float32, src []byte) {
	for i := range dst {
		dst[i] = f32at(src, 4*i)
	}
}

func decodeF16(dst []float32, src []byte) {
	for i := range dst {
		dst[i] = f16at(src, 2*i)
	}
}

func decodeBF16(dst []float32, src []byte) {
	for i := range dst {
		dst[i] = bfloatToFloat(binary.LittleEndian.Uint16(src[2*i:]))
	}
}

func dotF32(w, act []byte, n int) float32 {
	var sum float64
	for i := range n {
		sum += float64(f32at(w, 4*i)) * float64(f32at(act, 4*i))
	}
	return float32(sum)
}

func dotF16(w, act []byte, n int) float32 {
	var sum float64
	for i := range n {
		sum += float64(f16at(w, 2*i)) * float64(f32at(act, 4*i))
	}
	return float32(sum)
}

func dotBF16(w, act []byte, n int) float32 {
	var sum float64
	for i := range n {
		sum += float64(bfloatToFloat(binary.LittleEndian.Uint16(w[2*i:]))) * float64(f32at(act, 4*i))
	}
	return float32(sum)
}

// Blocks of 32. A codes function writes the 32 integer codes of block b and returns its scale (and offset).

type codesFunc func(q *[32]int8, b []byte) (d float32)
type codesOffsetFunc func(q *[32]int8, b []byte) (d, m float32)

func codesQ8_0(q *[32]int8, b []byte) float32 {
	for i, v := range b[2:34] {
		q[i] = int8(v)
	}
	return f16at(b, 0)
}

func nibbles(q *[32]int8, qs []byte, offset int8) {
	for i, v := range qs[:16] {
		q[i] = int8(v&15) - offset
		q[i+16] = int8(v>>4) - offset
	}
}

// fifthBits adds bit i of qh, times 16, to code i.
func fifthBits(q *[32]int8, qh uint32) {
	for i := range q {
		q[i] += int8(qh >> i & 1 << 4)
	}
}

func codesQ4_0(q *[32]int8, b []byte) float32 {
	nibbles(q, b[2:18], 8)
	return f16at(b, 0)
}

func codesQ5_0(q *[32]int8, b []byte) float32 {
	nibbles(q, b[6:22], 16)
	fifthBits(q, binary.LittleEndian.Uint32(b[2:]))
	return f16at(b, 0)
}

func codesQ4_1(q *[32]int8, b []byte) (d, m float32) {
	nibbles(q, b[4:20], 0)
	return f16at(b, 0), f16at(b, 2)
}

func codesQ5_1(q *[32]int8, b []byte) (d, m float32) {
	nibbles(q, b[8:24], 0)
	fifthBits(q, binary.LittleEndian.Uint32(b[4:]))
	return f16at(b, 0), f16at(b, 2)
}

// fp4 holds twice the E2M1 values; the factor 1/2 is in the scale.
var fp4 = [16]int8{0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12}

func codesMXFP4(q *[32]int8, b []byte) float32 {
	for i, v := range b[1:17] {
		q[i] = fp4[v&15]
		q[i+16] = fp4[v>>4]
	}
	return halfE8M0(b[0])
}

// nonlinear4 holds the values of IQ4_NL and IQ4_XS codes.
var nonlinear4 = [16]int8{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}

func codesIQ4_NL(q *[32]int8, b []byte) float32 {
	for i, v := range b[2:18] {
		q[i] = nonlinear4[v&15]
		q[i+16] = nonlinear4[v>>4]
	}
	return f16at(b, 0)
}

// halfE8M0 returns 2^(e-128), half of the E8M0 scale e. 255 is NaN in the OCP standard and here: no legal file has it.
func halfE8M0(e byte) float32 {
	switch {
	case e < 2: // subnormal
		return math.Float32frombits(0x00200000 << e)
	case e == 255:
		return nan32
	}
	return math.Float32frombits(uint32(e-1) << 23)
}

func blocks32(blockBytes int, codes codesFunc) func(dst []float32, src []byte) {
	return func(dst []float32, src []byte) {
		var q [32]int8
		for ; len(dst) > 0; dst, src = dst[32:], src[blockBytes:] {
			d := codes(&q, src)
			for i, v := range q {
				dst[i] = d * float32(v)
			}
		}
	}
}

func blocks32m(blockBytes int, codes codesOffsetFunc) func(dst []float32, src []byte) {
	return func(dst []float32, src []byte) {
		var q [32]int8
		for ; len(dst) > 0; dst, src = dst[32:], src[blockBytes:] {
			d, m := codes(&q, src)
			for i, v := range q {
				dst[i] = float32(d*float32(v)) + m
			}
		}
	}
}

// dotInts returns the exact sum of products of codes and activations.
func dotInts(q []int8, y []byte) int32 {
	var sum int32
	for i, v := range q {
		sum += int32(v) * int32(int8(y[i]))
	}
	return sum
}

func dotsQ8_0(blockBytes int, codes codesFunc) func(w, act []byte, n int) float32 {
	return func(w, act []byte, n int) float32 {
		var q [32]int8
		var acc float32
		for ; n > 0; n, w, act = n-32, w[blockBytes:], act[bytesQ8_0:] {
			d := codes(&q, w)
			sum := dotInts(q[:], act[2:34])
			acc += float32(float32(d*f16at(act, 0)) * float32(sum))
		}
		return acc
	}
}

func dotsQ8_1(blockBytes int, codes codesOffsetFunc) func(w, act []byte, n int) float32 {
	return func(w, act []byte, n int) float32 {
		var q [32]int8
		var acc float32
		for ; n > 0; n, w, act = n-32, w[blockBytes:], act[bytesQ8_1:] {
			d, m := codes(&q, w)
			sum := dotInts(q[:], act[4:36])
			acc += float32(float32(d*f16at(act, 0))*float32(sum)) + float32(m*f16at(act, 2))
		}
		return acc
	}
}

// Blocks of 64 and 128, each as long as several activation blocks.

// halfUE4M3 returns half of an unsigned E4M3 scale, whose bit 7 counts for nothing and whose NaN counts as 0.
func halfUE4M3(b byte) float32 {
	exp, mantissa := int(b>>3&15), float64(b&7)
	switch {
	case b&0x7f == 0x7f:
		return 0
	case exp == 0:
		return float32(math.Ldexp(mantissa, -10))
	}
	return float32(math.Ldexp(8+mantissa, exp-11))
}

// codesNVFP4 writes 16-element sub-blocks of 8 bytes each: low nibbles, then high ones.
func codesNVFP4(q *[64]int8, b []byte) {
	for i, v := range b[4:36] {
		at := i/8*16 + i%8
		q[at], q[at+8] = fp4[v&15], fp4[v>>4]
	}
}

func decodeNVFP4(dst []float32, src []byte) {
	var q [64]int8
	for ; len(dst) > 0; dst, src = dst[64:], src[36:] {
		codesNVFP4(&q, src)
		for i, v := range q {
			dst[i] = float32(v) * halfUE4M3(src[i/16])
		}
	}
}

func dotNVFP4(w, act []byte, n int) float32 {
	var q [64]int8
	var acc float32
	for ; n > 0; n, w, act = n-64, w[36:], act[2*bytesQ8_0:] {
		codesNVFP4(&q, w)
		for s := range 4 {
			y := act[s/2*bytesQ8_0:]
			sum := dotInts(q[16*s:16*s+16], y[2+s%2*16:])
			acc += float32(float32(halfUE4M3(w[s])*f16at(y, 0)) * float32(sum))
		}
	}
	return acc
}

func codesQ1_0(q []int8, b []byte) {
	for i := range q {
		q[i] = int8(b[2+i/8]>>(i%8)&1)*2 - 1
	}
}

func codesQ2_0(q []int8, b []byte) {
	for i := range q {
		q[i] = int8(b[2+i/4]>>(2*(i%4))&3) - 1
	}
}

// decodeWide and dotWide serve the 18-byte blocks of blockElems <= 128 elements with one scale.

func decodeWide(blockElems int, codes func(q []int8, b []byte)) func(dst []float32, src []byte) {
	return func(dst []float32, src []byte) {
		var buf [128]int8
		q := buf[:blockElems]
		for ; len(dst) > 0; dst, src = dst[blockElems:], src[18:] {
			codes(q, src)
			d := f16at(src, 0)
			for i, v := range q {
				dst[i] = d * float32(v)
			}
		}
	}
}

func dotWide(blockElems int, codes func(q []int8, b []byte)) func(w, act []byte, n int) float32 {
	return func(w, act []byte, n int) float32 {
		var buf [128]int8
		q := buf[:blockElems]
		var acc float32
		for ; n > 0; n, w = n-blockElems, w[18:] {
			codes(q, w)
			var sum float32
			for i := 0; i < blockElems; i, act = i+32, act[bytesQ8_0:] {
				sum += float32(f16at(act, 0) * float32(dotInts(q[i:i+32], act[2:34])))
			}
			acc += float32(f16at(w, 0) * sum)
		}
		return acc
	}
}
