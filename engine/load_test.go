package engine

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/engine/model"
	"github.com/bigmoe/bigmoe/engine/vfs"
	"github.com/bigmoe/bigmoe/engine/vfs/errfs"
	"github.com/bigmoe/bigmoe/sdk/compute/memory"
)

// TestLoader copies ranges of a file to where they belong, with every way to choose the depth.
func TestLoader(t *testing.T) {
	data := make([]byte, 300_000)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(data)
	path := filepath.Join(t.TempDir(), "model")
	require.NoError(t, os.WriteFile(path, data, 0o600))
	fs := errfs.Wrap(vfs.OS())
	for _, c := range []struct {
		name    string
		readers int
		trial   int64
		tried   bool
	}{{"depth given", 3, 1000, false}, {"tried", 0, 50_000, true}, {"too little to tell", 0, 150_000, false}} {
		t.Run(c.name, func(t *testing.T) {
			open := func() *loader {
				src, _, err := vfs.OpenSource(fs, path, true)
				require.NoError(t, err)
				mem, err := memory.Create(1 << 20)
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, mem.Close()) })
				l := &loader{files: sources{src}, memory: mem, trial: c.trial}
				for off := int64(0); off+7001 <= int64(len(data)); off += 7001 {
					l.jobs = append(l.jobs, loadJob{rng: model.Range{Offset: off, Bytes: 7001}, at: uint64(off) + 100, bytes: 7001})
					l.total += 7001
				}
				return l
			}
			l, last := open(), int64(0)
			l.progress = func(done, total int64) {
				require.Greater(t, done, last)
				require.Equal(t, l.total, total)
				last = done
			}
			depth, err := l.load(t.Context(), c.readers)
			require.NoError(t, err)
			require.Equal(t, l.total, last)
			require.True(t, bytes.Equal(data[:l.total], l.memory.Bytes()[100:][:l.total]))
			if c.tried {
				require.Contains(t, trialDepths, depth)
			} else {
				require.Zero(t, depth)
			}

			fs.Set(errfs.Fail(syscall.EACCES))
			defer fs.Set(nil)
			l = open()
			l.progress = func(int64, int64) {}
			_, err = l.load(t.Context(), c.readers)
			require.ErrorIs(t, err, syscall.EACCES)
		})
	}
	require.Zero(t, fs.OpenFiles())
}
