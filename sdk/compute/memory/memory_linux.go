package memory

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

func anonymous(bytes int64) (*os.File, error) {
	fd, err := unix.MemfdCreate("bigmoe", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("memfd_create: %w", err)
	}
	f := os.NewFile(uintptr(fd), "memfd:bigmoe")
	if err := f.Truncate(bytes); err != nil {
		f.Close()
		return nil, err
	}
	// Without the seals a misbehaving process could cut the file short, and every other one would die of SIGBUS.
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL); err != nil {
		f.Close()
		return nil, fmt.Errorf("seal: %w", err)
	}
	return f, nil
}

func (m *Memory) discard(off, n int64) error {
	if err := unix.Fallocate(int(m.file.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, n); err != nil {
		return fmt.Errorf("discard %d bytes at %d: %w", n, off, err)
	}
	return nil
}
