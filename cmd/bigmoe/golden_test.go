package main

import (
	"encoding/json"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// golden is a reference output in the format moe-golden/1.
type golden struct {
	Files     []struct{ Name string }
	SameAs    string         `json:"same_as"`
	Types     map[string]int `json:"tensor_types"`
	Prompt    struct{ IDs []int32 }
	Tolerance map[string]limits
	Runs      map[string]goldenRun
	Tokenize  []goldenTokens
}

type limits struct {
	LogitAbs  float64 `json:"logit_abs"`
	LogitRMS  float64 `json:"logit_rms"`
	WeightAbs float64 `json:"routing_weight_abs"`
}

type goldenRun struct {
	Positions []struct {
		LSE float64
		Top [][2]float64
	}
	FinalLogits []float64 `json:"final_logits"`
	Greedy      struct {
		IDs    []int32
		Margin []float64
	}
	Routing struct {
		Experts [][][]int32
		Weights [][][]float64
	}
}

type goldenTokens struct {
	Text         string
	IDs          []int32
	IDsNoSpecial []int32 `json:"ids_no_special"`
	Decoded      string  `json:"decoded_without_control"`
}

func readGolden(t *testing.T, path string) *golden {
	raw, err := os.ReadFile(path)
	require.NoError(t, err)
	g := &golden{}
	require.NoError(t, json.Unmarshal(raw, g))
	if g.SameAs != "" {
		same := readGolden(t, filepath.Join(filepath.Dir(path), g.SameAs))
		same.Files = g.Files
		return same
	}
	return g
}

// bigmoe runs the program as a child, as a person would, and returns its standard output.
func bigmoe(t *testing.T, stdin string, args ...string) string {
	t.Helper()
	var stdout, stderr strings.Builder
	cmd := exec.Command("bigmoe", args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &stdout, &stderr
	require.NoError(t, cmd.Run(), stderr.String())
	require.Empty(t, stderr.String())
	return stdout.String()
}

func goldens(t *testing.T) []string {
	var paths []string
	for _, pattern := range []string{"qwen3moe/*.json", "qwen2moe/*.json"} {
		found, err := filepath.Glob(filepath.Join(goldenDir, pattern))
		require.NoError(t, err)
		paths = append(paths, found...)
	}
	require.Greater(t, len(paths), 8)
	return paths
}

// TestEvalGoldens compares the output of eval with the references: exact arithmetic where the file has float32 weights,
// else within what rounding activations to 8 bits may do.
func TestEvalGoldens(t *testing.T) {
	for _, path := range goldens(t) {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".json"), func(t *testing.T) {
			g := readGolden(t, path)
			ids, err := json.Marshal(g.Prompt.IDs)
			require.NoError(t, err)
			var got struct {
				Positions []struct {
					Pos   int
					Token int32
					LSE   float64
					Top   [][2]float64
				}
				FinalLogits []float64 `json:"final_logits"`
				Router      struct {
					IDs     [][][]int32
					Weights [][][]float64
				}
				Greedy struct{ Tokens []int32 }
			}
			out := bigmoe(t, string(ids), "eval", "-m", filepath.Join(filepath.Dir(path), g.Files[0].Name), "--tokens", "-", "--greedy", "32", "--json")
			require.NoError(t, json.Unmarshal([]byte(out), &got))

			want, tol, exact := g.Runs["f32"], g.Tolerance["f32"], true
			if q, ok := g.Tolerance["quantised_activations"]; ok {
				tol, exact = q, false
			}
			require.Len(t, got.Positions, len(want.Positions))
			for i, p := range got.Positions {
				require.Equal(t, i, p.Pos)
				require.Equal(t, g.Prompt.IDs[i], p.Token)
				require.Len(t, p.Top, 8)
				require.InDelta(t, want.Positions[i].LSE, p.LSE, tol.LogitAbs, "position %d", i)
				logit := map[float64]float64{}
				for _, top := range p.Top {
					logit[top[0]] = top[1]
				}
				require.InDelta(t, want.Positions[i].Top[0][1], p.Top[0][1], tol.LogitAbs, "position %d", i)
				for _, top := range want.Positions[i].Top {
					if l, ok := logit[top[0]]; ok {
						require.InDelta(t, top[1], l, tol.LogitAbs, "position %d, token %v", i, top[0])
					} else { // pushed out by others that are as high
						require.InDelta(t, top[1], p.Top[7][1], 2*tol.LogitAbs, "position %d, token %v is missing", i, top[0])
					}
				}
			}
			require.Len(t, got.FinalLogits, len(want.FinalLogits))
			var square float64
			for id, l := range want.FinalLogits {
				require.InDelta(t, l, got.FinalLogits[id], tol.LogitAbs, "token %d", id)
				square += (l - got.FinalLogits[id]) * (l - got.FinalLogits[id])
			}
			if !exact {
				require.LessOrEqual(t, math.Sqrt(square/float64(len(want.FinalLogits))), tol.LogitRMS)
			}
			// Codebook types: rounding flips near-ties, llama.cpp's own rounded run leads there by less than 0.05.
			sure := len(want.Greedy.IDs)
			if name := filepath.Base(path); !exact && (strings.Contains(name, "iq")) {
				if i := slices.IndexFunc(want.Greedy.Margin, func(m float64) bool { return m < tol.LogitRMS }); i >= 0 {
					sure = i
				}
			}
			require.Len(t, got.Greedy.Tokens, len(want.Greedy.IDs))
			require.Equal(t, want.Greedy.IDs[:sure], got.Greedy.Tokens[:sure])

			require.Len(t, got.Router.IDs, len(want.Routing.Experts))
			for layer, positions := range want.Routing.Experts {
				require.Len(t, got.Router.IDs[layer], len(positions), "layer %d", layer)
				for pos, experts := range positions {
					if !exact && pos >= len(g.Prompt.IDs) {
						break
					}
					ids, weights := got.Router.IDs[layer][pos], got.Router.Weights[layer][pos]
					if exact {
						require.Equal(t, experts, ids, "layer %d, position %d", layer, pos)
					}
					require.Len(t, ids, len(experts))
					for k, expert := range experts {
						at := slices.Index(ids, expert)
						require.GreaterOrEqual(t, at, 0, "layer %d, position %d: expert %d is missing from %v", layer, pos, expert, ids)
						require.InDelta(t, want.Routing.Weights[layer][pos][k], weights[at], tol.WeightAbs, "layer %d, position %d, expert %d", layer, pos, expert)
					}
				}
			}
		})
	}
}

// TestTokenizeGoldens goes there and back for every text of one reference.
func TestTokenizeGoldens(t *testing.T) {
	dir := filepath.Join(goldenDir, "qwen3moe")
	g := readGolden(t, filepath.Join(dir, "qwen3moe-f32.json"))
	model := filepath.Join(dir, g.Files[0].Name)
	require.NotEmpty(t, g.Tokenize)
	for _, c := range g.Tokenize {
		tokens := func(args ...string) (ids []int32, text string) {
			text = bigmoe(t, c.Text, append([]string{"tokenize", "-m", model, "--json"}, args...)...)
			require.NoError(t, json.Unmarshal([]byte(text), &ids))
			return ids, text
		}
		plain, _ := tokens()
		require.Equal(t, c.IDsNoSpecial, plain, "%q", c.Text)
		ids, list := tokens("--special")
		require.Equal(t, c.IDs, ids, "%q", c.Text)
		require.Equal(t, c.Decoded, bigmoe(t, list, "detokenize", "-m", model))
		require.Equal(t, c.Text, bigmoe(t, list, "detokenize", "-m", model, "--special"))
	}
}
