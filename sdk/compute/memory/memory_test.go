//go:build unix

package memory

import (
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTwoMappingsOfOneRegion(t *testing.T) {
	a, err := Create(1 << 20)
	require.NoError(t, err)
	defer a.Close()
	require.Len(t, a.Bytes(), 1<<20)

	fd, err := syscall.Dup(int(a.File().Fd()))
	require.NoError(t, err)
	b, err := FromFile(os.NewFile(uintptr(fd), "region"))
	require.NoError(t, err)
	require.Len(t, b.Bytes(), 1<<20)

	a.Bytes()[12345] = 7
	require.EqualValues(t, 7, b.Bytes()[12345])
	require.NoError(t, a.Close())
	require.NoError(t, a.Close(), "twice")
	require.EqualValues(t, 7, b.Bytes()[12345], "lives as long as one mapping")
	require.NoError(t, b.Close())
}

func blocks(t *testing.T, m *Memory) int64 {
	info, err := m.File().Stat()
	require.NoError(t, err)
	return info.Sys().(*syscall.Stat_t).Blocks * 512
}

func TestSparseAndDiscard(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("elsewhere the file system decides")
	}
	m, err := Create(64 << 30)
	require.NoError(t, err)
	defer m.Close()
	require.Zero(t, blocks(t, m))

	page := uint64(os.Getpagesize())
	for i := range 8 * page {
		m.Bytes()[i] = 1
	}
	require.EqualValues(t, 8*page, blocks(t, m))
	require.NoError(t, m.Discard(page, 4*page))
	require.EqualValues(t, 4*page, blocks(t, m))
	require.EqualValues(t, 1, m.Bytes()[page-1])
	require.Zero(t, m.Bytes()[page])
	require.EqualValues(t, 1, m.Bytes()[5*page])

	require.NoError(t, m.Discard(0, 0))
	require.Error(t, m.Discard(64<<30, 1))
	require.Error(t, m.Discard(1, ^uint64(0)))
	require.Error(t, m.File().Truncate(4096), "the size is sealed")
}

func TestImpossible(t *testing.T) {
	for _, n := range []uint64{0, 1 << 63, ^uint64(0)} {
		_, err := Create(n)
		require.Error(t, err, n)
	}
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer w.Close()
	_, err = FromFile(r)
	require.ErrorContains(t, err, "no shared region")

	empty, err := os.Create(filepath.Join(t.TempDir(), "empty"))
	require.NoError(t, err)
	_, err = FromFile(empty)
	require.ErrorContains(t, err, "no shared region")
}

func TestBack(t *testing.T) {
	m, err := Create(100 << 20)
	require.NoError(t, err)
	defer m.Close()
	m.Bytes()[5<<20] = 7
	m.Back(3<<20, 4<<20)
	require.EqualValues(t, 7, m.Bytes()[5<<20], "what is there stays")
	require.Zero(t, m.Bytes()[5<<20+1])
	if runtime.GOOS == "linux" && !m.huge.unsupported.Load() {
		require.EqualValues(t, 6<<20, blocks(t, m), "whole huge pages from 2 to 8 MiB")
		require.NoError(t, m.Discard(4<<20, 1<<20))
		m.Back(2<<20, 6<<20)
		require.EqualValues(t, 5<<20, blocks(t, m), "what was given up does not come back")
	}
	m.Back(99<<20, ^uint64(0))
	m.Back(200<<20, 1)

	small, err := Create(smallBytes - 1)
	require.NoError(t, err)
	defer small.Close()
	small.Back(0, smallBytes)
	if runtime.GOOS == "linux" {
		require.Zero(t, blocks(t, small))
	}
}
