//go:build !unix

package arena

import "unsafe"

func allocate(size int) ([]byte, error) {
	b := make([]byte, size+Align)
	skip := -int(uintptr(unsafe.Pointer(&b[0]))) & (Align - 1)
	return b[skip : skip+size], nil
}

func free([]byte) error { return nil }
