// Package vfs is the file system that the expert reader sees: a few calls, each with the failures of a real disk, so
// that tests can inject them (package errfs).
//
//	f, err := vfs.OS().Open("model.gguf", vfs.Direct)
//	n, err := f.Pread(buf, off) // one system call: n may be short
//
// # Caveats
//
// Direct reads go around the page cache. Buffer address, length and file offset must all be multiples of [Align].
// A file system may accept the open and then fail the reads, or return wrong bytes: call [Probe] before trusting it.
// Buffered files drop the pages they read from the page cache, so that reading a model does not grow the memory charged
// to us; pages that somebody has mapped stay.
//
// # Concurrency
//
// Everything is safe for concurrent use, except that Close must come after the last Pread has returned.
package vfs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"unsafe"
)

// Align is the alignment of direct reads in bytes. Devices have blocks of 512 or 4096 bytes; 4096 serves both, and
// costs an expert part of 1 MB less than 0.5 % more bytes.
const Align = 4096

// Mode says how a file is read.
type Mode int

const (
	Buffered Mode = iota // through the page cache
	Direct               // around the page cache (O_DIRECT)
)

// String returns "buffered" or "direct".
func (m Mode) String() string {
	if m == Direct {
		return "direct"
	}
	return "buffered"
}

// ErrNoDirect is what Open wraps where the system has no direct reads at all.
var ErrNoDirect = errors.New("direct reads are not supported on this system")

// FS opens files for reading.
type FS interface {
	// Open opens a regular file in exactly the mode asked for; there is no silent fallback.
	Open(name string, mode Mode) (File, error)
}

// File is a regular file open for reading.
type File interface {
	// Pread reads at most len(p) bytes at offset off with one system call. It may read less, with or without an error.
	// At or after the end of the file it returns 0, io.EOF. It does not retry: EINTR and short reads reach the caller.
	Pread(p []byte, off int64) (n int, err error)
	// Size is the length in bytes when the file was opened.
	Size() int64
	// Mode is the mode the file was opened in.
	Mode() Mode
	// Close releases the file.
	Close() error
}

// AlignedBuffer returns n zero bytes whose address is a multiple of [Align].
func AlignedBuffer(n int) []byte {
	raw := make([]byte, n+Align)
	skip := int(-uintptr(unsafe.Pointer(unsafe.SliceData(raw))) & (Align - 1))
	return raw[skip : skip+n : skip+n]
}

// Probe reads the first, the middle and the last block of a file through both of its handles and returns an error if
// direct reads fail or give other bytes. It costs six reads of 4 KiB.
func Probe(direct, buffered File) error {
	size := buffered.Size()
	if direct.Size() != size {
		return fmt.Errorf("direct handle sees %d bytes, buffered %d", direct.Size(), size)
	}
	if size == 0 {
		return errors.New("file is empty")
	}
	got, want := AlignedBuffer(Align), make([]byte, Align)
	for _, off := range []int64{0, size / 2 &^ (Align - 1), (size - 1) &^ (Align - 1)} {
		n := int(min(Align, size-off))
		if err := readFull(direct, got, n, off); err != nil {
			return fmt.Errorf("direct read of %d bytes at %d: %w", Align, off, err)
		}
		if err := readFull(buffered, want[:n], n, off); err != nil {
			return fmt.Errorf("buffered read of %d bytes at %d: %w", n, off, err)
		}
		if !bytes.Equal(got[:n], want[:n]) {
			return fmt.Errorf("direct read at %d gives other bytes than a buffered one", off)
		}
	}
	return nil
}

// probeTries bounds the calls for one block, so that a disk that only ever interrupts cannot hang an open.
const probeTries = 8

// readFull reads the block p at off and wants its first n bytes. A short direct read starts over, because the rest of
// a block has no aligned address.
func readFull(f File, p []byte, n int, off int64) error {
	var err error
	var got int
	for range probeTries {
		got, err = f.Pread(p, off)
		if got >= n {
			return nil
		}
		if err != nil && !Interrupted(err) {
			return err
		}
	}
	if err == nil {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("got %d of %d bytes: %w", got, n, err)
}
