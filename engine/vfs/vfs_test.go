package vfs

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/sdk/fault"
)

func write(t *testing.T, n int) (name string, data []byte) {
	data = make([]byte, n)
	for i := range data {
		data[i] = byte(i * 7 >> 3)
	}
	name = filepath.Join(t.TempDir(), "f")
	require.NoError(t, os.WriteFile(name, data, 0o600))
	return name, data
}

func openBoth(t *testing.T, name string) (direct, buffered File) {
	buffered, err := OS().Open(name, Buffered)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, buffered.Close()) })
	direct, err = OS().Open(name, Direct)
	if err != nil {
		t.Skip("no direct reads here:", err)
	}
	t.Cleanup(func() { require.NoError(t, direct.Close()) })
	return direct, buffered
}

func TestBuffered(t *testing.T) {
	name, data := write(t, 10_000)
	f, err := OS().Open(name, Buffered)
	require.NoError(t, err)
	require.Equal(t, int64(10_000), f.Size())
	require.Equal(t, Buffered, f.Mode())
	p := make([]byte, 300)
	n, err := f.Pread(p, 5001)
	require.NoError(t, err)
	require.Equal(t, data[5001:5301], p[:n])
	n, err = f.Pread(p, 9900)
	require.NoError(t, err, "a short read is none")
	require.Equal(t, data[9900:], p[:n])
	n, err = f.Pread(p, 10_000)
	require.Equal(t, 0, n)
	require.ErrorIs(t, err, io.EOF)
	require.NoError(t, f.Close())
}

func TestDirect(t *testing.T) {
	name, data := write(t, 3*Align+77)
	direct, buffered := openBoth(t, name)
	require.Equal(t, Direct, direct.Mode())
	require.NoError(t, Probe(direct, buffered))
	p := AlignedBuffer(2 * Align)
	n, err := direct.Pread(p, 2*Align)
	require.NoError(t, err)
	require.Equal(t, data[2*Align:], p[:n], "the window may end beyond the file")
}

func TestOpenRefuses(t *testing.T) {
	_, err := OS().Open(filepath.Join(t.TempDir(), "nowhere"), Buffered)
	require.Equal(t, fault.User, fault.KindOf(err))
	require.ErrorContains(t, err, "nowhere")
	_, err = OS().Open(t.TempDir(), Buffered)
	require.Equal(t, fault.User, fault.KindOf(err))
	require.ErrorContains(t, err, "not a regular file")
}

// liar is a direct file that opens well and reads badly.
type liar struct {
	File
	size int64
	read func(p []byte, off int64) (int, error)
}

func (l liar) Size() int64                            { return l.size }
func (l liar) Pread(p []byte, off int64) (int, error) { return l.read(p, off) }

func TestProbe(t *testing.T) {
	name, data := write(t, 5*Align)
	buffered, err := OS().Open(name, Buffered)
	require.NoError(t, err)
	defer buffered.Close()
	honest := func(p []byte, off int64) (int, error) { return copy(p, data[off:]), nil }
	calls := 0
	for _, c := range []struct {
		name string
		size int64
		read func(p []byte, off int64) (int, error)
		say  string
	}{
		{"honest", int64(len(data)), honest, ""},
		{"interrupted", int64(len(data)), func(p []byte, off int64) (int, error) {
			if calls++; calls%2 == 1 {
				return 0, syscall.EINTR
			}
			return honest(p, off)
		}, ""},
		{"other size", 12, honest, "direct handle sees 12 bytes, buffered 20480"},
		{"refused", int64(len(data)), func([]byte, int64) (int, error) { return 0, syscall.EINVAL }, "invalid argument"},
		{"short for ever", int64(len(data)), func(p []byte, off int64) (int, error) { return copy(p[:512], data[off:]), nil }, "got 512 of 4096"},
		{"interrupted for ever", int64(len(data)), func([]byte, int64) (int, error) { return 0, syscall.EINTR }, "interrupted"},
		{"wrong in the middle", int64(len(data)), func(p []byte, off int64) (int, error) {
			n, _ := honest(p, off)
			if off == 2*Align {
				p[100]++
			}
			return n, nil
		}, "direct read at 8192 gives other bytes"},
	} {
		err := Probe(liar{size: c.size, read: c.read}, buffered)
		if c.say == "" {
			require.NoError(t, err, c.name)
		} else {
			require.ErrorContains(t, err, c.say, c.name)
		}
	}
}

func TestProbeEmpty(t *testing.T) {
	name, _ := write(t, 0)
	direct, buffered := openBoth(t, name)
	require.ErrorContains(t, Probe(direct, buffered), "empty")
}

func TestAlignedBuffer(t *testing.T) {
	for _, n := range []int{1, 4095, 4096, 70_001} {
		b := AlignedBuffer(n)
		require.Len(t, b, n)
		require.Zero(t, uintptr(unsafe.Pointer(&b[0]))%Align)
		require.True(t, bytes.Equal(b, make([]byte, n)))
	}
}

func TestErrorKinds(t *testing.T) {
	wrapped := func(err error) error { return &os.PathError{Op: "read", Path: "f", Err: err} }
	require.True(t, Interrupted(wrapped(syscall.EINTR)))
	require.True(t, DiskError(wrapped(syscall.EIO)))
	require.True(t, Refused(wrapped(syscall.EINVAL)))
	for _, is := range []func(error) bool{Interrupted, DiskError, Refused} {
		require.False(t, is(errors.New("other")))
		require.False(t, is(nil))
	}
}
