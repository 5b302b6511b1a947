package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// The clock of a process agrees with what the kernel accounts to it, by either of its names.
func TestCPUClock(t *testing.T) {
	usage := func() time.Duration {
		var r unix.Rusage
		require.NoError(t, unix.Getrusage(unix.RUSAGE_SELF, &r))
		return time.Duration(r.Utime.Nano() + r.Stime.Nano())
	}
	before := usage()
	clock := cpuClock(0)
	byName := cpuClock(os.Getpid())
	after := usage()
	const tick = 20 * time.Millisecond // of the accounting
	for _, c := range []time.Duration{clock, byName} {
		require.GreaterOrEqual(t, c, before-tick)
		require.LessOrEqual(t, c, after+tick)
	}
	for cpuClock(0) < clock+tick { // it goes on as long as we do
	}
	require.Zero(t, cpuClock(1<<27), "more than the number of any process")
}

// After a file's pages were dropped the kernel has none of them.
func TestDropPageCache(t *testing.T) {
	name := filepath.Join(t.TempDir(), "file")
	f, err := os.Create(name)
	require.NoError(t, err)
	defer f.Close()
	const pages = 64
	_, err = f.Write(make([]byte, pages*os.Getpagesize()))
	require.NoError(t, err)
	require.NoError(t, f.Sync(), "dirty pages cannot be dropped")
	resident := func() (n int) {
		m, err := unix.Mmap(int(f.Fd()), 0, pages*os.Getpagesize(), unix.PROT_READ, unix.MAP_SHARED)
		require.NoError(t, err)
		defer func() { require.NoError(t, unix.Munmap(m)) }()
		vec := make([]byte, pages)
		_, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&m[0])), uintptr(len(m)), uintptr(unsafe.Pointer(&vec[0])))
		require.Zero(t, errno)
		for _, v := range vec {
			n += int(v & 1)
		}
		return n
	}
	require.Equal(t, pages, resident())
	require.NoError(t, dropPageCache(name))
	var fs unix.Statfs_t
	require.NoError(t, unix.Fstatfs(int(f.Fd()), &fs))
	if fs.Type == unix.TMPFS_MAGIC {
		t.Skip("a file system in memory has nowhere to read its pages from again")
	}
	require.Zero(t, resident())
	require.ErrorIs(t, dropPageCache(filepath.Join(t.TempDir(), "absent")), os.ErrNotExist)
}

// The peak starts again from what the process has: memory that was given back before does not count.
func TestResetPeak(t *testing.T) {
	big, err := unix.Mmap(-1, 0, 64<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE|unix.MAP_POPULATE)
	require.NoError(t, err)
	peak := func() int64 {
		var r unix.Rusage
		require.NoError(t, unix.Getrusage(unix.RUSAGE_SELF, &r))
		return r.Maxrss << 10
	}
	high := peak()
	require.GreaterOrEqual(t, high, int64(64<<20))
	require.NoError(t, unix.Munmap(big))
	if !resetPeak() {
		t.Skip("this system does not reset peaks")
	}
	require.Less(t, peak(), high-32<<20)
}
