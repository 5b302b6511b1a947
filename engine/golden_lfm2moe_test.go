package engine_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// recordedRun is one run of a golden of the formats of shared/golden/README_b.md and README_c.md.
type recordedRun struct {
	Positions []struct {
		LSE float64
		Top [][2]float64
	}
	Final  []float64 `json:"final_logits"`
	Greedy struct{ Tokens []int32 }
	Router struct {
		IDs     [][][]int32
		Weights [][][]float64
	}
}

func (r *recordedRun) as() *goldenRun {
	run := &goldenRun{Positions: r.Positions, Final: r.Final}
	run.Greedy.IDs = r.Greedy.Tokens
	run.Routing.Experts, run.Routing.Weights = r.Router.IDs, r.Router.Weights
	return run
}

// lfmGolden reads a file of the format of README_b.md. Quantised files are compared with the run whose activations were
// rounded, over the prompt.
func lfmGolden(t testing.TB, name string) (g *golden, model string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(goldenDir, "lfm2moe", name+".json"))
	require.NoError(t, err)
	var file struct {
		recordedRun
		Model     string
		Types     map[string]int `json:"tensor_types"`
		Prompt    []int32
		Tolerance struct {
			Logit  float64 `json:"logit_abs"`
			Weight float64 `json:"router_weight_abs"`
		}
		Native *struct {
			recordedRun
			Reference struct {
				Weight float64 `json:"router_weight_max_abs"` // what rounding did to the weights there
			} `json:"f64_reference"`
			Tolerance struct {
				Logit float64 `json:"prompt_logit_abs"`
				RMS   float64 `json:"prompt_logit_rms"`
			}
		}
	}
	require.NoError(t, json.Unmarshal(text, &file))
	g = &golden{Name: name, Types: file.Types, Runs: map[string]*goldenRun{"f32": file.as()}}
	g.Prompt.IDs = file.Prompt
	g.Tolerance.F32.LogitAbs, g.Tolerance.F32.WeightAbs = file.Tolerance.Logit, file.Tolerance.Weight
	if n := file.Native; n != nil {
		require.NoError(t, json.Unmarshal([]byte(`{"quantised_activations": {}}`), &g.Tolerance))
		g.Runs["f32"] = n.as()
		q := g.Tolerance.Quantised
		q.LogitAbs, q.LogitRMS, q.WeightAbs = n.Tolerance.Logit, n.Tolerance.RMS, 2*n.Reference.Weight
	}
	return g, filepath.Join(goldenDir, "lfm2moe", file.Model)
}

// lfmGreedy is how many tokens of the continuation cannot depend on how activations are rounded: quantised files say that
// it may part at the first step whose margin is below the tolerance, which is the first or second.
func lfmGreedy(name string) int {
	if strings.HasSuffix(name, "f32") || strings.HasSuffix(name, "split") {
		return 32
	}
	return 1
}

var lfmGoldens = []string{"lfm2moe-f32", "lfm2moe-split", "lfm2moe-alt-f32", "lfm2moe-q8_0", "lfm2moe-wide-q4_k_m"}

// TestLFM2MoEGoldens covers short convolutions of 3 and 4 taps among attention, dense layers before the experts, and
// selection by sigmoid and bias.
func TestLFM2MoEGoldens(t *testing.T) {
	arithmetic(t)
	for _, name := range lfmGoldens {
		t.Run(name, func(t *testing.T) {
			g, model := lfmGolden(t, name)
			requireGolden(t, g, model, lfmGreedy(name))
		})
	}
}

// requireGolden compares every way to run the backend and every way to cut the prompt with a golden.
func requireGolden(t *testing.T, g *golden, model string, greedy int) {
	for backend, b := range backends() {
		t.Run(backend, func(t *testing.T) {
			chunks := map[string][]int{"reference": {7}, "in process": {0, 1, 7, 64}, "child process": {0}}
			for i, chunk := range chunks[backend] {
				n := greedy
				if i > 0 {
					n = 1
				}
				g.compare(t, observe(t, config(model, b), g.Prompt.IDs, chunk, n))
			}
		})
	}
}
