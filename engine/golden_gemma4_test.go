package engine_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// goldenB is a golden of shared/golden/README_b.md: the run of exact arithmetic at the top, another below native.
type goldenB struct {
	Model  string
	Types  map[string]int `json:"tensor_types"`
	Prompt []int32
	Final  []float64 `json:"final_logits"`

	Positions []struct {
		LSE float64
		Top [][2]float64
	}
	Router struct {
		IDs     [][][]int32 // [layer][position][k], none for a dense layer
		Weights [][][]float64
	}
	Greedy struct {
		Tokens []int32
		Margin []float64
	}
	Tolerance struct {
		LogitAbs  float64 `json:"logit_abs"`
		WeightAbs float64 `json:"router_weight_abs"`
	}
	Native struct {
		Tolerance struct {
			LogitAbs float64 `json:"prompt_logit_abs"`
			LogitRMS float64 `json:"prompt_logit_rms"`
		}
		Reference struct {
			WeightAbs float64 `json:"router_weight_max_abs"`
		} `json:"f64_reference"`
	}
}

// loadGoldenB reads a golden into the form that [golden.compare] knows. sure is how many greedy tokens rounded
// activations cannot change: those before the first whose lead is within the tolerance.
func loadGoldenB(t testing.TB, name string) (g *golden, model string, sure int) {
	t.Helper()
	path := filepath.Join(goldenDir, name+".json")
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	var b goldenB
	require.NoError(t, json.Unmarshal(text, &b))

	g = &golden{Name: name, Types: b.Types, Runs: map[string]*goldenRun{"f32": {Positions: b.Positions, Final: b.Final}}}
	g.Prompt.IDs = b.Prompt
	run := g.Runs["f32"]
	run.Greedy.IDs = b.Greedy.Tokens
	run.Routing.Experts, run.Routing.Weights = b.Router.IDs, b.Router.Weights
	g.Tolerance.F32.LogitAbs, g.Tolerance.F32.WeightAbs = b.Tolerance.LogitAbs, b.Tolerance.WeightAbs
	if len(b.Types) == 1 && b.Types["F32"] > 0 {
		return g, filepath.Join(filepath.Dir(path), b.Model), len(b.Greedy.Tokens)
	}
	require.Positive(t, b.Native.Tolerance.LogitAbs)
	g.Tolerance.Quantised = &struct {
		LogitAbs  float64 `json:"logit_abs"`
		LogitRMS  float64 `json:"logit_rms"`
		WeightAbs float64 `json:"routing_weight_abs"`
	}{b.Native.Tolerance.LogitAbs, b.Native.Tolerance.LogitRMS, 2 * b.Native.Reference.WeightAbs}
	for sure < len(b.Greedy.Margin) && b.Greedy.Margin[sure] >= b.Native.Tolerance.LogitAbs {
		sure++
	}
	return g, filepath.Join(filepath.Dir(path), b.Model), sure
}

// compareB is [golden.compare] for goldens that may have dense layers.
func compareB(t testing.TB, g *golden, sure int, o *observed) {
	t.Helper()
	for layer, want := range g.Runs["f32"].Routing.Experts {
		require.Equal(t, len(want) > 0, layer < len(o.experts) && len(o.experts[layer]) > 0, "experts in layer %d", layer)
	}
	o.greedy = o.greedy[:min(len(o.greedy), sure)]
	g.compare(t, o)
}

// TestGemma4Goldens covers both kinds of layers, keys as values, shared caches, inputs of layers, dense layers among
// routed ones, models without any expert, and the element types that quantised files mix.
func TestGemma4Goldens(t *testing.T) {
	arithmetic(t)
	for _, name := range []string{"gemma4-f32", "gemma4-alt-f32", "gemma4-ple-f32", "gemma4-q8_0", "gemma4-ple-q8_0", "gemma4-wide-q4_k_m"} {
		t.Run(name, func(t *testing.T) {
			g, model, sure := loadGoldenB(t, "gemma4/"+name)
			if name == "gemma4-ple-f32" { // caches that layers share keep their windows while they are filled again and again
				cfg := config(model, backends()["in process"])
				want := observe(t, cfg, g.Prompt.IDs, 0, 32)
				cfg.Batch = 3
				requireSame(t, want, observe(t, cfg, g.Prompt.IDs, 0, 32))
			}
			for backend, chunks := range map[string][]int{"reference": {7}, "in process": {0, 1, 7, 64}, "child process": {0}} {
				t.Run(backend, func(t *testing.T) {
					for i, chunk := range chunks {
						greedy := 32
						if i > 0 {
							greedy = 2
						}
						compareB(t, g, sure, observe(t, config(model, backends()[backend]), g.Prompt.IDs, chunk, greedy))
					}
				})
			}
		})
	}
}
