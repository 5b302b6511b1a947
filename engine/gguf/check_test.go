package gguf_test

import (
	"context"
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/engine/gguf"
	"github.com/bigmoe/bigmoe/engine/gguf/gguftest"
	"github.com/bigmoe/bigmoe/sdk/dtype"
	"github.com/bigmoe/bigmoe/sdk/fault"
)

// poison is one way to break a block: bytes to write at an offset, and what Check must call it.
type poison struct {
	at   int
	put  []byte
	want string
}

func halves(at int) []poison {
	return []poison{{at, []byte{0x00, 0x7C}, "inf"}, {at, []byte{0x00, 0xFC}, "inf"}, {at, []byte{0x01, 0x7C}, "nan"}, {at, []byte{0xFF, 0xFF}, "nan"}}
}

func singles(at int) []poison {
	return []poison{{at, []byte{0, 0, 0x80, 0x7F}, "inf"}, {at, []byte{0, 0, 0x80, 0xFF}, "inf"}, {at, []byte{1, 0, 0x80, 0x7F}, "nan"}, {at, []byte{0, 0, 0xC0, 0xFF}, "nan"}}
}

func join(all ...[]poison) (out []poison) {
	for _, p := range all {
		out = append(out, p...)
	}
	return out
}

// poisons is written from the layouts of specs/quants.md 2 and 3, apart from the table that Check uses.
var poisons = map[dtype.Type][]poison{
	dtype.F32: singles(0), dtype.F16: halves(0), dtype.Q8_K: singles(0),
	dtype.BF16: {{0, []byte{0x80, 0x7F}, "inf"}, {0, []byte{0x80, 0xFF}, "inf"}, {0, []byte{0x81, 0x7F}, "nan"}},
	dtype.F64:  {{0, binary.LittleEndian.AppendUint64(nil, math.Float64bits(math.Inf(-1))), "inf"}, {0, binary.LittleEndian.AppendUint64(nil, math.Float64bits(math.NaN())), "nan"}},
	dtype.I8:   nil, dtype.I16: nil, dtype.I32: nil, dtype.I64: nil, dtype.NVFP4: nil,
	dtype.Q4_0: halves(0), dtype.Q5_0: halves(0), dtype.Q8_0: halves(0), dtype.IQ4_NL: halves(0), dtype.Q1_0: halves(0), dtype.Q2_0: halves(0),
	dtype.Q4_1: join(halves(0), halves(2)), dtype.Q5_1: join(halves(0), halves(2)), dtype.Q8_1: join(halves(0), halves(2)),
	dtype.Q2_K: join(halves(80), halves(82)), dtype.Q3_K: halves(108), dtype.Q6_K: halves(208),
	dtype.Q4_K: join(halves(0), halves(2)), dtype.Q5_K: join(halves(0), halves(2)),
	dtype.IQ4_XS: halves(0), dtype.TQ1_0: halves(52), dtype.TQ2_0: halves(64),
	dtype.IQ2_XXS: halves(0), dtype.IQ2_XS: halves(0), dtype.IQ2_S: halves(0), dtype.IQ3_XXS: halves(0), dtype.IQ3_S: halves(0), dtype.IQ1_S: halves(0),
	dtype.MXFP4: {{0, []byte{0xFF}, "nan"}},
	// The nibbles of 0x7C00 and 0x7C10, lowest first, at the top of the words at 48.
	dtype.IQ1_M: {{48, []byte{0, 0x00, 0, 0x00, 0, 0xC0, 0, 0x70}, "inf"}, {48, []byte{0, 0x00, 0, 0x10, 0, 0xC0, 0, 0x70}, "nan"}, {48, []byte{0, 0x00, 0, 0x00, 0, 0xD0, 0, 0xF0}, "nan"}},
}

// finite returns blocks whose fields are the largest finite numbers and whose other bytes are all ones.
func finite(typ dtype.Type, blocks int) []byte {
	size := typ.BlockBytes()
	data := make([]byte, blocks*size)
	for i := range data {
		data[i] = 0xFF
	}
	for b := range blocks {
		block := data[b*size:][:size]
		for _, p := range poisons[typ] {
			for i := range p.put {
				block[p.at+i] = 0xFF
			}
			switch {
			case typ == dtype.MXFP4:
				block[0] = 0xFE
			case typ == dtype.IQ1_M:
				block[53] = 0xBF // exponent 30, not 31
			case len(p.put) == 8:
				block[6] = 0xEF
			case len(p.put) == 4 || typ == dtype.BF16:
				block[p.at+len(p.put)-2] = 0x7F
			default:
				block[p.at+1] = 0xFB
			}
		}
	}
	return data
}

func TestCheckFindsEveryField(t *testing.T) {
	for typ := range dtype.Type(64) {
		if !typ.Known() {
			continue
		}
		found, ok := poisons[typ]
		require.True(t, ok, "no row for %v", typ)
		const blocks = 7
		dims := []uint64{uint64(blocks * typ.BlockElems())}
		good := finite(typ, blocks)
		f := openBuilt(t, gguftest.NewBuilder().Tensor("w", typ, dims, good))
		require.NoError(t, f.Check(context.Background(), nil), "%v", typ)
		for _, p := range found {
			bad := append([]byte(nil), good...)
			copy(bad[5*typ.BlockBytes()+p.at:], p.put)
			f := openBuilt(t, gguftest.NewBuilder().Tensor("w", typ, dims, bad))
			err := f.Check(context.Background(), nil)
			require.Error(t, err, "%v %v", typ, p)
			requireSays(t, err.Error(), []string{f.Path(), `"w"`, typ.String(), "block 5|element 5", p.want})
			require.Equal(t, fault.Corrupt, fault.KindOf(err))
		}
	}
}

// bigModel has tensors of several pieces of 2 MiB, which is no multiple of the block.
func bigModel() (b *gguftest.Builder, blocks int, data []byte) {
	const rows = 3 * 1024
	blocks = rows * 32
	data = make([]byte, blocks*dtype.Q8_0.BlockBytes())
	return gguftest.NewBuilder().
		Tensor("small", dtype.F32, []uint64{2}, gguftest.Float32s(1, 2)).
		Tensor("big", dtype.Q8_0, []uint64{1024, rows}, data), blocks, data
}

func TestCheckReadsAllInOrder(t *testing.T) {
	b, blocks, data := bigModel()
	f := openBuilt(t, b)
	var mu sync.Mutex
	var last, calls int64
	require.NoError(t, f.Check(context.Background(), func(done, total int64) {
		require.True(t, mu.TryLock(), "two calls at once")
		defer mu.Unlock()
		require.Greater(t, done, last)
		require.Equal(t, int64(len(data)+8), total)
		last, calls = done, calls+1
	}))
	require.Equal(t, int64(len(data)+8), last)
	require.GreaterOrEqual(t, calls, int64(3))

	nan := func(block int) { binary.LittleEndian.PutUint16(data[block*34:], 0x7E00) }
	for _, first := range []int{blocks - 1, 61681, 61680, 61679, 0} { // 61680 blocks fill one piece
		nan(first)
		f := openBuilt(t, b)
		require.ErrorContains(t, f.Check(context.Background(), nil), `"big" (Q8_0): block `+strconv.Itoa(first)+" ")
	}
}

func TestCheckStops(t *testing.T) {
	b, _, _ := bigModel()
	f := openBuilt(t, b)
	ctx, cancel := context.WithCancel(context.Background())
	pieces := 0
	require.ErrorIs(t, f.Check(ctx, func(int64, int64) { pieces++; cancel() }), context.Canceled)
	require.LessOrEqual(t, pieces, 2)
}

func TestCheckOfFileCutLater(t *testing.T) {
	b, _, _ := bigModel()
	path := filepath.Join(t.TempDir(), "m.gguf")
	require.NoError(t, b.Write(path))
	f, err := gguf.Open(path)
	require.NoError(t, err)
	defer f.Close()
	require.NoError(t, os.Truncate(path, 3<<20))
	err = f.Check(context.Background(), nil)
	require.ErrorContains(t, err, `"big": file became shorter: no bytes at offset 3145728`)
	require.Equal(t, fault.Corrupt, fault.KindOf(err))
}
