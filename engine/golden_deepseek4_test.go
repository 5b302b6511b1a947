package engine_test

import (
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

// longGolden is a golden of the architectures with states beyond keys and values: see its own field "format".
type longGolden struct {
	Prompt    []int32
	Positions []struct {
		Pos int
		LSE float64
		Top [][2]float64
	}
	Final  []float64 `json:"final_logits"`
	Router struct {
		IDs     [][][]int32   // [layer][position][k]
		Weights [][][]float64 // the same
	}
	Greedy struct {
		Tokens []int32
		Safe   int `json:"safe_length"` // tokens that rounding cannot change
	}
	Reference struct {
		Weight float64 `json:"router_weight_max_abs"` // what rounding did to the weights there
	} `json:"f64_reference"`
	Tolerance struct {
		Abs     float64 `json:"logit_abs"`           // nothing is rounded
		Rounded float64 `json:"logit_abs_vs_oracle"` // activations are rounded to 8 bits
		Weight  float64 `json:"router_weight_abs"`
	}
}

func loadLongGolden(t testing.TB, name string) *longGolden {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(goldenDir, name+".json"))
	require.NoError(t, err)
	g := &longGolden{}
	require.NoError(t, json.Unmarshal(text, g))
	return g
}

// strict reports whether no activation is rounded, so that the formulas alone decide the result.
func (g *longGolden) strict() bool { return g.Tolerance.Abs > 0 }

func (g *longGolden) compare(t testing.TB, o *observed) {
	t.Helper()
	tol, weightTol := g.Tolerance.Abs, g.Tolerance.Weight
	if !g.strict() {
		tol, weightTol = g.Tolerance.Rounded, 2*g.Reference.Weight
	}
	require.Len(t, o.logits, len(g.Prompt))
	var worst float64
	for _, p := range g.Positions {
		require.InDelta(t, p.LSE, o.lse[p.Pos], tol, "position %d", p.Pos)
		for _, top := range p.Top {
			got := float64(o.logits[p.Pos][int(top[0])])
			worst = max(worst, math.Abs(got-top[1]))
			require.InDelta(t, top[1], got, tol, "position %d token %v", p.Pos, top[0])
		}
	}
	final := o.logits[len(o.logits)-1]
	require.Len(t, final, len(g.Final))
	for id, want := range g.Final {
		worst = max(worst, math.Abs(float64(final[id])-want))
		require.InDelta(t, want, float64(final[id]), tol, "final logit of token %d", id)
	}
	safe := len(o.greedy)
	if !g.strict() {
		safe = min(safe, g.Greedy.Safe)
	}
	require.Equal(t, g.Greedy.Tokens[:safe], o.greedy[:safe], "greedy tokens")
	require.Len(t, o.experts, len(g.Router.IDs), "layers")
	for layer := range o.experts {
		for pos, ids := range o.experts[layer] {
			if !g.strict() && pos >= len(g.Prompt) {
				break // the greedy tokens may differ from here on
			}
			want := g.Router.IDs[layer][pos]
			if g.strict() {
				require.Equal(t, want, ids, "layer %d position %d", layer, pos)
			} else {
				require.ElementsMatch(t, want, ids, "layer %d position %d", layer, pos)
			}
			for i, id := range ids {
				require.InDelta(t, g.Router.Weights[layer][pos][slices.Index(want, id)], float64(o.weights[layer][pos][i]), weightTol,
					"layer %d position %d expert %d", layer, pos, id)
			}
		}
	}
	t.Logf("largest logit difference %.2g of %.2g allowed", worst, tol)
}

const deepseek4 = "deepseek4/deepseek4-"

// longConfig has room for the prompts of 300 tokens.
func longConfig(name string, b engine.Backend) engine.Config {
	cfg := config(filepath.Join(goldenDir, name+".gguf"), b)
	cfg.Context = 512
	return cfg
}

// TestDeepseek4Goldens covers blocks of 4 and of 128, the indexer beyond its top k, the window, experts by token and by
// router, with prompts of 300 tokens in one batch, in parts and token by token. mtp has a block that drafts tokens, which
// the recipe leaves out.
func TestDeepseek4Goldens(t *testing.T) {
	arithmetic(t)
	for _, name := range []string{"f32", "mtp", "q8_0", "mxfp4", "q4_k_m", "iq2_xxs"} {
		t.Run(name, func(t *testing.T) {
			g, all := loadLongGolden(t, deepseek4+name), backends()
			greedy := 8
			if g.strict() {
				greedy = len(g.Greedy.Tokens)
			}
			run := func(backend string, chunk int) *observed {
				return observe(t, longConfig(deepseek4+name, all[backend]), g.Prompt, chunk, greedy)
			}
			want := run("in process", 0)
			g.compare(t, want)
			g.compare(t, run("reference", 64))
			requireSame(t, want, run("child process", 64))
			requireSame(t, want, run("in process", 7))
			requireSame(t, want, run("in process", 1))
		})
	}
}

// TestDeepseek4Split: four shards, of which the first holds no tensor and the others end within the experts of a layer.
func TestDeepseek4Split(t *testing.T) {
	arithmetic(t)
	g := loadLongGolden(t, deepseek4+"f32")
	for _, backend := range []string{"reference", "in process"} {
		g.compare(t, observe(t, longConfig(deepseek4+"f32-00001-of-00004", backends()[backend]), g.Prompt, 0, len(g.Greedy.Tokens)))
	}
}

// TestDeepseek4ShortContext: a context in which no block of 128 ends, and not even one of 4.
func TestDeepseek4ShortContext(t *testing.T) {
	arithmetic(t)
	g := loadLongGolden(t, deepseek4+"f32")
	want := observe(t, longConfig(deepseek4+"f32", backends()["in process"]), g.Prompt[:20], 0, 1)
	for _, context := range []int{3, 20} {
		cfg := longConfig(deepseek4+"f32", backends()["in process"])
		cfg.Context = context
		require.Equal(t, want.logits[:context], observe(t, cfg, g.Prompt[:context], 2, 1).logits)
	}
}

// TestDeepseek4HalfPrecision: keys and rows of 16 bits move the logits a little, and the same for every split of the prompt.
func TestDeepseek4HalfPrecision(t *testing.T) {
	arithmetic(t)
	g := loadLongGolden(t, deepseek4+"f32")
	cfg := longConfig(deepseek4+"f32", backends()["in process"])
	cfg.KV = compute.KVType_F16
	whole := observe(t, cfg, g.Prompt, 0, 4)
	requireSame(t, whole, observe(t, cfg, g.Prompt, 33, 4))
	var worst float64
	for id, want := range g.Final {
		worst = max(worst, math.Abs(want-float64(whole.logits[len(g.Prompt)-1][id])))
	}
	require.Less(t, worst, 0.05)
	require.Greater(t, worst, 2e-4, "the states are 16 bits wide")
}
