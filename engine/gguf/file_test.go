package gguf_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/engine/gguf"
	"github.com/bigmoe/bigmoe/engine/gguf/gguftest"
	"github.com/bigmoe/bigmoe/sdk/dtype"
	"github.com/bigmoe/bigmoe/sdk/fault"
)

// numbered has tensors t0, t1, … of 40 floats each, all equal to the number.
func numbered(n int) *gguftest.Builder {
	b := gguftest.NewBuilder().Set("general.architecture", "test")
	for i := range n {
		values := make([]float32, 40)
		for k := range values {
			values[k] = float32(i)
		}
		b.Tensor(fmt.Sprintf("t%d", i), dtype.F32, []uint64{8, 5}, gguftest.Float32s(values...))
	}
	return b
}

// requireNumbered opens path and reads every tensor of numbered(n) from it.
func requireNumbered(t *testing.T, path string, n int) *gguf.File {
	t.Helper()
	f, err := gguf.Open(path)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, f.Close()) })
	require.Equal(t, path, f.Path())
	require.Len(t, f.Tensors(), n)
	for i, at := range f.Tensors() {
		require.Equal(t, fmt.Sprintf("t%d", i), at.Name)
		byName, ok := f.Tensor(at.Name)
		require.True(t, ok)
		require.Equal(t, at, byName)
		require.Equal(t, []uint64{8, 5}, at.Dims)
		require.Equal(t, uint64(5), at.Dim(1))
		require.Equal(t, uint64(1), at.Dim(2))
		require.Equal(t, int64(160), at.Bytes)
		data := make([]byte, at.Bytes)
		_, err := f.Shards()[at.Shard].ReadAt(data, at.Offset)
		require.NoError(t, err)
		require.Equal(t, bytes.Repeat(gguftest.Float32s(float32(i)), 40), data)
	}
	v, _ := f.Get("general.architecture")
	arch, err := v.String()
	require.NoError(t, err)
	require.Equal(t, "test", arch)
	return f
}

func TestOpenSingle(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.gguf")
	require.NoError(t, numbered(3).Set("general.alignment", uint32(128)).Write(path))
	f := requireNumbered(t, path, 3)
	require.Equal(t, 3, f.Version())
	require.Equal(t, []string{"general.architecture", "general.alignment"}, f.Keys())
	require.Empty(t, f.Warnings())
	_, ok := f.Tensor("t3")
	require.False(t, ok)
	for _, at := range f.Tensors() {
		require.Zero(t, at.Offset%128)
	}
}

// TestOpenScalar: one number without dimensions is a vector of one, a block is not.
func TestOpenScalar(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.gguf")
	b := numbered(1).Tensor("scale", dtype.F32, nil, gguftest.Float32s(3))
	require.NoError(t, b.Tensor("after", dtype.F32, []uint64{1}, gguftest.Float32s(4)).Write(path))
	f, err := gguf.Open(path)
	require.NoError(t, err)
	defer f.Close()
	scale, ok := f.Tensor("scale")
	require.True(t, ok)
	require.Equal(t, []uint64{1}, scale.Dims)
	require.EqualValues(t, 4, scale.Bytes)

	require.NoError(t, b.Tensor("scale", dtype.Q8_0, nil, make([]byte, 34)).Write(path))
	_, err = gguf.Open(path)
	require.ErrorContains(t, err, `"scale": 0 dimensions`)
	require.Equal(t, fault.Corrupt, fault.KindOf(err))
}

func TestOpenAnyShard(t *testing.T) {
	for _, counts := range [][]int{{2, 2, 1}, {0, 5}, {1, 0, 4}, {5}} {
		paths, err := numbered(5).WriteSplit(t.TempDir(), "m", counts...)
		require.NoError(t, err)
		for _, path := range paths {
			f := requireNumbered(t, path, 5)
			require.Len(t, f.Shards(), len(counts))
			for i, s := range f.Shards() {
				require.Equal(t, paths[i], s.Path)
				info, err := os.Stat(s.Path)
				require.NoError(t, err)
				require.Equal(t, info.Size(), s.Size)
			}
		}
	}
}

func TestOpenThroughLinks(t *testing.T) {
	paths, err := numbered(5).WriteSplit(t.TempDir(), "m", 2, 2, 1)
	require.NoError(t, err)

	// One link, under another name, in another folder: the others lie beside what it leads to.
	link := filepath.Join(t.TempDir(), "model.gguf")
	for _, path := range paths {
		os.Remove(link)
		require.NoError(t, os.Symlink(path, link))
		requireNumbered(t, link, 5)
	}

	// A folder of links to files that have lost their names, as download caches keep them.
	blobs, snapshot := t.TempDir(), t.TempDir()
	for i, path := range paths {
		blob := filepath.Join(blobs, fmt.Sprintf("%064d", i))
		require.NoError(t, os.Rename(path, blob))
		require.NoError(t, os.Symlink(blob, filepath.Join(snapshot, filepath.Base(path))))
	}
	for _, path := range paths {
		requireNumbered(t, filepath.Join(snapshot, filepath.Base(path)), 5)
	}
	require.NoError(t, os.Remove(filepath.Join(blobs, fmt.Sprintf("%064d", 1))))
	_, err = gguf.Open(filepath.Join(snapshot, filepath.Base(paths[0])))
	requireSays(t, fmt.Sprint(err), []string{"missing", filepath.Join(snapshot, filepath.Base(paths[1]))})
}

// TestOpenShardAlignment: a shard without general.alignment is laid out with 32 or with the alignment of the first.
func TestOpenShardAlignment(t *testing.T) {
	for _, second := range []uint32{32, 256} {
		dir := t.TempDir()
		paths, err := numbered(3).Set("general.alignment", uint32(256)).WriteSplit(dir, "m", 1, 2)
		require.NoError(t, err)
		split := func(b *gguftest.Builder) *gguftest.Builder {
			return b.Set("split.no", uint16(1)).Set("split.count", uint16(2))
		}
		b := split(numbered(3).Drop("t0").Drop("general.architecture"))
		data, err := b.Bytes()
		require.NoError(t, err)
		if second == 256 { // a key of the same length that means nothing
			data, err = b.Set("general.alignment", second).Bytes()
			require.NoError(t, err)
			data = bytes.Replace(data, []byte("general.alignment"), []byte("general.alignmenT"), 1)
		}
		require.NoError(t, os.WriteFile(paths[1], data, 0o644))
		requireNumbered(t, paths[0], 3)
	}
}

func TestOpenRefuses(t *testing.T) {
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	paths, err := numbered(4).WriteSplit(dir, "set", 2, 2)
	require.NoError(t, err)
	one, err := numbered(2).Bytes()
	require.NoError(t, err)
	write := func(name string, data []byte) string {
		require.NoError(t, os.WriteFile(in(name), data, 0o644))
		return in(name)
	}
	built := func(name string, b *gguftest.Builder) string {
		require.NoError(t, b.Write(in(name)))
		return in(name)
	}
	second, err := os.ReadFile(paths[1])
	require.NoError(t, err)

	tests := []struct {
		path string
		kind fault.Kind
		say  []string
	}{
		{in("absent.gguf"), fault.User, []string{"no such file"}},
		{dir, fault.User, []string{"not a regular file"}},
		{write("page.gguf", []byte("404: Not Found")), fault.Corrupt, []string{"not a GGUF", "text file"}},
		{write("noise.gguf", []byte("\x00\x01\x02\x1b[2J and more than a header of bytes")), fault.Corrupt, []string{"magic", `\x00\x01\x02\x1b`}},
		{write("two.gguf", append(bytes.Clone(one), one...)), fault.Corrupt, []string{"second header", "concatenated"}},
		{built("alone-00001-of-00003.gguf", numbered(2)), fault.Corrupt, []string{"00001 of 00003", "split.count"}},
		{built("alone-00001-of-00002.gguf", numbered(2).Set("split.count", uint16(1))), fault.Corrupt, []string{"00001 of 00002", "split.count"}},
		{write("set-00003-of-00002.gguf", second), fault.Corrupt, []string{"split.no 1", "-00002-of-00002.gguf"}},
		{built("n-00005-of-00002.gguf", numbered(1).Set("split.count", uint16(2)).Set("split.no", uint16(4))), fault.Corrupt, []string{"split.no is 4", "split.count 2"}},
		{built("n-00001-of-00002.gguf", numbered(1).Set("split.count", uint16(2))), fault.Corrupt, []string{"missing", "split.no"}},
		{built("n-00001-of-60000.gguf", numbered(1).Set("split.count", uint16(60000)).Set("split.no", uint16(0))), fault.Unsupported, []string{"60000", "1024"}},
		{built("n-00001-of-00004.gguf", numbered(1).Set("split.count", "4")), fault.Corrupt, []string{"split.count", "found string"}},
		{built("overflow.gguf", gguftest.NewBuilder().Tensor("w", dtype.F64, []uint64{1 << 47, 1 << 15}, nil)), fault.Corrupt, []string{`"w"`, "overflow"}},
		{built("sum.gguf", gguftest.NewBuilder().Tensor("w", dtype.F32, []uint64{1 << 48, 1 << 12}, nil)), fault.Corrupt, []string{`"w"`, "beyond"}},
		{built("esc.gguf", gguftest.NewBuilder().Tensor("\x1b[2J", dtype.F32, []uint64{0}, nil)), fault.Corrupt, []string{`"\x1b[2J"`}},
		{built("nul.gguf", gguftest.NewBuilder().Set("a\x00b", true)), fault.Corrupt, []string{"NUL", `a\x00b`}},
	}
	for _, tt := range tests {
		f, err := gguf.Open(tt.path)
		require.Error(t, err, tt.path)
		require.Nil(t, f)
		require.True(t, strings.HasPrefix(err.Error(), tt.path+": "), "%v", err)
		requireSays(t, strings.TrimPrefix(err.Error(), tt.path), tt.say)
		require.Equal(t, tt.kind, fault.KindOf(err), "%v", err)
		require.NotContains(t, err.Error(), "\x1b")
	}
}

func TestWarnings(t *testing.T) {
	data, err := numbered(2).Set("general.quantization_version", uint32(1)).Bytes()
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "m.gguf")
	require.NoError(t, os.WriteFile(path, append(data, make([]byte, 1000)...), 0o644))
	f := requireNumbered(t, path, 2)
	require.Len(t, f.Warnings(), 2)
	requireSays(t, f.Warnings()[0], []string{path, "1000 unknown bytes"})
	requireSays(t, f.Warnings()[1], []string{"general.quantization_version", "1"})
}

// TestOpenIsBounded opens files whose counts are true: gigabytes of zeros, which sparse files hold for nothing.
func TestOpenIsBounded(t *testing.T) {
	array := func(elem uint32, n uint64) gguftest.Raw {
		return gguftest.Raw{Type: 9, Bytes: binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint32(nil, elem), n)}
	}
	counts := func(tensors, pairs uint64) []byte {
		head := binary.LittleEndian.AppendUint64([]byte("GGUF\x03\x00\x00\x00"), tensors)
		return binary.LittleEndian.AppendUint64(head, pairs)
	}
	tests := map[string][]byte{"tensors": counts(1<<25, 0), "keys": counts(0, 1<<25), "most tensors": counts(200_000, 0), "most keys": counts(0, 200_000)}
	for name, value := range map[string]gguftest.Raw{
		"empty strings": array(8, 1<<27), "bytes": array(0, 1<<30), "doubles": array(12, 1<<27), "most strings": array(8, 3<<20),
		"string": {Type: 8, Bytes: binary.LittleEndian.AppendUint64(nil, 1<<30)}, "most string": {Type: 8, Bytes: binary.LittleEndian.AppendUint64(nil, 47<<20)},
	} {
		data, err := gguftest.NewBuilder().Set("k", value).Set("k2", value).Bytes()
		require.NoError(t, err)
		tests[name] = data[:bytes.Index(data, []byte("k2"))-8]
	}
	for name, data := range tests {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "m.gguf")
			require.NoError(t, os.WriteFile(path, data, 0o644))
			require.NoError(t, os.Truncate(path, 4<<30))
			cheap(t, func() {
				_, err := gguf.Open(path)
				require.Error(t, err)
			})
		})
	}
}

// TestVocabularyCost: metadata is decoded once, and no mapping of the file is left.
func TestVocabularyCost(t *testing.T) {
	tokens := make([]string, 150_000)
	textBytes := 0
	for i := range tokens {
		tokens[i] = fmt.Sprintf("token%d", i)
		textBytes += len(tokens[i])
	}
	path := filepath.Join(t.TempDir(), "m.gguf")
	require.NoError(t, gguftest.NewBuilder().Set("tokenizer.ggml.tokens", tokens).Set("tokenizer.ggml.scores", make([]float32, len(tokens))).Write(path))

	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f, err := gguf.Open(path)
	runtime.ReadMemStats(&after)
	require.NoError(t, err)
	defer f.Close()
	kept := uint64(textBytes + len(tokens)*(16+4))
	require.Less(t, after.TotalAlloc-before.TotalAlloc, kept+kept/20+64<<10)
	require.Less(t, after.Mallocs-before.Mallocs, uint64(500))
	if maps, err := os.ReadFile("/proc/self/maps"); err == nil {
		require.NotContains(t, string(maps), path)
	}
	v, _ := f.Get("tokenizer.ggml.tokens")
	got, err := v.Strings()
	require.NoError(t, err)
	require.Equal(t, tokens, got)
}
