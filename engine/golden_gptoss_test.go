package engine_test

import (
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/engine"
	"github.com/bigmoe/bigmoe/engine/gguf"
	"github.com/bigmoe/bigmoe/engine/gguf/gguftest"
	"github.com/bigmoe/bigmoe/sdk/compute"
	"github.com/bigmoe/bigmoe/sdk/dtype"
)

const gptOSS = "gpt-oss/gpt-oss-mxfp4"

// TestGPTOSSGolden covers MXFP4 experts with biases and clamps, sinks, windows and YaRN. The prompt is six windows long.
func TestGPTOSSGolden(t *testing.T) {
	arithmetic(t)
	g, model := loadGolden(t, gptOSS)
	for backend, chunks := range map[string][]int{"reference": {7}, "in process": {0, 1, 7, 64}, "child process": {0}} {
		t.Run(backend, func(t *testing.T) {
			for _, chunk := range chunks {
				g.compare(t, observe(t, config(model, backends()[backend]), g.Prompt.IDs, chunk, 32))
			}
		})
	}
}

// TestGPTOSSExact compares with the weights decoded beforehand: without rounded activations the tolerance is 2000 times
// smaller, and no mistake of the formulas can hide in it.
func TestGPTOSSExact(t *testing.T) {
	arithmetic(t)
	g, model := loadGolden(t, gptOSS)
	model = decoded(t, model)
	g.Types = map[string]int{"F32": 1}
	for _, backend := range []string{"reference", "in process"} {
		g.compare(t, observe(t, config(model, backends()[backend]), g.Prompt.IDs, 7, 32))
	}
}

// decoded writes a copy of a model with every weight as F32.
func decoded(t *testing.T, model string) string {
	t.Helper()
	f, err := gguf.Open(model)
	require.NoError(t, err)
	defer f.Close()
	b := gguftest.NewBuilder()
	for _, key := range f.Keys() {
		v, _ := f.Get(key)
		b.Set(key, metadata(t, v))
	}
	raw, err := os.ReadFile(model)
	require.NoError(t, err)
	for _, ts := range f.Tensors() {
		data := raw[ts.Offset:][:ts.Bytes]
		b.Tensor(ts.Name, dtype.F32, ts.Dims, decode(t, ts.Type, data))
	}
	path := filepath.Join(t.TempDir(), filepath.Base(model))
	require.NoError(t, b.Write(path))
	return path
}

func metadata(t *testing.T, v gguf.Value) (out any) {
	t.Helper()
	elem, array := v.Type()
	var err error
	switch {
	case elem == gguf.String && array:
		out, err = v.Strings()
	case elem == gguf.String:
		out, err = v.String()
	case elem == gguf.Bool && array:
		out, err = v.Bools()
	case elem == gguf.Bool:
		out, err = v.Bool()
	case elem == gguf.Float32 && array:
		out, err = v.Floats()
	case elem == gguf.Float32:
		out, err = v.Float()
	case array:
		out, err = v.Ints()
	default:
		out, err = v.Int()
	}
	require.NoError(t, err)
	return out
}

// decode follows specs/quants.md (Q8_0) and specs/gpt-oss.md 2.1 (MXFP4) on its own, for the types of the golden.
func decode(t *testing.T, typ dtype.Type, data []byte) []byte {
	t.Helper()
	out := []byte{}
	put := func(x float64) {
		out = binary.LittleEndian.AppendUint32(out, math.Float32bits(float32(x)))
	}
	switch typ {
	case dtype.F32:
		return data
	case dtype.Q8_0:
		for ; len(data) > 0; data = data[34:] {
			half := binary.LittleEndian.Uint16(data)
			exponent, mantissa := int(half>>10&31), float64(half&1023)
			require.True(t, half>>15 == 0 && exponent > 0 && exponent < 31, "scale %#04x is not an ordinary number", half)
			for _, q := range data[2:34] {
				put(float64(int8(q)) * math.Ldexp(1024+mantissa, exponent-25))
			}
		}
	case dtype.MXFP4:
		codes := [16]float64{0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12}
		for ; len(data) > 0; data = data[17:] {
			for shift := 0; shift < 8; shift += 4 {
				for _, q := range data[1:17] {
					put(math.Ldexp(codes[q>>shift&15], int(data[0])-128))
				}
			}
		}
	default:
		require.Fail(t, "no decoder for "+typ.String())
	}
	return out
}

// TestWindowedRewind: a text that goes on elsewhere keeps its start as long as the windows of that position are still there,
// and gives the tokens of a fresh session in either case.
func TestWindowedRewind(t *testing.T) {
	_, model := loadGolden(t, gptOSS) // windows of 8
	cfg := config(model, backends()["child process"])
	cfg.Batch, cfg.KV = 4, compute.KVType_F16
	e := open(t, cfg)
	text := make([]int32, 40)
	for i := range text {
		text[i] = int32(i * 37 % 300)
	}
	generate := func(s *engine.Session, prompt []int32) *engine.Result {
		res, err := s.Generate(t.Context(), greedy(prompt, 3), silent)
		require.NoError(t, err)
		return res
	}
	for _, test := range []struct{ same, reused int }{{39, 39}, {38, 38}, {30, 0}, {3, 0}} {
		s := e.NewSession()
		generate(s, text) // ends 2 tokens after the text
		other := append(append([]int32{}, text[:test.same]...), 301, 302)
		got := generate(s, other)
		require.Equal(t, test.reused, got.ReusedTokens)
		require.Equal(t, generate(e.NewSession(), other).Tokens, got.Tokens)
	}
}
