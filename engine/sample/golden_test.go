package sample

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

type goldens struct {
	LogitSets map[string][]*float64 `json:"logit_sets"`
	Vectors   []struct {
		Name    string            `json:"name"`
		Logits  string            `json:"logits"`
		Chain   []json.RawMessage `json:"chain"`
		History []int32           `json:"history"`
		Steps   int               `json:"steps"`
		Want    struct {
			Candidates  [][]*float64 `json:"candidates"` // id, logit, p
			Picks       []int32      `json:"picks"`
			NCandidates int          `json:"n_candidates"`
		} `json:"want"`
	} `json:"vectors"`
}

// number reads what JSON cannot spell: null is -Inf.
func number(x *float64) float32 {
	if x == nil {
		return float32(math.Inf(-1))
	}
	return float32(*x)
}

// paramsOf turns a chain of the golden file into parameters; ok is false if it has a stage that we lack.
func paramsOf(t *testing.T, chain []json.RawMessage) (p Params, ok bool) {
	p = Default()
	p.Seed, p.Samplers, p.LogitBias = 1, []string{}, map[int32]float32{}
	minKeep := -1
	for _, raw := range chain {
		var stage []json.RawMessage
		require.NoError(t, json.Unmarshal(raw, &stage))
		var name string
		require.NoError(t, json.Unmarshal(stage[0], &name))
		arg := func(i int) float64 {
			var x float64
			require.NoError(t, json.Unmarshal(stage[i], &x), name)
			return x
		}
		keep := func(i int) {
			require.True(t, minKeep < 0 || minKeep == int(arg(i)), "our min_keep is one for all stages")
			minKeep = int(arg(i))
			p.MinKeep = minKeep
		}
		listed := name
		switch name {
		case "dist":
			p.Seed, listed = uint32(arg(1)), ""
		case "logit_bias":
			listed = ""
			var biases [][]*float64
			require.NoError(t, json.Unmarshal(stage[1], &biases))
			for _, b := range biases {
				p.LogitBias[int32(*b[0])] = number(b[1])
			}
		case "penalties":
			p.PenaltyLastN, p.RepeatPenalty = int(arg(1)), float32(arg(2))
			p.FrequencyPenalty, p.PresencePenalty = float32(arg(3)), float32(arg(4))
		case "top_k":
			p.TopK = int(arg(1))
		case "top_p":
			p.TopP = float32(arg(1))
			keep(2)
		case "min_p":
			p.MinP = float32(arg(1))
			keep(2)
		case "typ_p":
			p.TypicalP = float32(arg(1))
			keep(2)
		case "top_n_sigma":
			p.TopNSigma = float32(arg(1))
		case "xtc":
			p.XTCProbability, p.XTCThreshold, p.Seed = float32(arg(1)), float32(arg(2)), uint32(arg(4))
			keep(3)
		case "temp", "temp_ext":
			p.Temperature, listed = float32(arg(1)), "temperature"
			if name == "temp_ext" {
				p.TemperatureRange, p.TemperatureFactor = float32(arg(2)), float32(arg(3))
			}
		case "mirostat", "mirostat_v2":
			p.Mirostat, listed = 1, ""
			if name == "mirostat_v2" {
				p.Mirostat = 2
			}
			p.Seed, p.MirostatTau, p.MirostatEta = uint32(arg(1)), float32(arg(2)), float32(arg(3))
		case "adaptive_p":
			p.AdaptiveTarget, p.AdaptiveDecay, p.Seed = float32(arg(1)), float32(arg(2)), uint32(arg(3))
		default:
			return p, false
		}
		if listed != "" {
			p.Samplers = append(p.Samplers, listed)
		}
	}
	return p, true
}

// TestGolden runs chains that were run in llama.cpp: the candidates after the first step, and the picks.
func TestGolden(t *testing.T) {
	data, err := os.ReadFile(filepath.Join("..", "..", "testdata", "golden", "sampling", "samplers.json"))
	require.NoError(t, err)
	var g goldens
	require.NoError(t, json.Unmarshal(data, &g))
	skipped := 0
	for _, v := range g.Vectors {
		p, ok := paramsOf(t, v.Chain)
		if !ok {
			skipped++
			continue
		}
		t.Run(v.Name, func(t *testing.T) {
			s, err := New(p)
			require.NoError(t, err)
			for _, id := range v.History {
				s.Accept(id)
			}
			var logits []float32
			for _, l := range g.LogitSets[v.Logits] {
				logits = append(logits, number(l))
			}
			original := slices.Clone(logits)
			for step := range max(1, v.Steps) {
				id, err := s.Sample(logits)
				require.NoError(t, err)
				if step == 0 && v.Want.Candidates != nil {
					tied := v.Logits == "A" || v.Logits == "E"
					checkCandidates(t, v.Want.Candidates, s, id, tied, v.Steps > 0)
				}
				if v.Want.NCandidates > 0 {
					require.Len(t, s.c.list, v.Want.NCandidates)
					require.Less(t, int(id), v.Want.NCandidates, "ties: lowest ids")
				}
				if step < len(v.Want.Picks) {
					require.Equal(t, v.Want.Picks[step], id, "step %d", step)
				}
				s.Accept(id)
			}
			require.Equal(t, original, logits)
		})
	}
	t.Logf("%d chains, %d skipped: dry is not here", len(g.Vectors), skipped)
	require.Equal(t, 12, skipped)
	require.Len(t, g.Vectors, 229)
}

func checkCandidates(t *testing.T, want [][]*float64, s *Sampler, picked int32, tied, chosen bool) {
	const tolerance = 1e-5
	if s.greedy { // there is no list: what the golden leaves possible is the pick
		for _, w := range want {
			require.Equal(t, w[1] != nil, int32(*w[0]) == picked)
		}
		return
	}
	got := slices.Clone(s.c.list)
	require.Len(t, got, len(want))
	if tied {
		slices.SortStableFunc(got, func(a, b candidate) int { return int(a.id - b.id) })
		slices.SortStableFunc(want, func(a, b []*float64) int { return int(*a[0] - *b[0]) })
	}
	for i, w := range want {
		require.Equal(t, int32(*w[0]), got[i].id, "candidate %d of %v", i, got)
		if w[1] == nil {
			require.True(t, math.IsInf(float64(got[i].logit), -1), "candidate %d", i)
		} else {
			require.InDelta(t, *w[1], got[i].logit, tolerance, "candidate %d", i)
		}
		if chosen && len(w) > 2 { // otherwise the golden shows the probabilities before the choice
			require.InDelta(t, *w[2], got[i].p, tolerance, "candidate %d", i)
		}
	}
}
