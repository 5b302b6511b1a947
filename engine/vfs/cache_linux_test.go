package vfs

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestBufferedLeavesNoCache reads a file through the page cache and asks the kernel which of its pages are still there.
func TestBufferedLeavesNoCache(t *testing.T) {
	name, data := write(t, 64*Align)
	fd, err := unix.Open(name, unix.O_RDWR, 0)
	require.NoError(t, err)
	defer unix.Close(fd)
	require.NoError(t, unix.Fsync(fd), "dirty pages cannot be dropped")
	require.NoError(t, unix.Fadvise(fd, 0, 0, unix.FADV_DONTNEED))
	m, err := unix.Mmap(fd, 0, len(data), unix.PROT_READ, unix.MAP_SHARED)
	require.NoError(t, err)
	defer func() { require.NoError(t, unix.Munmap(m)) }()
	resident := func() (n int) {
		vec := make([]byte, 64)
		_, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&m[0])), uintptr(len(m)), uintptr(unsafe.Pointer(&vec[0])))
		require.Zero(t, errno)
		for _, v := range vec {
			n += int(v & 1)
		}
		return n
	}
	if resident() != 0 {
		t.Skip("this file system keeps pages whatever we say")
	}
	f, err := OS().Open(name, Buffered)
	require.NoError(t, err)
	defer f.Close()
	p := make([]byte, 10*Align)
	n, err := f.Pread(p, 3*Align+50)
	require.NoError(t, err)
	require.Equal(t, data[3*Align+50:][:n], p[:n])
	require.Zero(t, resident())
}
