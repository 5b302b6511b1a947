//go:build !linux

package vfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"

	"github.com/bigmoe/bigmoe/sdk/fault"
)

// OS returns the file system of the machine.
func OS() FS { return osFS{} }

type osFS struct{}

type osFile struct {
	file *os.File
	size int64
}

var (
	_ FS   = osFS{}
	_ File = (*osFile)(nil)
)

func (osFS) Open(name string, mode Mode) (File, error) {
	if mode == Direct {
		return nil, fmt.Errorf("open %s: %w", name, ErrNoDirect)
	}
	info, err := os.Stat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fault.Userf("%w", err)
	}
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fault.Userf("open %s: not a regular file", name)
	}
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	return &osFile{file: file, size: info.Size()}, nil
}

func (f *osFile) Pread(p []byte, off int64) (int, error) {
	n, err := f.file.ReadAt(p, off)
	if n > 0 && errors.Is(err, io.EOF) {
		err = nil
	}
	return n, err
}

func (f *osFile) Size() int64  { return f.size }
func (f *osFile) Mode() Mode   { return Buffered }
func (f *osFile) Close() error { return f.file.Close() }

// Interrupted reports whether err only says that a signal came first: try again.
func Interrupted(err error) bool { return errors.Is(err, syscall.EINTR) }

// DiskError reports whether err is the device's own failure to read, which another try sometimes cures.
func DiskError(err error) bool { return errors.Is(err, syscall.EIO) }

// Refused reports whether err says that the system does not take a read of this shape, as direct reads may be.
func Refused(err error) bool { return errors.Is(err, syscall.EINVAL) }
