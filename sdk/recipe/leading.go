package recipe

import (
	"math"
	"strconv"
)

// LeadingUints is [Builder.PerLayer] for an array that may go on after the last layer, as where it also counts blocks
// that draft tokens: what is beyond layers is ignored.
func (b *Builder) LeadingUints(key string, layers, min, max int) []int {
	v := b.require(key).leading(layers)
	out := make([]int, layers)
	for i := range out {
		out[i] = v.uint(min32(int32(i), v.count-1), min, max)
	}
	return out
}

// LeadingFloatsOr returns one number for each layer. The key may hold one for all, or an array as in
// [Builder.LeadingUints]; missing stands for a missing key.
func (b *Builder) LeadingFloatsOr(key string, missing float64, layers int, min, max float64) []float64 {
	out := make([]float64, layers)
	if !b.Has(key) {
		for i := range out {
			out[i] = missing
		}
		return out
	}
	v := b.require(key).leading(layers)
	for i := range out {
		at := min32(int32(i), v.count-1)
		switch v.elem {
		case typeFloat32, typeFloat64:
			out[i] = b.host.metaFloat(v.handle, at)
		case typeString, typeBool:
			v.refuse("numbers", v.typeName())
		default:
			out[i] = float64(v.uint(at, math.MinInt, math.MaxInt))
		}
		if !(out[i] >= min && out[i] <= max) { // also refuses NaN
			v.refuse(formatFloat(min)+" to "+formatFloat(max), formatFloat(out[i]))
		}
	}
	return out
}

// leading refuses arrays that are too short.
func (v value) leading(layers int) value {
	if v.array && v.count != 1 && int(v.count) < layers {
		v.refuse("one number, or one for each of "+strconv.Itoa(layers)+" layers", v.typeName())
	}
	return v
}
