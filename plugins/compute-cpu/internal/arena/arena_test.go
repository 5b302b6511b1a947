package arena_test

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/plugins/compute-cpu/internal/arena"
)

func TestSlices(t *testing.T) {
	a, err := arena.New(4096)
	require.NoError(t, err)
	require.Len(t, a.Bytes(), 4096)
	f := arena.Slice[float32](a, 64, 4)
	require.Equal(t, []float32{0, 0, 0, 0}, f)
	require.Zero(t, uintptr(unsafe.Pointer(&f[0]))%arena.Align)
	f[1] = 1
	require.Equal(t, []uint16{0, 0, 0, 0x3f80}, arena.Slice[uint16](a, 64, 4))
	require.Equal(t, []byte{0, 0, 0x80, 0x3f}, arena.Bytes(f[1:2]))
	require.Panics(t, func() { arena.Slice[float32](a, 4092, 2) })
	require.Nil(t, arena.Slice[float32](a, 0, 0))
	require.NoError(t, a.Close())
	require.NoError(t, a.Close())

	empty, err := arena.New(0)
	require.NoError(t, err)
	require.NoError(t, empty.Close())
	_, err = arena.New(1 << 60)
	require.Error(t, err)
}
