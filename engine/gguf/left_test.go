package gguf_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/engine/gguf"
	"github.com/bigmoe/bigmoe/engine/gguf/gguftest"
	"github.com/bigmoe/bigmoe/sdk/fault"
)

// vocabulary writes a file with two arrays long enough to be left there, and a short one.
func vocabulary(t *testing.T, tokens int) (path string, texts []string, types []int32) {
	t.Helper()
	for i := range tokens {
		texts = append(texts, strings.Repeat("x", i%40))
		types = append(types, int32(i%7)-1)
	}
	path = filepath.Join(t.TempDir(), "m.gguf")
	require.NoError(t, gguftest.NewBuilder().Set("a.tokens", texts).Set("a.types", types).Set("a.heads", []uint32{1, 2}).Write(path))
	return path, texts, types
}

func get(t *testing.T, f *gguf.File, key string) gguf.Value {
	v, ok := f.Get(key)
	require.True(t, ok)
	return v
}

// TestLongArrays: they cost nothing until they are asked for, and are the same each time.
func TestLongArrays(t *testing.T) {
	const tokens = 100_000
	path, texts, types := vocabulary(t, tokens)
	heap := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	f, err := gguf.Open(path)
	require.NoError(t, err)
	defer f.Close()
	require.Less(t, heap()-before, int64(1<<20))
	require.Equal(t, "array of string, 100000 elements", get(t, f, "a.tokens").Preview())
	require.Equal(t, tokens, get(t, f, "a.types").Len())

	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			v, _ := f.Get("a.tokens")
			if got, err := v.Strings(); err != nil || strings.Join(got, " ") != strings.Join(texts, " ") {
				t.Errorf("%d strings, %v", len(got), err)
			}
		})
	}
	wg.Wait()
	got, err := get(t, f, "a.types").Ints()
	require.NoError(t, err)
	for i, n := range got {
		require.Equal(t, int64(types[i]), n)
	}
	_, err = get(t, f, "a.types").Uints()
	require.ErrorContains(t, err, "element 0")
	_, err = get(t, f, "a.types").Strings()
	require.ErrorContains(t, err, "expected strings, found array of int32")
	runtime.KeepAlive(f)
	texts, types = nil, nil
	require.Less(t, heap()-before, int64(1<<20))
}

func TestLongArrayOfClosedFile(t *testing.T) {
	path, _, _ := vocabulary(t, 1000)
	f, err := gguf.Open(path)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	heads, err := get(t, f, "a.heads").Uints()
	require.NoError(t, err)
	require.Equal(t, []uint64{1, 2}, heads)
	_, err = get(t, f, "a.tokens").Strings()
	require.ErrorIs(t, err, fs.ErrClosed)
	require.ErrorContains(t, err, "a.tokens")
	require.ErrorContains(t, err, path)
}

func TestLongArrayOfChangedFile(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(file *os.File, at int64) error
		say    string
	}{
		{"shorter", func(file *os.File, at int64) error { return file.Truncate(at + 100) }, "shorter"},
		{"length beyond the end", func(file *os.File, at int64) error {
			_, err := file.WriteAt([]byte("\xff\xff\xff\xff\xff\xff\xff\xff"), at)
			return err
		}, "changed"},
		{"length that leaves too little", func(file *os.File, at int64) error {
			_, err := file.WriteAt([]byte("\x00\x20"), at)
			return err
		}, "changed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			path, _, _ := vocabulary(t, 1000)
			f, err := gguf.Open(path)
			require.NoError(t, err)
			defer f.Close()
			data, err := os.ReadFile(path)
			require.NoError(t, err)
			at := int64(strings.Index(string(data), "a.tokens")+len("a.tokens")) + 4 + 4 + 8 // types and count
			file, err := os.OpenFile(path, os.O_RDWR, 0)
			require.NoError(t, err)
			defer file.Close()
			require.NoError(t, c.change(file, at))
			_, err = get(t, f, "a.tokens").Strings()
			require.ErrorContains(t, err, c.say)
			require.ErrorContains(t, err, path)
			require.Equal(t, fault.Corrupt, fault.KindOf(err))
		})
	}
}
