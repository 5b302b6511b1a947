package kernel

import (
	"bytes"
	"encoding/binary"
	"flag"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/sdk/compute/optable"
	"github.com/bigmoe/bigmoe/sdk/dtype"
)

var updateTypes = flag.Bool("update-types", false, "rewrite the blocks of the op table")

// TestOpTableBlocks holds the decoded blocks of the op table, which every backend is checked with, to this decoder.
func TestOpTableBlocks(t *testing.T) {
	if *updateTypes {
		require.NoError(t, os.WriteFile("../../../../sdk/compute/optable/types.bin", opTableBlocks(), 0o644))
		t.Skip("written; run again without the flag")
	}
	var got bytes.Buffer
	for _, b := range optable.AllBlocks() {
		_ = binary.Write(&got, binary.LittleEndian, uint32(b.Type))
		got.Write(b.Data)
		for _, row := range b.Decoded {
			for _, v := range row {
				_ = binary.Write(&got, binary.LittleEndian, float32(v))
			}
		}
	}
	require.True(t, bytes.Equal(opTableBlocks(), got.Bytes()))
}

func opTableBlocks() []byte {
	const rows, elems = 4, 256
	var out bytes.Buffer
	for _, typ := range supported {
		if typ == dtype.F32 || typ == dtype.F16 || typ == dtype.BF16 {
			continue
		}
		size := typ.BlockBytes()
		w := lcgBytes(typ, rows*elems/typ.BlockElems()*size)
		for b := 0; b < len(w); b += size {
			boundScales(typ, w[b:])
		}
		_ = binary.Write(&out, binary.LittleEndian, uint32(typ))
		out.Write(w)
		y := make([]float32, elems)
		for r := range rows {
			reference.Dequantize(typ, y, w[r*len(w)/rows:][:len(w)/rows])
			_ = binary.Write(&out, binary.LittleEndian, y)
		}
	}
	return out.Bytes()
}
