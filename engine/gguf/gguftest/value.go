package gguftest

import "github.com/bigmoe/bigmoe/engine/gguf"

// Value returns a metadata value of a file as [Builder.Set] takes it. Numbers become int64 and float64, whatever they were.
func Value(v gguf.Value) (any, error) {
	elem, array := v.Type()
	switch {
	case elem == gguf.String && array:
		return v.Strings()
	case elem == gguf.String:
		return v.String()
	case elem == gguf.Bool && array:
		return v.Bools()
	case elem == gguf.Bool:
		return v.Bool()
	case elem == gguf.Float32 && array:
		return v.Floats()
	case elem == gguf.Float32:
		return v.Float()
	case array:
		return v.Ints()
	default:
		return v.Int()
	}
}
