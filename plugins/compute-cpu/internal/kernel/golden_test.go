package kernel

import (
	"encoding/binary"
	"hash/crc32"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/sdk/dtype"
)

// supported are the types with a product.
var supported = []dtype.Type{dtype.F32, dtype.F16, dtype.BF16, dtype.Q8_0, dtype.Q4_0, dtype.Q4_1, dtype.Q5_0, dtype.Q5_1,
	dtype.MXFP4, dtype.Q4_K, dtype.Q5_K, dtype.Q6_K, dtype.Q2_K, dtype.Q3_K, dtype.IQ4_NL, dtype.IQ4_XS, dtype.IQ2_XXS,
	dtype.IQ2_XS, dtype.IQ2_S, dtype.IQ3_XXS, dtype.IQ3_S, dtype.IQ1_S, dtype.IQ1_M, dtype.TQ1_0, dtype.TQ2_0, dtype.NVFP4,
	dtype.Q1_0, dtype.Q2_0}

// lcgBytes returns the deterministic bytes of specs/quants.md 6.1.
func lcgBytes(t dtype.Type, n int) []byte {
	b := make([]byte, n)
	state := uint32(t) + 1
	for i := range b {
		state = state*1664525 + 1013904223
		b[i] = byte(state >> 24)
	}
	return b
}

// scaleOffsets lists where the f16 scale and the f16 offset of a block are, -1 for none.
func scaleOffsets(t dtype.Type) (d, m int) {
	switch t {
	case dtype.Q8_0, dtype.Q4_0, dtype.Q5_0, dtype.IQ4_NL, dtype.IQ4_XS, dtype.IQ2_XXS, dtype.IQ2_XS, dtype.IQ2_S,
		dtype.IQ3_XXS, dtype.IQ3_S, dtype.IQ1_S, dtype.Q1_0, dtype.Q2_0:
		return 0, -1
	case dtype.Q4_1, dtype.Q5_1, dtype.Q4_K, dtype.Q5_K:
		return 0, 2
	case dtype.Q2_K:
		return 80, 82
	case dtype.Q3_K:
		return 108, -1
	case dtype.Q6_K:
		return 208, -1
	case dtype.TQ1_0:
		return 52, -1
	case dtype.TQ2_0:
		return 64, -1
	}
	return -1, -1
}

// setIQ1M makes d the scale of an IQ1_M block, whose bits lie in four places.
func setIQ1M(b []byte, d uint16) {
	for i := range 4 {
		b[49+2*i] = b[49+2*i]&15 | byte(d>>(4*i)&15)<<4
	}
}

// boundScales gives a block of random bytes the scales of specs/quants.md 6.1: 1/4, and an offset of 1/8.
func boundScales(t dtype.Type, block []byte) {
	d, m := scaleOffsets(t)
	if d >= 0 {
		block[d], block[d+1] = 0, 0x34
	}
	if m >= 0 {
		block[m], block[m+1] = 0, 0x30
	}
	switch t {
	case dtype.MXFP4:
		block[0] = 0x7d
	case dtype.NVFP4:
		for i := range 4 {
			block[i] &= 0x77
		}
	case dtype.IQ1_M:
		setIQ1M(block, 0x3400)
	}
}

func floatBytes(x []float32) []byte {
	b := make([]byte, 4*len(x))
	for i, v := range x {
		binary.LittleEndian.PutUint32(b[4*i:], math.Float32bits(v))
	}
	return b
}

func x1() []float32 {
	x := make([]float32, 256)
	for i := range x {
		x[i] = float32((i*73+41)%257-128) / 64
	}
	return x
}

func x2() []float32 {
	x := make([]float32, 256)
	for i := range x {
		x[i] = float32((i*i*31+i*7+3)%509-254) / 100
	}
	return x
}

// TestSpecGoldens checks specs/quants.md 6: what blocks decode to, and their product with x1.
func TestSpecGoldens(t *testing.T) {
	tests := []struct {
		t              dtype.Type
		blocks, floats uint32
		dot            float32
	}{
		{dtype.Q4_0, 0x13bca3fc, 0x10f033a9, -24.1286755},
		{dtype.Q4_1, 0xdd75d479, 0xa90557dc, -2.27173042},
		{dtype.Q5_0, 0x895dfa4e, 0x2c8af0ff, -45.6679916},
		{dtype.Q5_1, 0x49cc16f2, 0x326146e6, 59.1913109},
		{dtype.Q8_0, 0x5dfc26eb, 0x80230e88, -506.731781},
		{dtype.Q2_K, 0x0d71c156, 0xff466d4c, 29.9803143},
		{dtype.Q3_K, 0x876ad837, 0xf4032946, 604.578735},
		{dtype.Q4_K, 0x869bb152, 0x832234d9, -659.350403},
		{dtype.Q5_K, 0xeae06136, 0x6b82d433, -2673.99805},
		{dtype.Q6_K, 0x661500bb, 0x2cc3546e, 5725.50049},
		{dtype.IQ2_XXS, 0x88615ab9, 0x78610c02, -2.89960623},
		{dtype.IQ2_XS, 0x641c958f, 0x34fbb59c, 157.780014},
		{dtype.IQ3_XXS, 0x634e43e3, 0x08c6f02a, 1079.98425},
		{dtype.IQ1_S, 0xeebdee12, 0xe9145db3, 47.3976364},
		{dtype.IQ4_NL, 0x7bee6027, 0xb2c4bd02, 222.831406},
		{dtype.IQ3_S, 0xe4a32917, 0xb1109c9d, -1203.44885},
		{dtype.IQ2_S, 0xbf7ce664, 0x8b58dc48, 141.349411},
		{dtype.IQ4_XS, 0xb0428079, 0x7fe92ce1, -10346.6807},
		{dtype.IQ1_M, 0x41444dc9, 0x5eab12dc, 20.9773617},
		{dtype.TQ1_0, 0x32ff5350, 0x697e7454, -2.54330707},
		{dtype.TQ2_0, 0x9321ef58, 0xc499ebb1, 7.99212599},
		{dtype.MXFP4, 0xd0a973bd, 0xbe0d7b7d, 11.6796646},
		{dtype.NVFP4, 0x12a569fc, 0x17d71c53, 5331.1123},
		{dtype.Q1_0, 0xb4fe6329, 0x44dba100, -3.8747673},
		{dtype.Q2_0, 0xa15e053d, 0x6b911bae, -1.39224815},
	}
	for _, k := range Sets() {
		for _, tt := range tests {
			t.Run(k.Name+"/"+tt.t.String(), func(t *testing.T) {
				size := tt.t.BlockBytes()
				w := lcgBytes(tt.t, 256/tt.t.BlockElems()*size)
				for b := 0; b < len(w); b += size {
					boundScales(tt.t, w[b:])
				}
				require.Equal(t, tt.blocks, crc32.ChecksumIEEE(w), "input")
				y := make([]float32, 256)
				k.Dequantize(tt.t, y, w)
				require.Equal(t, tt.floats, crc32.ChecksumIEEE(floatBytes(y)), "decoded %v", y)

				a, ok := ActFor(tt.t)
				require.True(t, ok)
				act := make([]byte, a.RowBytes(256))
				k.Quantize(a, act, x1())
				var out [1]float32
				k.MatMul(tt.t, w, 1, 256, act, len(act), 1, out[:], 1)
				require.InEpsilon(t, tt.dot, out[0], 1e-6)
			})
		}
	}
}

// TestGrids checks the expanded bytes against specs/iq-grids.md.
func TestGrids(t *testing.T) {
	tests := []struct {
		name string
		grid []int8
		crc  uint32
	}{
		{"iq2xxs", gridIQ2_XXS, 0x9924ff02},
		{"iq2xs", gridIQ2_XS, 0xfa1e1bfd},
		{"iq2s", gridIQ2_S, 0x25ae5bf1},
		{"iq3xxs", gridIQ3_XXS, 0x07ba9ed0},
		{"iq3s", gridIQ3_S, 0xf576e4f3},
		{"iq1s", expandGrid(gridDataIQ1, 8, 2, -1, 0, 1), 0xb85e6ccf},
	}
	for _, tt := range tests {
		b := make([]byte, len(tt.grid))
		for i, v := range tt.grid {
			b[i] = byte(v)
		}
		require.Equal(t, tt.crc, crc32.ChecksumIEEE(b), tt.name)
	}
}

func TestSpecQuantizers(t *testing.T) {
	require.Equal(t, uint32(0x71a71ba2), crc32.ChecksumIEEE(floatBytes(x1())))
	require.Equal(t, uint32(0x07332f88), crc32.ChecksumIEEE(floatBytes(x2())))
	tests := []struct {
		a      Act
		x1, x2 uint32
	}{
		{ActF32, 0x71a71ba2, 0x07332f88},
		{ActQ8_0, 0x60f9570c, 0x5376589b},
		{ActQ8_1, 0x3ddeed40, 0x3c2c5064},
		{ActQ8_K, 0x3741d239, 0xc77c2b3c},
	}
	for _, k := range Sets() {
		for _, tt := range tests {
			dst := make([]byte, tt.a.RowBytes(256))
			k.Quantize(tt.a, dst, x1())
			require.Equal(t, tt.x1, crc32.ChecksumIEEE(dst), "%s %v x1", k.Name, tt.a)
			k.Quantize(tt.a, dst, x2())
			require.Equal(t, tt.x2, crc32.ChecksumIEEE(dst), "%s %v x2", k.Name, tt.a)
		}
	}
}

func TestHalf(t *testing.T) {
	for h := range 1 << 16 {
		f := halfToFloat(uint16(h))
		if f != f {
			require.Equal(t, uint16(h)|0x200, floatToHalf(f))
			continue
		}
		require.Equal(t, uint16(h), floatToHalf(f))
		// Halfway to the next value goes to the even one, anything beyond it up.
		if h&0x7fff >= 0x7bff {
			continue
		}
		next := halfToFloat(uint16(h + 1))
		mid := (f + next) / 2
		require.Equal(t, uint16(h+h&1), floatToHalf(mid), "%x", h)
		require.Equal(t, uint16(h+1), floatToHalf(math.Nextafter32(mid, next)), "%x", h)
		require.Equal(t, uint16(h), floatToHalf(math.Nextafter32(mid, f)), "%x", h)
	}
	require.Equal(t, uint16(0x7c00), floatToHalf(65520))
	require.Equal(t, uint16(0x7bff), floatToHalf(math.Nextafter32(65520, 0)))
	require.Equal(t, uint16(0), floatToHalf(0x1p-25))
	require.Equal(t, uint16(0x8001), floatToHalf(-0x1.000002p-25))
}
