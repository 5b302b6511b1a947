// Package arena holds large buffers outside the Go heap, where the garbage collector does not count them twice and
// pages nobody touched cost nothing.
//
//	a, err := arena.New(1 << 30)
//	defer a.Close()
//	keys := arena.Slice[uint16](a, 0, 1<<20)
//
// # Caveats
//
// Slices of an arena must not be used after Close.
package arena

import (
	"fmt"
	"unsafe"
)

// Align is the alignment of an arena and a good one for what lies in it: a cache line, and the widest vector.
const Align = 64

// Arena is zeroed private memory of a fixed size.
type Arena struct {
	bytes []byte
}

// New maps size bytes. Physical memory is taken page by page, on the first write.
func New(size uint64) (*Arena, error) {
	if size > 1<<46 {
		return nil, fmt.Errorf("cannot allocate %d bytes", size)
	}
	if size == 0 {
		return &Arena{}, nil
	}
	b, err := allocate(int(size))
	if err != nil {
		return nil, fmt.Errorf("allocate %d bytes: %w", size, err)
	}
	return &Arena{bytes: b}, nil
}

// Bytes returns the whole arena.
func (a *Arena) Bytes() []byte { return a.bytes }

// Close gives the memory back.
func (a *Arena) Close() error {
	b := a.bytes
	a.bytes = nil
	if b == nil {
		return nil
	}
	return free(b)
}

// Number is an element type of a slice.
type Number interface {
	~uint8 | ~uint16 | ~int32 | ~float32
}

// Slice returns n elements at byte offset off, a multiple of the element size. It panics when they do not fit.
func Slice[T Number](a *Arena, off, n int) []T {
	return Cast[T](a.bytes[off:], n)
}

// Cast returns the first n elements of type T in b, which must be aligned for T. It panics when they do not fit.
func Cast[T Number](b []byte, n int) []T {
	var t T
	if n == 0 {
		return nil
	}
	b = b[:n*int(unsafe.Sizeof(t))]
	return unsafe.Slice((*T)(unsafe.Pointer(&b[0])), n)
}

// Bytes returns the memory of x.
func Bytes[T Number](x []T) []byte {
	if len(x) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(&x[0])), len(x)*int(unsafe.Sizeof(x[0])))
}
