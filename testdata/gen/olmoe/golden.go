package main

import (
	"cmp"
	"encoding/json"
	"math"
	"slices"
	"strconv"

	"github.com/bigmoe/bigmoe/sdk/dtype"
)

// golden is the format of the other fixtures in testdata/golden, moe-golden/1.
type golden struct {
	Format    string            `json:"format"`
	Name      string            `json:"name"`
	Arch      string            `json:"arch"`
	Files     []file            `json:"files"`
	Made      map[string]string `json:"made"`
	Types     map[string]int    `json:"tensor_types"`
	Prompt    promptText        `json:"prompt"`
	Tolerance map[string]limits `json:"tolerance"`
	Runs      map[string]*run   `json:"runs"`
}

type file struct {
	Name string `json:"name"`
}

type promptText struct {
	Text string `json:"text"`
	IDs  []int  `json:"ids"`
}

type limits struct {
	LogitAbs  number `json:"logit_abs"`
	LogitRMS  number `json:"logit_rms,omitempty"`
	WeightAbs number `json:"routing_weight_abs"`
}

type run struct {
	Positions   []position `json:"positions"`
	FinalLogits []number   `json:"final_logits"`
	Greedy      struct {
		IDs    []int     `json:"ids"`
		Margin []float64 `json:"-"`
	} `json:"greedy"`
	Routing struct {
		Experts [][][]int    `json:"experts"` // [layer][position][k], best first
		Weights [][][]number `json:"weights"`
		Gap     [][]float64  `json:"-"`
	} `json:"routing"`
}

type position struct {
	LSE number      `json:"lse"`
	Top [][2]number `json:"top"`
}

// number has six significant digits in JSON.
type number float64

func (n number) MarshalJSON() ([]byte, error) {
	return []byte(strconv.FormatFloat(float64(n), 'g', 6, 64)), nil
}

var _ json.Marshaler = number(0)

const greedyTokens, topCount = 16, 8

// run evaluates the prompt and goes on with the most likely tokens.
func (m *model) run() *run {
	var r run
	s := &sequence{m: m}
	var logits []float64
	for _, id := range encode(prompt) {
		logits = s.step(id)
		r.Positions = append(r.Positions, summary(logits))
	}
	for _, l := range logits {
		r.FinalLogits = append(r.FinalLogits, number(l))
	}
	for {
		order := byLogit(logits)
		r.Greedy.IDs = append(r.Greedy.IDs, order[0])
		r.Greedy.Margin = append(r.Greedy.Margin, logits[order[0]]-logits[order[1]])
		if len(r.Greedy.IDs) == greedyTokens {
			break
		}
		logits = s.step(order[0])
	}
	for _, positions := range s.chosen {
		var ids [][]int
		var weights [][]number
		var gaps []float64
		for _, c := range positions {
			shares := make([]number, used)
			for i, w := range c.weights {
				shares[i] = number(w)
			}
			ids, weights, gaps = append(ids, c.experts), append(weights, shares), append(gaps, c.gap)
		}
		r.Routing.Experts = append(r.Routing.Experts, ids)
		r.Routing.Weights = append(r.Routing.Weights, weights)
		r.Routing.Gap = append(r.Routing.Gap, gaps)
	}
	return &r
}

func byLogit(logits []float64) []int {
	order := make([]int, len(logits))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(logits[b], logits[a]) })
	return order
}

func summary(logits []float64) (p position) {
	order := byLogit(logits)
	top := logits[order[0]]
	var sum float64
	for _, l := range logits {
		sum += math.Exp(l - top)
	}
	p.LSE = number(top + math.Log(sum))
	for _, id := range order[:topCount] {
		p.Top = append(p.Top, [2]number{number(id), number(logits[id])})
	}
	return p
}

// roundedLimits allow for activations that are rounded to 8 bits. Logits: twice what llama.cpp's rounding does to the
// quantised model, see testdata/golden/olmoe/README.md; weights: chosen.
var roundedLimits = limits{LogitAbs: 1.1, LogitRMS: 0.12, WeightAbs: 0.05}

func (m *model) golden(name string) *golden {
	r := m.run()
	var square float64
	for _, l := range r.FinalLogits {
		square += float64(l * l)
	}
	g := &golden{Format: "moe-golden/1", Name: name, Arch: "olmoe", Files: []file{{name + ".gguf"}},
		Made: map[string]string{"model": "testdata/gen/olmoe, seed " + strconv.Itoa(chosenSeed),
			"f32": "64-bit forward pass over the weights as decoded, in testdata/gen/olmoe/forward.go"},
		Types:  map[string]int{},
		Prompt: promptText{prompt, encode(prompt)},
		Tolerance: map[string]limits{"f32": {
			LogitAbs: number(1e-4 * math.Sqrt(square/float64(len(r.FinalLogits)))), WeightAbs: 1e-5}},
		Runs: map[string]*run{"f32": r}}
	for _, t := range m.tensors {
		g.Types[t.typ.String()]++
	}
	if m.typ != dtype.F32 {
		g.Tolerance["quantised_activations"] = roundedLimits
	}
	return g
}
