package gguftest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"

	"github.com/bigmoe/bigmoe/sdk/dtype"
)

// Raw is a metadata value in its encoded form: the type id and the bytes after it, whatever they are.
type Raw struct {
	Type  uint32
	Bytes []byte
}

type pair struct {
	key   string
	value any
}

type tensor struct {
	name string
	typ  dtype.Type
	dims []uint64
	data []byte
}

// Builder collects the contents of a model file.
type Builder struct {
	pairs   []pair
	tensors []tensor
}

// NewBuilder returns a builder of an empty file.
func NewBuilder() *Builder { return &Builder{} }

// Clone returns a copy; data and values are shared.
func (b *Builder) Clone() *Builder {
	return &Builder{pairs: slices.Clone(b.pairs), tensors: slices.Clone(b.tensors)}
}

// Set adds a metadata value. Its Go type decides the type in the file: uint8 to uint64, int8 to int64, float32,
// float64, bool, string, a slice of any of these, or [Raw]; another type makes the writing methods fail. A
// uint32 called general.alignment also aligns the data; 0 is written and otherwise ignored.
func (b *Builder) Set(key string, value any) *Builder {
	if i := slices.IndexFunc(b.pairs, func(p pair) bool { return p.key == key }); i >= 0 {
		b.pairs[i].value = value
	} else {
		b.pairs = append(b.pairs, pair{key, value})
	}
	return b
}

// Tensor adds a tensor with dims in the order of the file, the row length first.
func (b *Builder) Tensor(name string, typ dtype.Type, dims []uint64, data []byte) *Builder {
	t := tensor{name, typ, dims, data}
	if i := slices.IndexFunc(b.tensors, func(t tensor) bool { return t.name == name }); i >= 0 {
		b.tensors[i] = t
	} else {
		b.tensors = append(b.tensors, t)
	}
	return b
}

// Drop removes the metadata value or the tensor called name, if there is one.
func (b *Builder) Drop(name string) *Builder {
	b.pairs = slices.DeleteFunc(b.pairs, func(p pair) bool { return p.key == name })
	b.tensors = slices.DeleteFunc(b.tensors, func(t tensor) bool { return t.name == name })
	return b
}

// Bytes returns the file.
func (b *Builder) Bytes() ([]byte, error) {
	out, align, err := b.head(func(t tensor) (int64, error) { return int64(len(t.data)), nil })
	if err != nil {
		return nil, err
	}
	for _, t := range b.tensors {
		out = append(out, make([]byte, padding(int64(len(out)), align))...)
		out = append(out, t.data...)
	}
	return append(out, make([]byte, padding(int64(len(out)), align))...), nil
}

// WriteHead writes the file with a hole in place of all data, which takes no room on most disks. Tensors have the size
// that their type and dimensions say.
func (b *Builder) WriteHead(path string) error {
	var sizes []int64
	head, align, err := b.head(func(t tensor) (int64, error) {
		n, err := t.typ.RowBytes(int64(t.dims[0]))
		for _, d := range t.dims[1:] {
			if n > 0 && d > uint64(math.MaxInt64/n) {
				return 0, fmt.Errorf("tensor %q is too large", t.name)
			}
			n *= int64(d)
		}
		sizes = append(sizes, n)
		return n, err
	})
	if err != nil {
		return err
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	end := int64(len(head)) + padding(int64(len(head)), align)
	for _, n := range sizes {
		end += n + padding(n, align)
	}
	_, err = f.Write(head)
	return errors.Join(err, f.Truncate(end), f.Close())
}

// head returns the file up to the data and its alignment; sizeBytes is asked for the size of each tensor.
func (b *Builder) head(sizeBytes func(tensor) (int64, error)) (out []byte, align int64, err error) {
	out = []byte("GGUF")
	out = binary.LittleEndian.AppendUint32(out, 3)
	out = binary.LittleEndian.AppendUint64(out, uint64(len(b.tensors)))
	out = binary.LittleEndian.AppendUint64(out, uint64(len(b.pairs)))
	align = 32
	for _, p := range b.pairs {
		if a, ok := p.value.(uint32); ok && p.key == "general.alignment" && a > 0 {
			align = int64(a)
		}
		out = appendString(out, p.key)
		if out, err = appendValue(out, p.value); err != nil {
			return nil, 0, fmt.Errorf("key %q: %w", p.key, err)
		}
	}
	var offset int64
	for _, t := range b.tensors {
		out = appendString(out, t.name)
		out = binary.LittleEndian.AppendUint32(out, uint32(len(t.dims)))
		for _, d := range t.dims {
			out = binary.LittleEndian.AppendUint64(out, d)
		}
		out = binary.LittleEndian.AppendUint32(out, uint32(t.typ))
		out = binary.LittleEndian.AppendUint64(out, uint64(offset))
		n, err := sizeBytes(t)
		if err != nil {
			return nil, 0, fmt.Errorf("tensor %q: %w", t.name, err)
		}
		offset += n + padding(n, align)
	}
	return out, align, nil
}

// Write writes the file.
func (b *Builder) Write(path string) error {
	data, err := b.Bytes()
	if err != nil {
		return err
	}
	return os.WriteFile(path, data, 0o644)
}

// WriteSplit writes the model as len(counts) shards called PREFIX-00001-of-0000N.gguf in dir, with counts[i] tensors
// in shard i, and returns their paths. Metadata goes into the first one, which may hold no tensor.
func (b *Builder) WriteSplit(dir, prefix string, counts ...int) ([]string, error) {
	var paths []string
	from := 0
	for i, n := range counts {
		if from+n > len(b.tensors) || i == len(counts)-1 && from+n != len(b.tensors) {
			return nil, fmt.Errorf("counts %v do not add up to %d tensors", counts, len(b.tensors))
		}
		s := NewBuilder()
		if i == 0 {
			s.pairs = slices.Clone(b.pairs)
		}
		s.Set("split.no", uint16(i)).Set("split.count", uint16(len(counts))).Set("split.tensors.count", int32(len(b.tensors)))
		s.tensors = b.tensors[from : from+n]
		from += n
		path := filepath.Join(dir, fmt.Sprintf("%s-%05d-of-%05d.gguf", prefix, i+1, len(counts)))
		if err := s.Write(path); err != nil {
			return nil, err
		}
		paths = append(paths, path)
	}
	return paths, nil
}

// Float32s returns the bytes of an F32 tensor.
func Float32s(values ...float32) []byte {
	var out []byte
	for _, v := range values {
		out = binary.LittleEndian.AppendUint32(out, math.Float32bits(v))
	}
	return out
}

func padding(n, align int64) int64 { return (align - n%align) % align }

func appendString(out []byte, s string) []byte {
	return append(binary.LittleEndian.AppendUint64(out, uint64(len(s))), s...)
}

func appendValue(out []byte, value any) ([]byte, error) {
	switch v := value.(type) {
	case Raw:
		return append(binary.LittleEndian.AppendUint32(out, v.Type), v.Bytes...), nil
	case string:
		return appendString(binary.LittleEndian.AppendUint32(out, 8), v), nil
	case []string:
		out = appendArrayHead(out, 8, len(v))
		for _, s := range v {
			out = appendString(out, s)
		}
		return out, nil
	}
	id, count, array := numbers(value)
	if id < 0 {
		return nil, fmt.Errorf("values of type %T cannot be written", value)
	}
	if array {
		out = appendArrayHead(out, id, count)
	} else {
		out = binary.LittleEndian.AppendUint32(out, uint32(id))
	}
	return binary.Append(out, binary.LittleEndian, value)
}

func appendArrayHead(out []byte, id, count int) []byte {
	out = binary.LittleEndian.AppendUint32(out, 9)
	out = binary.LittleEndian.AppendUint32(out, uint32(id))
	return binary.LittleEndian.AppendUint64(out, uint64(count))
}

// numbers returns the type id of specs/gguf.md 1.4 for a number or a slice of them, -1 for anything else.
func numbers(value any) (id, count int, array bool) {
	switch v := value.(type) {
	case uint8:
		return 0, 1, false
	case int8:
		return 1, 1, false
	case uint16:
		return 2, 1, false
	case int16:
		return 3, 1, false
	case uint32:
		return 4, 1, false
	case int32:
		return 5, 1, false
	case float32:
		return 6, 1, false
	case bool:
		return 7, 1, false
	case uint64:
		return 10, 1, false
	case int64:
		return 11, 1, false
	case float64:
		return 12, 1, false
	case []uint8:
		return 0, len(v), true
	case []int8:
		return 1, len(v), true
	case []uint16:
		return 2, len(v), true
	case []int16:
		return 3, len(v), true
	case []uint32:
		return 4, len(v), true
	case []int32:
		return 5, len(v), true
	case []float32:
		return 6, len(v), true
	case []bool:
		return 7, len(v), true
	case []uint64:
		return 10, len(v), true
	case []int64:
		return 11, len(v), true
	case []float64:
		return 12, len(v), true
	}
	return -1, 0, false
}
