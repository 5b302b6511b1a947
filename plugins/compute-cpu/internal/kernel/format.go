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
	case dtype.MXFP4:
		return &formatMXFP4
	case dtype.Q4_K:
		return &formatQ4_K
	case dtype.Q5_K:
		return &formatQ5_K
	case dtype.Q6_K:
		return &formatQ6_K
	}
	return nil
}

var (
	formatF32   = format{ActF32, 1, 4, decodeF32, dotF32}
	formatF16   = format{ActF32, 1, 2, decodeF16, dotF16}
	formatBF16  = format{ActF32, 1, 2, decodeBF16, dotBF16}
	formatQ8_0  = format{ActQ8_0, 32, 34, blocks32(34, codesQ8_0), dotsQ8_0(34, codesQ8_0)}
	formatQ4_0  = format{ActQ8_0, 32, 18, blocks32(18, codesQ4_0), dotsQ8_0(18, codesQ4_0)}
	formatQ5_0  = format{ActQ8_0, 32, 22, blocks32(22, codesQ5_0), dotsQ8_0(22, codesQ5_0)}
	formatMXFP4 = format{ActQ8_0, 32, 17, blocks32(17, codesMXFP4), dotsQ8_0(17, codesMXFP4)}
	formatQ4_1  = format{ActQ8_1, 32, 20, blocks32m(20, codesQ4_1), dotsQ8_1(20, codesQ4_1)}
	formatQ5_1  = format{ActQ8_1, 32, 24, blocks32m(24, codesQ5_1), dotsQ8_1(24, codesQ5_1)}
	formatQ4_K  = format{ActQ8_K, 256, 144, decodeK45(144, codesQ4_K), dotK45(144, codesQ4_K)}
	formatQ5_K  = format{ActQ8_K, 256, 176, decodeK45(176, codesQ5_K), dotK45(176, codesQ5_K)}
	formatQ6_K  = format{ActQ8_K, 256, 210, decodeQ6_K, dotQ6_K}
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

// Super-blocks of 256.

// scalesK45 unpacks the eight 6-bit scales and mins of a Q4_K or Q5_K block.
func scalesK45(s []byte) (sc, mn [8]int32) {
	for b := range 4 {
		sc[b], mn[b] = int32(s[b]&63), int32(s[b+4]&63)
		sc[b+4] = int32(s[b+8]&15 | s[b]>>6<<4)
		mn[b+4] = int32(s[b+8]>>4 | s[b+4]>>6<<4)
	}
	return sc, mn
}

func codesQ4_K(q *[256]int8, b []byte) { nibblesK(q, b[16:144]) }

func codesQ5_K(q *[256]int8, b []byte) {
	nibblesK(q, b[48:176])
	for i := range q {
		q[i] += int8(b[16+i%32] >> (i / 32) & 1 << 4)
	}
}

func nibblesK(q *[256]int8, qs []byte) {
	for i, v := range qs {
		at := i/32*64 + i%32
		q[at], q[at+32] = int8(v&15), int8(v>>4)
	}
}

func decodeK45(blockBytes int, codes func(q *[256]int8, b []byte)) func(dst []float32, src []byte) {
	return func(dst []float32, src []byte) {
		var q [256]int8
		for ; len(dst) > 0; dst, src = dst[256:], src[blockBytes:] {
			codes(&q, src)
			d, dmin := f16at(src, 0), f16at(src, 2)
			sc, mn := scalesK45(src[4:16])
			for i, v := range q {
				dst[i] = float32(float32(d*float32(sc[i/32]))*float32(v)) - float32(dmin*float32(mn[i/32]))
			}
		}
	}
}

func dotK45(blockBytes int, codes func(q *[256]int8, b []byte)) func(w, act []byte, n int) float32 {
	return func(w, act []byte, n int) float32 {
		var q [256]int8
		var acc float32
		for ; n > 0; n, w, act = n-256, w[blockBytes:], act[bytesQ8_K:] {
			codes(&q, w)
			sc, mn := scalesK45(w[4:16])
			var sum, mins int32
			for b := range 8 {
				sum += sc[b] * dotInts(q[32*b:32*b+32], act[4+32*b:])
				mins += mn[b] * (bsum(act, 2*b) + bsum(act, 2*b+1))
			}
			acc += float32(f32at(act, 0) * (float32(f16at(w, 0)*float32(sum)) - float32(f16at(w, 2)*float32(mins))))
		}
		return acc
	}
}

// bsum returns the sum of codes 16*s .. 16*s+15 of a Q8_K block.
func bsum(act []byte, s int) int32 {
	return int32(int16(binary.LittleEndian.Uint16(act[260+2*s:])))
}

func codesQ6_K(q *[256]int8, b []byte) {
	for h := range 2 {
		ql, qh := b[64*h:], b[128+32*h:]
		for l := range 32 {
			at := 128*h + l
			q[at] = int8(ql[l]&15|qh[l]&3<<4) - 32
			q[at+32] = int8(ql[l+32]&15|qh[l]>>2&3<<4) - 32
			q[at+64] = int8(ql[l]>>4|qh[l]>>4&3<<4) - 32
			q[at+96] = int8(ql[l+32]>>4|qh[l]>>6<<4) - 32
		}
	}
}

func decodeQ6_K(dst []float32, src []byte) {
	var q [256]int8
	for ; len(dst) > 0; dst, src = dst[256:], src[210:] {
		codesQ6_K(&q, src)
		d := f16at(src, 208)
		for i, v := range q {
			dst[i] = d * float32(int8(src[192+i/16])) * float32(v)
		}
	}
}

func dotQ6_K(w, act []byte, n int) float32 {
	var q [256]int8
	var acc float32
	for ; n > 0; n, w, act = n-256, w[210:], act[bytesQ8_K:] {
		codesQ6_K(&q, w)
		var sum int32
		for s := range 16 {
			sum += int32(int8(w[192+s])) * dotInts(q[16*s:16*s+16], act[4+16*s:])
		}
		acc += float32(float32(f32at(act, 0)*f16at(w, 208)) * float32(sum))
	}
	return acc
}
