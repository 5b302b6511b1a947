package kernel

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/bigmoe/bigmoe/sdk/dtype"
)

// Act is the format activations are rounded to, row by row, before they meet weights of some type (specs/quants.md 1.1,
// column Act). F32, F16 and BF16 weights take exact F32 activations.
type Act int

// The activation formats. Layouts: specs/quants.md 2 and 3.
const (
	ActF32  Act = iota // float32, little-endian
	ActQ8_0            // blocks of 32: f16 d, 32 int8
	ActQ8_1            // blocks of 32: f16 d, f16 d*sum, 32 int8
	ActQ8_K            // blocks of 256: f32 d, 256 int8, 16 int16 sums of 16
)

const (
	bytesQ8_0 = 34
	bytesQ8_1 = 36
	bytesQ8_K = 292
)

// ActFor returns the activation format for weights of type t. ok is false when no kernel multiplies t.
func ActFor(t dtype.Type) (a Act, ok bool) {
	f := formatOf(t)
	if f == nil {
		return 0, false
	}
	return f.act, true
}

// BlockElems returns the elements that share one scale: row lengths must be a multiple of it.
func (a Act) BlockElems() int {
	switch a {
	case ActQ8_0, ActQ8_1:
		return 32
	case ActQ8_K:
		return 256
	}
	return 1
}

// RowBytes returns the bytes of a row of n elements; n is a multiple of BlockElems.
func (a Act) RowBytes(n int) int {
	switch a {
	case ActQ8_0:
		return n / 32 * bytesQ8_0
	case ActQ8_1:
		return n / 32 * bytesQ8_1
	case ActQ8_K:
		return n / 256 * bytesQ8_K
	}
	return 4 * n
}

// String returns the name used in messages, such as Q8_K.
func (a Act) String() string {
	switch a {
	case ActF32:
		return "F32"
	case ActQ8_0:
		return "Q8_0"
	case ActQ8_1:
		return "Q8_1"
	case ActQ8_K:
		return "Q8_K"
	}
	return fmt.Sprintf("activation format %d", int(a))
}

// checkQuantize panics unless dst holds a row of len(x) activations in format a, len(x) a multiple of the block.
func checkQuantize(a Act, dst []byte, x []float32) {
	if len(x)%a.BlockElems() != 0 {
		panic(fmt.Sprintf("kernel: a row of %d activations is not a multiple of the %d-element block of %v", len(x), a.BlockElems(), a))
	}
	_ = dst[:a.RowBytes(len(x))]
}

// quantize is the reference of Set.Quantize (specs/quants.md 5). All arithmetic is float32, in the order written, and
// every implementation must produce the same bytes. The specification leaves open what is not a number: a block with
// an Inf or a NaN gets scale NaN and zero codes, so that the damage shows in every product instead of hiding in one.
// An inverse scale that would overflow (all of the block below about 1e-36) counts as 0.
func quantize(a Act, dst []byte, x []float32) {
	checkQuantize(a, dst, x)
	switch a {
	case ActF32:
		for i, v := range x {
			binary.LittleEndian.PutUint32(dst[4*i:], math.Float32bits(v))
		}
	case ActQ8_0:
		for ; len(x) > 0; x, dst = x[32:], dst[bytesQ8_0:] {
			d, _ := quantizeBlock(dst[2:34], x[:32])
			binary.LittleEndian.PutUint16(dst, floatToHalf(d))
		}
	case ActQ8_1:
		for ; len(x) > 0; x, dst = x[32:], dst[bytesQ8_1:] {
			d, sum := quantizeBlock(dst[4:36], x[:32])
			binary.LittleEndian.PutUint16(dst, floatToHalf(d))
			binary.LittleEndian.PutUint16(dst[2:], floatToHalf(float32(sum)*d))
		}
	case ActQ8_K:
		for ; len(x) > 0; x, dst = x[256:], dst[bytesQ8_K:] {
			quantizeSuperBlock(dst[:bytesQ8_K], x[:256])
		}
	default:
		panic("kernel: unknown " + a.String())
	}
}

var nan32 = math.Float32frombits(0x7fc00000)

// largest returns the element with the largest magnitude, the first on ties; ok is false when one is not finite.
func largest(x []float32) (v float32, ok bool) {
	var top uint32 // magnitudes compare like the integers of their bits
	for _, e := range x {
		if abs := math.Float32bits(e) &^ (1 << 31); abs > top {
			top, v = abs, e
		}
	}
	return v, top < 0x7f800000
}

// inverse returns num/v, or 0 where that overflows or v is 0.
func inverse(num, v float32) float32 {
	if inv := num / v; v != 0 && !math.IsInf(float64(inv), 0) {
		return inv
	}
	return 0
}

// quantizeBlock writes the codes of 32 elements, ties away from zero, and returns the unrounded scale and the sum of
// the codes.
func quantizeBlock(q []byte, x []float32) (d float32, sum int) {
	top, ok := largest(x)
	if !ok {
		clear(q)
		return nan32, 0
	}
	d = float32(math.Abs(float64(top))) / 127
	inv := inverse(1, d)
	for i, v := range x {
		c := int(math.Round(float64(v * inv)))
		q[i] = byte(int8(c))
		sum += c
	}
	return d, sum
}

// quantizeSuperBlock writes one Q8_K block: ties to even, scale sign opposite to that of the largest element.
func quantizeSuperBlock(dst []byte, x []float32) {
	top, ok := largest(x)
	inv := inverse(-127, top)
	if !ok || inv == 0 {
		clear(dst)
		if !ok {
			binary.LittleEndian.PutUint32(dst, math.Float32bits(nan32))
		}
		return
	}
	binary.LittleEndian.PutUint32(dst, math.Float32bits(1/inv))
	for s := range 16 {
		sum := 0
		for i := 16 * s; i < 16*s+16; i++ {
			c := min(127, int(math.RoundToEven(float64(inv*x[i]))))
			dst[4+i] = byte(int8(c))
			sum += c
		}
		binary.LittleEndian.PutUint16(dst[260+2*s:], uint16(int16(sum)))
	}
}
