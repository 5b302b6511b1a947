package vfs_test

import (
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/engine/vfs"
	"github.com/bigmoe/bigmoe/engine/vfs/errfs"
)

func TestSourceReadsAnyRangeInPlace(t *testing.T) {
	data := make([]byte, 50_000)
	rng := rand.New(rand.NewPCG(3, 4))
	for i := range data {
		data[i] = byte(rng.Uint32())
	}
	path := filepath.Join(t.TempDir(), "model")
	require.NoError(t, os.WriteFile(path, data, 0o644))
	ranges := [][2]int64{{0, 1}, {0, 4096}, {4095, 2}, {1, 8192}, {4096, 4096}, {12_345, 20_000}, {45_000, 5_000}, {49_999, 1}}
	for _, direct := range []bool{false, true} {
		fs := errfs.Wrap(vfs.OS())
		src, refusal, err := vfs.OpenSource(fs, path, direct)
		require.NoError(t, err)
		if direct && refusal != nil {
			t.Skipf("no direct reads here: %v", refusal)
		}
		require.Equal(t, direct, src.Mode() == vfs.Direct)
		require.EqualValues(t, len(data), src.Size())
		for name, hook := range map[string]errfs.Hook{
			"healthy": nil, "interrupted": errfs.Times(3, errfs.Fail(syscall.EINTR)), "disk error": errfs.Times(1, errfs.Fail(syscall.EIO)),
			"short": errfs.Times(2, errfs.Short(5000)), "refused": errfs.DirectOnly(errfs.Fail(syscall.EINVAL)),
		} {
			for _, r := range ranges {
				fs.Set(hook)
				off, n := r[0], r[1]
				region := vfs.AlignedBuffer(int(vfs.RegionBytes(n)))
				tally, err := src.Read(off, n, region)
				require.NoError(t, err, "%s %v", name, r)
				require.Equal(t, n, tally.Got)
				require.Equal(t, data[off:off+n], region[off%vfs.Align:][:n], "%s %v", name, r)

				p := make([]byte, n)
				require.NoError(t, src.ReadBuffered(p, off))
				require.Equal(t, data[off:off+n], p)
			}
		}
		fs.Set(nil)
		tally, err := src.Read(49_000, 2_000, vfs.AlignedBuffer(int(vfs.RegionBytes(2_000))))
		require.True(t, errors.Is(err, io.EOF), "%v", err)
		require.EqualValues(t, 1_000, tally.Got)
		require.ErrorIs(t, src.ReadBuffered(make([]byte, 10), 49_995), io.EOF)
		require.NoError(t, src.Close())
		require.Zero(t, fs.OpenFiles())
	}
}
