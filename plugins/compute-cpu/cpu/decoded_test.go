package cpu_test

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/engine"
	"github.com/bigmoe/bigmoe/engine/gguf"
	"github.com/bigmoe/bigmoe/engine/gguf/gguftest"
	"github.com/bigmoe/bigmoe/plugins/compute-cpu/cpu"
	"github.com/bigmoe/bigmoe/plugins/compute-cpu/internal/kernel"
	"github.com/bigmoe/bigmoe/recipes"
	"github.com/bigmoe/bigmoe/sdk/compute"
	"github.com/bigmoe/bigmoe/sdk/dtype"
	"github.com/bigmoe/bigmoe/sdk/fault"
)

// exactRun is what a model gives where no activation is rounded.
type exactRun struct {
	Positions []struct {
		Pos *int // as in the list if it is left out
		LSE float64
		Top [][2]float64
	}
	Final []float64 `json:"final_logits"`
}

// exactGolden reads the three formats of the goldens' READMEs: the run in question and the tolerance for it.
func exactGolden(t *testing.T, path string) (model string, prompt []int32, want exactRun, tolerance float64) {
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	var g struct {
		Files  []struct{ Name string }
		Model  string
		Prompt json.RawMessage
		exactRun
		Runs      struct{ F32 *exactRun }
		Reference *exactRun `json:"f64_reference"`
		Tolerance struct {
			LogitAbs float64 `json:"logit_abs"`
			F32      struct {
				LogitAbs float64 `json:"logit_abs"`
			}
			Exact float64 `json:"logit_abs_vs_f64_if_activations_stay_f32"`
		}
	}
	require.NoError(t, json.Unmarshal(text, &g))
	ids := struct{ IDs []int32 }{}
	if len(g.Files) > 0 {
		require.NoError(t, json.Unmarshal(g.Prompt, &ids))
		return g.Files[0].Name, ids.IDs, *g.Runs.F32, g.Tolerance.F32.LogitAbs
	}
	require.NoError(t, json.Unmarshal(g.Prompt, &ids.IDs))
	if g.Tolerance.Exact > 0 {
		return g.Model, ids.IDs, *g.Reference, g.Tolerance.Exact
	}
	return g.Model, ids.IDs, g.exactRun, g.Tolerance.LogitAbs
}

// decodedCopy writes a copy of a model whose blocks are decoded to F32, and says whether there were any.
func decodedCopy(t *testing.T, path string) (copy string, blocks bool) {
	f, err := gguf.Open(path)
	require.NoError(t, err)
	defer f.Close()
	b := gguftest.NewBuilder()
	for _, key := range f.Keys() {
		v, _ := f.Get(key)
		value, err := gguftest.Value(v)
		require.NoError(t, err)
		b.Set(key, value)
	}
	for _, ts := range f.Tensors() {
		data := make([]byte, ts.Bytes)
		_, err := f.Shards()[ts.Shard].ReadAt(data, ts.Offset)
		require.NoError(t, err)
		typ := ts.Type
		if typ.BlockElems() > 1 {
			blocks = true
			x := make([]float32, int(ts.Bytes)/typ.BlockBytes()*typ.BlockElems())
			kernel.Reference().Dequantize(typ, x, data)
			typ, data = dtype.F32, gguftest.Float32s(x...)
		}
		b.Tensor(ts.Name, typ, ts.Dims, data)
	}
	copy = filepath.Join(t.TempDir(), filepath.Base(path))
	require.NoError(t, b.Write(copy))
	return copy, blocks
}

type shipped struct{}

func (shipped) Find(name string) (engine.Recipe, error) {
	module, ok := recipes.Lookup(name)
	if !ok {
		return engine.Recipe{}, fault.Unsupportedf("no recipe %q", name)
	}
	return engine.Recipe{Name: name, Module: module}, nil
}

// TestDecodedGoldens compares every golden of every architecture whose file holds blocks with the weights decoded to F32
// beforehand. No activation is rounded then, so the tolerance is that of exact arithmetic, some thousands of times
// smaller: what a decoder or a formula does wrong has nowhere to hide.
func TestDecodedGoldens(t *testing.T) {
	if testing.Short() || len(cpu.Kernels()) == 1 {
		t.Skip("a minute and more in plain Go, which TestTypes holds to the same decoded blocks")
	}
	paths, err := filepath.Glob(filepath.Join(goldenDir, "*", "*.json"))
	require.NoError(t, err)
	b, err := cpu.New(cpu.Options{})
	require.NoError(t, err)
	types, files := map[dtype.Type]bool{}, 0
	for _, path := range paths {
		if _, ok := recipes.Lookup(filepath.Base(filepath.Dir(path))); !ok {
			continue // the tutorial's
		}
		if _, err := os.Stat(strings.TrimSuffix(path, "json") + "gguf"); err != nil {
			continue // shards of a model that is there whole, texts and the like
		}
		t.Run(strings.TrimSuffix(filepath.Base(path), ".json"), func(t *testing.T) {
			name, prompt, want, tolerance := exactGolden(t, path)
			model := filepath.Join(filepath.Dir(path), name)
			decoded, blocks := decodedCopy(t, model)
			if !blocks {
				return // others have compared it as it is
			}
			files++
			f, err := gguf.Open(model)
			require.NoError(t, err)
			defer f.Close()
			for _, ts := range f.Tensors() {
				types[ts.Type] = true
			}
			require.NotEmpty(t, prompt)
			require.Greater(t, tolerance, 0.0)
			require.LessOrEqual(t, tolerance, 2e-3)
			e, err := engine.Open(t.Context(), engine.Config{Model: decoded, Recipes: shipped{}, Backend: engine.Backend{InProcess: b},
				KV: compute.KVType_F32, MemoryBytes: 1 << 30, Context: len(prompt), Batch: len(prompt), LogitRows: len(prompt)})
			require.NoError(t, err)
			defer e.Close()
			var got [][]float32
			require.NoError(t, e.NewSession().Score(t.Context(), prompt, 0, func(_ int, logits []float32) error {
				got = append(got, slices.Clone(logits))
				return nil
			}))
			require.Len(t, got, len(prompt))
			var worst float64
			see := func(want, got float64, pos int) {
				worst = max(worst, math.Abs(want-got))
				require.InDelta(t, want, got, tolerance, "position %d", pos)
			}
			require.NotEmpty(t, want.Positions)
			for i, p := range want.Positions {
				pos := i
				if p.Pos != nil {
					pos = *p.Pos
				}
				see(p.LSE, logSumExp(got[pos]), pos)
				for _, top := range p.Top {
					see(top[1], float64(got[pos][int(top[0])]), pos)
				}
			}
			final := got[len(got)-1]
			require.Len(t, final, len(want.Final))
			for id, v := range want.Final {
				see(v, float64(final[id]), len(got)-1)
			}
			t.Logf("largest logit difference %.2g of %.2g allowed", worst, tolerance)
		})
	}
	require.GreaterOrEqual(t, files, 23)
	for _, typ := range []dtype.Type{dtype.Q4_0, dtype.Q4_1, dtype.Q5_0, dtype.Q5_1, dtype.Q8_0, dtype.Q2_K, dtype.Q3_K, dtype.Q4_K, dtype.Q5_K, dtype.Q6_K,
		dtype.IQ1_S, dtype.IQ1_M, dtype.IQ2_XXS, dtype.IQ2_XS, dtype.IQ2_S, dtype.IQ3_XXS, dtype.IQ3_S, dtype.IQ4_NL, dtype.IQ4_XS, dtype.MXFP4} {
		require.True(t, types[typ], "no golden holds %v", typ)
	}
}
