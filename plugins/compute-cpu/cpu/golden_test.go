package cpu_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/plugins/compute-cpu/cpu"
	"github.com/bigmoe/bigmoe/sdk/compute"
	"github.com/bigmoe/bigmoe/sdk/compute/optable"
)

// golden is the part of a moe-golden/1 file that a backend can be held to.
type golden struct {
	Prompt struct {
		IDs []int32 `json:"ids"`
	} `json:"prompt"`
	Runs struct {
		F32 struct {
			Positions []struct {
				LSE float64      `json:"lse"`
				Top [][2]float64 `json:"top"`
			} `json:"positions"`
			FinalLogits []float64 `json:"final_logits"`
			Greedy      struct {
				IDs []int32 `json:"ids"`
			} `json:"greedy"`
			Routing struct {
				Experts [][][]int32   `json:"experts"` // [layer][position][k]
				Weights [][][]float64 `json:"weights"`
			} `json:"routing"`
		} `json:"f32"`
	} `json:"runs"`
	Tolerance struct {
		F32       tolerance `json:"f32"`
		Quantised tolerance `json:"quantised_activations"`
	} `json:"tolerance"`
}

type tolerance struct {
	LogitAbs         float64 `json:"logit_abs"`
	LogitRMS         float64 `json:"logit_rms"`
	RoutingWeightAbs float64 `json:"routing_weight_abs"`
}

// goldens are the files and whether their weights round activations to 8 bits.
var goldens = []struct {
	name      string
	file      string
	quantised bool
}{
	{"qwen3moe/qwen3moe-f32", "", false},
	{"qwen3moe/qwen3moe-f32", "qwen3moe/qwen3moe-split-00002-of-00003.gguf", false},
	{"qwen3moe/qwen3moe-yarn-f32", "", false},
	{"qwen3moe/qwen3moe-f16", "", false},
	{"qwen3moe/qwen3moe-bf16", "", false},
	{"qwen3moe/qwen3moe-k-q8_0", "", true},
	{"qwen3moe/qwen3moe-k-q5_k_m", "", true},
	{"qwen3moe/qwen3moe-k-q4_k_m", "", true},
	{"qwen3moe/qwen3moe-k-q4_0", "", true},
	{"qwen3moe/qwen3moe-k-mxfp4", "", true},
	{"qwen2moe/qwen2moe-f32", "", false},
	{"qwen2moe/qwen2moe-k-q4_k_m", "", true},
}

const goldenDir = "../../../testdata/golden"

func readGolden(t testing.TB, name string) *golden {
	text, err := os.ReadFile(filepath.Join(goldenDir, name+".json"))
	require.NoError(t, err)
	g := &golden{}
	require.NoError(t, json.Unmarshal(text, g))
	require.NotEmpty(t, g.Prompt.IDs)
	return g
}

// way is one way to run a text.
type way struct {
	threads int
	chunk   int // tokens of one batch; 0: all
	slots   int // experts in memory
	perWave int
	seed    uint64 // of the order in which experts come; 0: at once, in order
	all     bool   // logits of every position
}

// result is what a run gave, per position.
type result struct {
	logits  [][]float32 // nil where not wanted
	ids     [][]int32   // [layer] tokens x k
	weights [][]float32
}

// only is r as a run sees it that wanted the logits of got alone: the last layer does not route the other tokens.
func (r *result) only(got *result) *result {
	last, k := len(r.ids)-1, len(r.ids[0])/len(r.logits)
	out := &result{ids: slices.Clone(r.ids), weights: slices.Clone(r.weights)}
	out.ids[last], out.weights[last] = nil, nil
	for pos, logits := range got.logits {
		if logits != nil {
			out.ids[last] = append(out.ids[last], r.ids[last][pos*k:][:k]...)
			out.weights[last] = append(out.weights[last], r.weights[last][pos*k:][:k]...)
		}
	}
	return out
}

// run evaluates the prompt and then continues greedily, n tokens in all after the prompt.
func run(t *testing.T, kernels, file string, prompt []int32, n int, w way) (*result, []int32) {
	m := openModel(t, filepath.Join(goldenDir, file), w.slots)
	backend, err := cpu.New(cpu.Options{Kernels: kernels})
	require.NoError(t, err)
	chunk := w.chunk
	if chunk == 0 {
		chunk = len(prompt)
	}
	total := len(prompt) + n
	bound := m.Options(&compute.Options{Context: uint32(total), Batch: uint32(chunk), LogitRows: uint32(chunk), Threads: uint32(w.threads), KvType: compute.KVType_F32})
	_, err = backend.Prepare(bound)
	require.NoError(t, err)
	seq, err := backend.Load(bound, m.Region)
	require.NoError(t, err)
	defer func() { require.NoError(t, seq.Close()) }()
	h := optable.NewHost(m)
	h.PerWave = w.perWave
	if w.seed != 0 {
		h.Late, h.Shuffle = true, rand.New(rand.NewPCG(w.seed, 0))
	}
	vocabulary := int(bound.Plan.Model.Vocabulary)
	out := &result{}
	eval := func(tokens []int32, all bool) []float32 {
		rows := 1
		if all {
			rows = len(tokens)
		}
		b := &compute.Batch{Tokens: tokens, Position: len(out.logits), Rows: m.Rows(tokens), All: all, Logits: make([]float32, rows*vocabulary)}
		require.NoError(t, seq.Eval(context.Background(), b, h))
		for i := range tokens {
			if all {
				out.logits = append(out.logits, b.Logits[i*vocabulary:][:vocabulary])
			} else if i < len(tokens)-1 {
				out.logits = append(out.logits, nil)
			} else {
				out.logits = append(out.logits, b.Logits)
			}
		}
		return b.Logits[(rows-1)*vocabulary:]
	}
	var last []float32
	for part := range slices.Chunk(prompt, chunk) {
		last = eval(part, w.all)
	}
	var greedy []int32
	for i := range n {
		greedy = append(greedy, argmax(last))
		if i < n-1 {
			last = eval(greedy[i:], false)
		}
	}
	h.Wait()
	out.ids, out.weights = h.IDs, h.Weights
	return out, greedy
}

func argmax(x []float32) int32 {
	best := 0
	for i, v := range x {
		if v > x[best] {
			best = i
		}
	}
	return int32(best)
}

// compare holds a run to the golden under its tolerance (README-a.md of the goldens, "How to compare").
func compare(t *testing.T, g *golden, got *result, greedy []int32, quantised bool) {
	want, limit := &g.Runs.F32, g.Tolerance.F32
	if quantised {
		limit = g.Tolerance.Quantised
	}
	require.NotZero(t, limit.LogitAbs)
	require.Equal(t, want.Greedy.IDs, greedy)
	var worst, square float64
	values := 0
	check := func(want, got float64) {
		d := math.Abs(want - got)
		if math.IsNaN(d) {
			d = math.Inf(1)
		}
		worst = max(worst, d)
		square += d * d
		values++
	}
	require.Len(t, want.Positions, len(g.Prompt.IDs))
	for i, p := range want.Positions {
		logits := got.logits[i]
		for _, top := range p.Top {
			check(top[1], float64(logits[int(top[0])]))
		}
		check(p.LSE, logSumExp(logits))
	}
	require.Len(t, got.logits[len(g.Prompt.IDs)-1], len(want.FinalLogits))
	for i, v := range want.FinalLogits {
		check(v, float64(got.logits[len(g.Prompt.IDs)-1][i]))
	}
	rms := math.Sqrt(square / float64(values))
	t.Logf("logits differ by at most %.2g of %.2g, rms %.2g", worst, limit.LogitAbs, rms)
	require.LessOrEqual(t, worst, limit.LogitAbs)
	if limit.LogitRMS > 0 {
		require.LessOrEqual(t, rms, limit.LogitRMS)
	}
	for layer, positions := range want.Routing.Experts {
		k := len(positions[0])
		n := len(positions)
		if quantised {
			n = len(g.Prompt.IDs)
		}
		require.GreaterOrEqual(t, len(got.ids[layer]), n*k)
		for pos, experts := range positions[:n] {
			ids, weights := got.ids[layer][pos*k:][:k], got.weights[layer][pos*k:][:k]
			if quantised {
				require.ElementsMatch(t, experts, ids, "layer %d, position %d", layer, pos)
			} else {
				require.Equal(t, experts, ids, "layer %d, position %d", layer, pos)
			}
			for i, id := range experts {
				w := weights[slices.Index(ids, id)]
				require.InDelta(t, want.Routing.Weights[layer][pos][i], w, limit.RoutingWeightAbs, "layer %d, position %d, expert %d", layer, pos, id)
			}
		}
	}
}

func logSumExp(x []float32) float64 {
	top := float64(slices.Max(x))
	var sum float64
	for _, v := range x {
		sum += math.Exp(float64(v) - top)
	}
	return top + math.Log(sum)
}

// ways are different ways to the same bits. Plain Go is slow and takes the two that differ most.
func ways(kernels string) []way {
	all := []way{
		{threads: 2, chunk: 1, slots: 16, all: true, seed: 1},
		{threads: 3, chunk: 20, slots: 3, seed: 2},
		{threads: 2, slots: 16, all: true},
		{threads: 1, chunk: 7, slots: 16, all: true},
		{threads: 3, slots: 16, perWave: 1, seed: 3},
		{threads: 1, slots: 5, perWave: 5, seed: 4},
		{threads: 2, slots: 16, seed: 5},
	}
	if kernels == "go" {
		return all[:2]
	}
	return all
}

// TestGoldens holds every golden file whose types are supported to llama.cpp's results, on every kernel set, and every
// way to run it to the same bits.
func TestGoldens(t *testing.T) {
	for _, kernels := range cpu.Kernels() {
		for _, c := range goldens {
			file := c.file
			if file == "" {
				file = c.name + ".gguf"
			}
			t.Run(kernels+"/"+filepath.Base(file), func(t *testing.T) {
				if testing.Short() && kernels == "go" && c.quantised {
					t.Skip("plain Go with 8-bit activations takes minutes under the race detector; not in -short")
				}
				t.Parallel()
				g := readGolden(t, c.name)
				base, greedy := run(t, kernels, file, g.Prompt.IDs, len(g.Runs.F32.Greedy.IDs), way{threads: 1, slots: 16, all: true})
				compare(t, g, base, greedy, c.quantised)
				for _, w := range ways(kernels) {
					t.Run(fmt.Sprintf("%+v", w), func(t *testing.T) {
						got, ids := run(t, kernels, file, g.Prompt.IDs, len(greedy), w)
						require.Equal(t, greedy, ids)
						want := base.only(got)
						require.Equal(t, want.ids, got.ids)
						require.Equal(t, want.weights, got.weights)
						for pos, logits := range got.logits {
							if logits != nil && base.logits[pos] != nil {
								require.Equal(t, base.logits[pos], logits, "position %d", pos)
							}
						}
					})
				}
			})
		}
	}
}
