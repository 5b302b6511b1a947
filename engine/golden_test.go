package engine_test

import (
	"context"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/engine"
	"github.com/bigmoe/bigmoe/sdk/compute"
)

// golden is a moe-golden/1 file: see shared/golden/README-a.md.
type golden struct {
	Name  string
	Files []struct{ Name string }
	Same  string `json:"same_as"`

	Types  map[string]int `json:"tensor_types"`
	Prompt struct{ IDs []int32 }
	Runs   map[string]*goldenRun

	Tolerance struct {
		F32 struct {
			LogitAbs  float64 `json:"logit_abs"`
			WeightAbs float64 `json:"routing_weight_abs"`
		}
		Quantised *struct {
			LogitAbs  float64 `json:"logit_abs"`
			LogitRMS  float64 `json:"logit_rms"`
			WeightAbs float64 `json:"routing_weight_abs"`
		} `json:"quantised_activations"`
	}
}

type goldenRun struct {
	Positions []struct {
		LSE float64
		Top [][2]float64
	}
	Final  []float64 `json:"final_logits"`
	Greedy struct {
		IDs    []int32
		Margin []float64 // of each logit over the second largest
	}

	Routing struct {
		Experts [][][]int32   // [layer][position][k]
		Weights [][][]float64 // the same
	}
}

const goldenDir = "../testdata/golden"

func loadGolden(t testing.TB, name string) (*golden, string) {
	t.Helper()
	read := func(path string) *golden {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		g := &golden{}
		require.NoError(t, json.Unmarshal(text, g))
		return g
	}
	path := filepath.Join(goldenDir, name+".json")
	g := read(path)
	model := filepath.Join(filepath.Dir(path), g.Files[0].Name)
	if g.Same != "" {
		g = read(filepath.Join(filepath.Dir(path), g.Same))
	}
	return g, model
}

// observed is what an engine does with a golden's prompt.
type observed struct {
	lse     []float64
	logits  [][]float32
	greedy  []int32
	experts [][][]int32
	weights [][][]float32
}

// observe evaluates the prompt in batches of chunk tokens and goes on greedily. Batches may be as long as the prompt, unless cfg
// says otherwise.
func observe(t testing.TB, cfg engine.Config, prompt []int32, chunk, greedy int) *observed {
	t.Helper()
	var o observed
	cfg.OnRoute = func(layer, k int, ids []int32, weights []float32) {
		for len(o.experts) <= layer {
			o.experts, o.weights = append(o.experts, nil), append(o.weights, nil)
		}
		for i := 0; i < len(ids); i += k {
			o.experts[layer] = append(o.experts[layer], slices.Clone(ids[i:i+k]))
			o.weights[layer] = append(o.weights[layer], slices.Clone(weights[i:i+k]))
		}
	}
	if cfg.Batch == 0 {
		cfg.Batch = max(len(prompt), 1)
	}
	cfg.LogitRows = cfg.Batch
	ctx := context.Background()
	e, err := engine.Open(ctx, cfg)
	require.NoError(t, err)
	defer func() { require.NoError(t, e.Close()) }()
	s := e.NewSession()
	keep := func(_ int, logits []float32) error {
		o.logits = append(o.logits, slices.Clone(logits))
		o.lse = append(o.lse, logSumExp(logits))
		return nil
	}
	require.NoError(t, s.Score(ctx, prompt, chunk, keep))
	next := argmax(o.logits[len(o.logits)-1])
	for range greedy {
		o.greedy = append(o.greedy, next)
		if len(o.greedy) == greedy {
			break
		}
		require.NoError(t, s.Score(ctx, []int32{next}, 0, func(_ int, logits []float32) error {
			next = argmax(logits)
			return nil
		}))
	}
	return &o
}

func argmax(x []float32) int32 {
	best := 0
	for i := range x {
		if x[i] > x[best] {
			best = i
		}
	}
	return int32(best)
}

func logSumExp(x []float32) float64 {
	top := float64(x[argmax(x)])
	var sum float64
	for _, v := range x {
		sum += math.Exp(float64(v) - top)
	}
	return top + math.Log(sum)
}

// compare holds o against a golden. Files without quantised weights must meet the strict tolerance.
func (g *golden) compare(t testing.TB, o *observed) {
	t.Helper()
	want, tol, weightTol := g.Runs["f32"], g.Tolerance.F32.LogitAbs, g.Tolerance.F32.WeightAbs
	strict := true
	for typ := range g.Types {
		strict = strict && slices.Contains([]string{"F32", "F16", "BF16"}, typ)
	}
	if !strict {
		tol, weightTol = g.Tolerance.Quantised.LogitAbs, g.Tolerance.Quantised.WeightAbs
	}
	require.Len(t, o.logits, len(want.Positions))
	var worst, sum float64
	var n int
	see := func(got, want float64, what string, args ...any) {
		d := math.Abs(got - want)
		worst = max(worst, d)
		require.LessOrEqual(t, d, tol, append([]any{what + ": got %v, want %v"}, append(args, got, want)...)...)
	}
	for pos, p := range want.Positions {
		see(o.lse[pos], p.LSE, "position %d log-sum-exp", pos)
		for _, top := range p.Top {
			see(float64(o.logits[pos][int(top[0])]), top[1], "position %d token %v", pos, top[0])
		}
	}
	final := o.logits[len(o.logits)-1]
	require.Len(t, final, len(want.Final))
	for id, v := range want.Final {
		see(float64(final[id]), v, "final logit of token %d", id)
		sum += (float64(final[id]) - v) * (float64(final[id]) - v)
		n++
	}
	if !strict {
		require.LessOrEqual(t, math.Sqrt(sum/float64(n)), g.Tolerance.Quantised.LogitRMS, "rms of the final logits")
	}
	require.Equal(t, want.Greedy.IDs[:len(o.greedy)], o.greedy, "greedy tokens")
	require.Len(t, o.experts, len(want.Routing.Experts), "layers")
	for layer := range want.Routing.Experts {
		for pos := range o.experts[layer] {
			ids, weights := want.Routing.Experts[layer][pos], want.Routing.Weights[layer][pos]
			if strict {
				require.Equal(t, ids, o.experts[layer][pos], "layer %d position %d", layer, pos)
			} else if pos < len(want.Positions) {
				require.ElementsMatch(t, ids, o.experts[layer][pos], "layer %d position %d", layer, pos)
			} else {
				continue
			}
			for i, id := range o.experts[layer][pos] {
				require.InDelta(t, weights[slices.Index(ids, id)], float64(o.weights[layer][pos][i]), weightTol, "layer %d position %d expert %d", layer, pos, id)
			}
		}
	}
	t.Logf("%s: largest logit difference %.2g of %.2g allowed", g.Name, worst, tol)
}

// goldens are the cases whose element types this version supports.
var goldens = []string{
	"qwen3moe/qwen3moe-f32", "qwen3moe/qwen3moe-split", "qwen3moe/qwen3moe-yarn-f32", "qwen3moe/qwen3moe-f16", "qwen3moe/qwen3moe-bf16",
	"qwen3moe/qwen3moe-k-q8_0", "qwen3moe/qwen3moe-k-q5_k_m", "qwen3moe/qwen3moe-k-q4_k_m", "qwen3moe/qwen3moe-k-q4_0", "qwen3moe/qwen3moe-k-mxfp4",
	"qwen2moe/qwen2moe-f32", "qwen2moe/qwen2moe-k-q4_k_m",
}

func TestGoldens(t *testing.T) {
	for _, name := range goldens {
		t.Run(name, func(t *testing.T) {
			g, model := loadGolden(t, name)
			for backend, b := range backends() {
				t.Run(backend, func(t *testing.T) {
					chunks, greedy := []int{0, 7, 1}, 32
					if raceEnabled {
						if backend == "reference" {
							t.Skip("plain Go arithmetic is too slow under the race detector")
						}
						chunks, greedy = []int{7}, 8
					}
					cfg := config(model, b)
					for _, chunk := range chunks {
						g.compare(t, observe(t, cfg, g.Prompt.IDs, chunk, greedy))
					}
				})
			}
		})
	}
}

// config is the strictest setting: full-precision states, everything else default.
func config(model string, b engine.Backend) engine.Config {
	return engine.Config{Model: model, Recipes: builtin{}, Backend: b, KV: compute.KVType_F32, MemoryBytes: 1 << 30, Context: 128}
}
