package gguf

import (
	"bytes"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/edsrzf/mmap-go"
	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/sdk/fault"
)

// FuzzParse: whatever the bytes are, parsing ends with a table that can be trusted or with a classified error, and
// allocates in proportion to the input.
func FuzzParse(f *testing.F) {
	f.Add([]byte("GGUF\x03\x00\x00\x00" + string(make([]byte, 16))))
	f.Fuzz(func(t *testing.T, data []byte) {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		mem := budget(decodedBytes)
		h, err := parse(data, bytes.NewReader(data), &mem)
		var alignment, start, end uint64
		if err == nil {
			alignment, err = h.alignment(defaultAlignment)
		}
		if err == nil {
			start, end, err = h.layout(alignment)
		}
		runtime.ReadMemStats(&after)
		if grown := after.TotalAlloc - before.TotalAlloc; grown > uint64(64<<10+32*len(data)) {
			t.Fatalf("%d bytes allocated for an input of %d", grown, len(data))
		}
		if err != nil {
			if fault.KindOf(err) == fault.Unknown {
				t.Fatalf("not classified: %v", err)
			}
			return
		}
		if start < h.endBytes || start%alignment != 0 || end > uint64(len(data)) {
			t.Fatalf("data from %d to %d after a header of %d, in a file of %d bytes", start, end, h.endBytes, len(data))
		}
		for _, at := range h.tensors {
			if at.Bytes <= 0 || at.Offset < 0 || at.Offset+at.Bytes > int64(end-start) || uint64(at.Offset)%alignment != 0 {
				t.Fatalf("%+v in %d bytes of data", at, end-start)
			}
		}
		for _, v := range h.values {
			_ = v.Preview()
			_, _ = v.Uints()
			_, _ = v.Ints()
			_, _ = v.Floats()
			_, _ = v.Bools()
			if texts, err := v.Strings(); err == nil && len(texts) != v.Len() {
				t.Fatalf("%s: %d strings, length %d", v.TypeName(), len(texts), v.Len())
			}
		}
	})
}

// TestFileCutWhileMapped touches a mapping beyond the end of its file, which would kill the process with SIGBUS.
func TestFileCutWhileMapped(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "m.gguf"))
	require.NoError(t, err)
	defer file.Close()
	require.NoError(t, file.Truncate(1<<20))
	data, err := mmap.Map(file, mmap.RDONLY, 0)
	require.NoError(t, err)
	defer data.Unmap()
	require.NoError(t, file.Truncate(0))
	err = guardFaults(func() error { _ = string(data[1<<19:]); return nil })
	if runtime.GOOS == "linux" {
		require.ErrorContains(t, err, "became shorter")
		require.Equal(t, fault.Corrupt, fault.KindOf(err))
	}
	require.PanicsWithValue(t, "other", func() { guardFaults(func() error { panic("other") }) })
}
