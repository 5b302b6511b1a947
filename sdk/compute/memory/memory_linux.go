package memory

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

func anonymous() (*os.File, error) {
	fd, err := unix.MemfdCreate("bigmoe", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("memfd_create: %w", err)
	}
	return os.NewFile(uintptr(fd), "memfd:bigmoe"), nil
}

// seal fixes the size: otherwise a misbehaving process could cut the file short, and every other one would die of
// SIGBUS.
func seal(f *os.File) error {
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL); err != nil {
		return fmt.Errorf("seal: %w", err)
	}
	return nil
}

func (m *Memory) discard(off, n int64) error {
	if err := unix.Fallocate(int(m.file.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, n); err != nil {
		return fmt.Errorf("discard %d bytes at %d: %w", n, off, err)
	}
	return nil
}
