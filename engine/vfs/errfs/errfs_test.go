package errfs

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/engine/vfs"
)

func TestHooks(t *testing.T) {
	boom := errors.New("boom")
	name := filepath.Join(t.TempDir(), "f")
	data := []byte("0123456789")
	require.NoError(t, os.WriteFile(name, data, 0o600))
	fs := Wrap(vfs.OS())
	f, err := fs.Open(name, vfs.Buffered)
	require.NoError(t, err)
	require.Equal(t, int64(1), fs.OpenFiles())
	read := func(off int64) (string, error) {
		p := make([]byte, 4)
		n, err := f.Pread(p, off)
		return string(p[:n]), err
	}
	expect := func(off int64, want string, wantErr error) {
		t.Helper()
		got, err := read(off)
		require.Equal(t, want, got)
		require.ErrorIs(t, err, wantErr)
	}

	expect(2, "2345", nil)
	fs.Set(Times(2, Fail(boom)))
	expect(0, "", boom)
	expect(0, "", boom)
	expect(0, "0123", nil)
	fs.Set(Short(3))
	expect(1, "123", nil)
	fs.Set(Truncate(5))
	expect(3, "34", nil)
	expect(5, "", io.EOF)
	fs.Set(DirectOnly(Fail(boom)))
	expect(0, "0123", nil)
	fs.Set(func(r Read) Fault {
		require.Equal(t, Read{Name: name, Off: 4, Len: 4, Seq: 8}, r)
		return Fault{}
	})
	expect(4, "4567", nil)
	fs.Set(Each(2, Fail(boom)))
	expect(0, "0123", nil) // read number 9
	expect(0, "", boom)
	gate := make(chan struct{})
	fs.Set(Block(gate))
	time.AfterFunc(time.Millisecond, func() { close(gate) })
	expect(0, "0123", nil)
	start := time.Now()
	fs.Set(Delay(2 * time.Millisecond))
	expect(0, "0123", nil)
	require.GreaterOrEqual(t, time.Since(start), 2*time.Millisecond)
	fs.Set(nil)
	expect(9, "9", nil)
	require.Equal(t, int64(14), fs.Reads())
	require.Equal(t, int64(4+4+3+2+4+4+4+4+4+1), fs.Bytes())

	require.NoError(t, f.Close())
	require.Zero(t, fs.OpenFiles())
	fs.SetOpen(func(string, vfs.Mode) error { return boom })
	_, err = fs.Open(name, vfs.Buffered)
	require.ErrorIs(t, err, boom)
	fs.SetOpen(nil)
	f, err = fs.Open(name, vfs.Buffered)
	require.NoError(t, err)
	require.NoError(t, f.Close())
}
