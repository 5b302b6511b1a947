package vfs

import (
	"errors"
	"fmt"
	"io"

	"golang.org/x/sys/unix"

	"github.com/bigmoe/bigmoe/sdk/fault"
)

// OS returns the file system of the machine.
func OS() FS { return osFS{} }

type osFS struct{}

type osFile struct {
	fd   int
	size int64
	mode Mode
}

var (
	_ FS   = osFS{}
	_ File = (*osFile)(nil)
)

func (osFS) Open(name string, mode Mode) (File, error) {
	flags := unix.O_RDONLY | unix.O_CLOEXEC
	if mode == Direct {
		flags |= unix.O_DIRECT
	}
	fd, err := openRetry(name, flags)
	if err != nil {
		if errors.Is(err, unix.ENOENT) {
			return nil, fault.Userf("open %s: %w", name, err)
		}
		return nil, fmt.Errorf("open %s (%s): %w", name, mode, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("stat %s: %w", name, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		unix.Close(fd)
		return nil, fault.Userf("open %s: not a regular file", name)
	}
	if mode == Buffered {
		// Read-ahead would fetch the neighbours of an expert, which are rarely wanted. Advice that is refused costs
		// speed, never correctness, so its error is of no use to anyone.
		_ = unix.Fadvise(fd, 0, 0, unix.FADV_RANDOM)
	}
	return &osFile{fd: fd, size: st.Size, mode: mode}, nil
}

func openRetry(name string, flags int) (int, error) {
	for {
		// O_NONBLOCK keeps the open of a FIFO from hanging; for regular files it means nothing.
		fd, err := unix.Open(name, flags|unix.O_NONBLOCK, 0)
		if err != unix.EINTR {
			return fd, err
		}
	}
}

func (f *osFile) Pread(p []byte, off int64) (int, error) {
	n, err := unix.Pread(f.fd, p, off)
	if err != nil {
		return 0, err
	}
	if n == 0 && len(p) > 0 {
		return 0, io.EOF
	}
	if f.mode == Buffered {
		// The kernel keeps pages that are only partly covered, so the range is widened to whole pages.
		from := off &^ (Align - 1)
		to := (off + int64(n) + Align - 1) &^ (Align - 1)
		_ = unix.Fadvise(f.fd, from, to-from, unix.FADV_DONTNEED)
	}
	return n, nil
}

func (f *osFile) Size() int64  { return f.size }
func (f *osFile) Mode() Mode   { return f.mode }
func (f *osFile) Close() error { return unix.Close(f.fd) }

// Interrupted reports whether err only says that a signal came first: try again.
func Interrupted(err error) bool { return errors.Is(err, unix.EINTR) }

// DiskError reports whether err is the device's own failure to read, which another try sometimes cures.
func DiskError(err error) bool { return errors.Is(err, unix.EIO) }

// Refused reports whether err says that the system does not take a read of this shape, as direct reads may be.
func Refused(err error) bool { return errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) }
