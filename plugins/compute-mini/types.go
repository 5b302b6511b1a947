package main

import (
	"encoding/binary"
	"math"
)

// blocks are the types of weights, by GGUF id.
var blocks = map[uint64]struct {
	elems, bytes uint64
	decode       func(y []float32, b []byte)
}{
	0: {1, 4, func(y []float32, b []byte) { y[0] = math.Float32frombits(binary.LittleEndian.Uint32(b)) }},
	1: {1, 2, func(y []float32, b []byte) { y[0] = half(binary.LittleEndian.Uint16(b)) }},
	8: {32, 34, func(y []float32, b []byte) {
		scale := half(binary.LittleEndian.Uint16(b))
		for i := range y {
			y[i] = scale * float32(int8(b[2+i]))
		}
	}},
}

// half decodes an IEEE binary16 number.
func half(h uint16) float32 {
	sign, exponent, fraction := uint32(h)>>15<<31, int(h>>10&31), uint32(h&1023)
	switch exponent {
	case 0:
		x := float32(fraction) / (1 << 24)
		if sign != 0 {
			x = -x
		}
		return x
	case 31:
		return math.Float32frombits(sign | 255<<23 | fraction<<13)
	}
	return math.Float32frombits(sign | uint32(exponent+112)<<23 | fraction<<13)
}

// decodeRow decodes a row of a weight.
func decodeRow(typ uint64, y []float32, row []byte) {
	block := blocks[typ]
	for len(y) > 0 {
		block.decode(y[:block.elems], row[:block.bytes])
		y, row = y[block.elems:], row[block.bytes:]
	}
}

// matrix is rows of a weight, as they are in the region.
type matrix struct {
	typ, in, rowBytes uint64
	data              []byte
}

// times multiplies the rows from first on with x; one for each element of y.
func (w matrix) times(y []float64, x []float32, first int) {
	row := make([]float32, w.in)
	for o := range y {
		decodeRow(w.typ, row, w.data[uint64(first+o)*w.rowBytes:][:w.rowBytes])
		var sum float64
		for i, v := range row {
			sum += float64(v) * float64(x[i])
		}
		y[o] = sum
	}
}
