package memory

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

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

// mapFile maps the first n bytes of f. The address is a multiple of hugeBytes, without which the kernel cannot map huge pages as
// such.
func mapFile(f *os.File, n int) ([]byte, error) {
	// Reserve more than is needed, put the file at the first aligned address and give the ends back.
	reserved, err := unix.MmapPtr(-1, 0, nil, uintptr(n)+hugeBytes, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, err
	}
	page := uintptr(os.Getpagesize())
	size := (uintptr(n) + page - 1) &^ (page - 1)
	skip := -uintptr(reserved) & (hugeBytes - 1)
	at := unsafe.Add(reserved, skip)
	if _, err := unix.MmapPtr(int(f.Fd()), 0, at, uintptr(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_FIXED); err != nil {
		return nil, errors.Join(err, unix.MunmapPtr(reserved, uintptr(n)+hugeBytes))
	}
	if skip > 0 {
		err = unix.MunmapPtr(reserved, skip)
	}
	if tail := (uintptr(n)+hugeBytes+page-1)&^(page-1) - skip - size; tail > 0 {
		err = errors.Join(err, unix.MunmapPtr(unsafe.Add(at, size), tail))
	}
	return unsafe.Slice((*byte)(at), n), err
}

func unmap(b []byte) error {
	return unix.MunmapPtr(unsafe.Pointer(unsafe.SliceData(b)), uintptr(len(b)))
}

// collapse makes b, a huge page's worth of memory, one page. Unlike MADV_HUGEPAGE this does not depend on how the system is set up
// (transparent_hugepage/shmem_enabled is "never" on most), but a range without any page is refused, so one is made first.
func collapse(b []byte) error {
	word := (*atomic.Uint32)(unsafe.Pointer(unsafe.SliceData(b)))
	word.Load()
	return unix.Madvise(b, unix.MADV_COLLAPSE)
}
