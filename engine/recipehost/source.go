package recipehost

import (
	"github.com/bigmoe/bigmoe/engine/gguf"
)

// Source is what a recipe may know of a model file.
type Source interface {
	// Meta returns the value of a metadata key and whether there is one.
	Meta(key string) (Meta, bool)
	// Keys returns the metadata keys in file order.
	Keys() []string
	// Tensors returns all tensors. The slice is not modified.
	Tensors() []gguf.Tensor
}

// Meta is one metadata value. An array has Len elements, any other value one.
type Meta struct {
	Type  gguf.ValueType // of the value or its elements
	Array bool
	Len   int

	// The elements, all Len of them: Ints for whole numbers and truth values (0, 1), Floats, or Texts. They are read when
	// asked for, since most arrays, such as the vocabulary, are never looked into.
	Ints   func() ([]int64, error)
	Floats func() ([]float64, error)
	Texts  func() ([]string, error)
}

// File is the Source of an open model file.
func File(f *gguf.File) Source { return file{f} }

type file struct{ f *gguf.File }

func (s file) Tensors() []gguf.Tensor { return s.f.Tensors() }
func (s file) Keys() []string         { return s.f.Keys() }

func (s file) Meta(key string) (Meta, bool) {
	v, ok := s.f.Get(key)
	if !ok {
		return Meta{}, false
	}
	m := Meta{Len: v.Len()}
	m.Type, m.Array = v.Type()
	m.Ints = func() ([]int64, error) {
		if m.Type == gguf.Uint64 { // the bits count: a recipe reads them as unsigned
			u, err := v.Uints()
			out := make([]int64, len(u))
			for i := range u {
				out[i] = int64(u[i])
			}
			return out, err
		}
		if m.Type == gguf.Bool {
			b, err := v.Bools()
			out := make([]int64, len(b))
			for i := range b {
				if b[i] {
					out[i] = 1
				}
			}
			return out, err
		}
		return v.Ints()
	}
	m.Floats, m.Texts = v.Floats, v.Strings
	return m, true
}

// Override is src with some integer keys replaced, which is how a lossy option such as fewer experts reaches a recipe.
func Override(src Source, values map[string]uint64) Source { return override{src, values} }

type override struct {
	Source
	values map[string]uint64
}

func (s override) Meta(key string) (Meta, bool) {
	n, ok := s.values[key]
	if !ok {
		return s.Source.Meta(key)
	}
	return Meta{Type: gguf.Uint64, Len: 1, Ints: func() ([]int64, error) { return []int64{int64(n)}, nil }}, true
}
