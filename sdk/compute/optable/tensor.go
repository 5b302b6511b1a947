package optable

import (
	"encoding/binary"
	"math"
	"math/rand/v2"

	"github.com/bigmoe/bigmoe/sdk/dtype"
	"github.com/bigmoe/bigmoe/sdk/plan"
)

func f32(name string, shape ...uint64) Tensor { return of(name, dtype.F32, shape...) }

func of(name string, t dtype.Type, shape ...uint64) Tensor {
	return Tensor{Name: name, Type: t, Shape: shape}
}

func kvState(name string, key, value uint64) *plan.State {
	return &plan.State{Name: name, Kind: plan.StateKind_KV, KeyWidth: key, ValueWidth: value}
}

// rows returns how many rows a tensor has.
func (w *Tensor) rows() int {
	rows := 1
	for _, d := range w.Shape[1:] {
		rows *= int(d)
	}
	return rows
}

// values returns the bytes of a tensor and what they decode to, row by row.
func (w *Tensor) values(rng *rand.Rand) (data []byte, decoded Matrix) {
	if w.data != nil {
		return w.data, w.decoded
	}
	n := int(w.Shape[0])
	for range w.rows() {
		x := make([]float64, n)
		for i := range x {
			x[i] = rng.NormFloat64()
		}
		data = encode(w.Type, data, x, rng)
		decoded = append(decoded, x)
	}
	return data, decoded
}

// encode appends x as type t, and makes x what the bytes decode to.
func encode(t dtype.Type, data []byte, x []float64, rng *rand.Rand) []byte {
	switch t {
	case dtype.I32: // different ids below 6
		for i, id := range rng.Perm(6)[:len(x)] {
			x[i] = float64(id)
			data = binary.LittleEndian.AppendUint32(data, uint32(id))
		}
	case dtype.F32:
		for i := range x {
			x[i] = float64(float32(x[i]))
			data = binary.LittleEndian.AppendUint32(data, math.Float32bits(float32(x[i])))
		}
	case dtype.BF16:
		for i := range x {
			high := math.Float32bits(float32(x[i])) >> 16
			x[i] = float64(math.Float32frombits(high << 16))
			data = binary.LittleEndian.AppendUint16(data, uint16(high))
		}
	case dtype.F16:
		for i := range x {
			var bits uint16
			x[i], bits = half(x[i])
			data = binary.LittleEndian.AppendUint16(data, bits)
		}
	case dtype.Q8_0:
		for ; len(x) > 0; x = x[32:] {
			top := 0.0
			for _, v := range x[:32] {
				top = max(top, math.Abs(v))
			}
			scale, bits := half(top / 127)
			data = binary.LittleEndian.AppendUint16(data, bits)
			for i, v := range x[:32] {
				q := min(max(math.Round(v/scale), -127), 127)
				x[i] = q * scale
				data = append(data, byte(int8(q)))
			}
		}
	default:
		panic("optable: no encoder for " + t.String())
	}
	return data
}

// half cuts a number down to the precision of a 16-bit float; those below its normal range become 0.
func half(x float64) (float64, uint16) {
	bits := math.Float32bits(float32(x)) &^ (1<<13 - 1)
	exponent := int(bits>>23&255) - 127 + 15
	if exponent <= 0 {
		return 0, uint16(bits >> 31 << 15)
	}
	return float64(math.Float32frombits(bits)), uint16(bits>>31<<15 | uint32(exponent)<<10 | bits>>13&1023)
}
