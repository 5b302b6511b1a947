// Package oracle holds a model's outputs against reference outputs, computed with the plain Go kernels.
//
//	g, err := oracle.Read("olmoe-f32.json")
//	result, err := g.Compare(ctx, engine.Config{Model: "olmoe-f32.gguf", Recipes: recipes})
//
// The file is JSON, of which this is enough:
//
//	{
//	  "prompt": {"ids": [1, 2, 3]},
//	  "tolerance": {"f32": {"logit_abs": 0.001}},
//	  "runs": {"f32": {"final_logits": [0.25, -1.5, …]}}
//	}
//
// docs/tutorial-recipe.md describes the rest of it. What a file leaves out is not compared; one of positions, final_logits and
// greedy has to be there. Beside prompt, tolerance and runs there may be anything; a field in them that is not known is refused,
// since a misspelt one would not be compared either.
package oracle

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"

	"github.com/bigmoe/bigmoe/sdk/fault"
)

// Golden is a file of reference outputs.
type Golden struct {
	path   string
	Prompt struct {
		IDs  []int32 `json:"ids"`
		Text ignored `json:"text"`
	}
	Tolerance struct {
		Exact   Limits  `json:"f32"`
		Rounded *Limits `json:"quantised_activations"` // for models whose weights are quantised; nil: not given
	}
	Runs struct {
		Exact  *Run    `json:"f32"` // in which nothing was rounded but weights
		Native ignored `json:"native"`
	}
}

// ignored is a field that other programs use.
type ignored = json.RawMessage

// Limits are the largest differences allowed.
type Limits struct {
	LogitAbs  float64 `json:"logit_abs"`
	LogitRMS  float64 `json:"logit_rms"`          // of all logits compared; 0: not looked at
	WeightAbs float64 `json:"routing_weight_abs"` // 0: not looked at

	HiddenRel ignored `json:"hidden_rel"`
	Experts   ignored `json:"experts"`
	Greedy    ignored `json:"greedy"`
}

// Run is what some implementation made of the prompt.
type Run struct {
	Positions []struct { // of the prompt
		LSE *float64     `json:"lse"` // log-sum-exp of the logits
		Top [][2]float64 `json:"top"` // id and logit of the highest
	} `json:"positions"`
	FinalLogits []float64 `json:"final_logits"` // of the last token of the prompt
	Greedy      struct {
		IDs    []int32 `json:"ids"`
		Logit  ignored `json:"logit"`
		Margin ignored `json:"margin"`
	} `json:"greedy"`
	Routing struct {
		Experts [][][]int32   `json:"experts"` // [layer][position][k], best first
		Weights [][][]float64 `json:"weights"` // likewise
		Gap     ignored       `json:"gap"`
	} `json:"routing"`
	Hidden ignored `json:"hidden"`
}

// Is reports whether text looks like a file of reference outputs.
func Is(text []byte) bool {
	var probe struct{ Runs json.RawMessage }
	return json.Unmarshal(text, &probe) == nil && probe.Runs != nil
}

// Read reads a file of reference outputs.
func Read(path string) (*Golden, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fault.As(fault.User, err)
	}
	g := &Golden{path: path}
	if err := g.decode(text); err != nil {
		return nil, fault.Corruptf("%s: %w", path, err)
	}
	r := g.Runs.Exact
	switch {
	case len(g.Prompt.IDs) == 0:
		err = fmt.Errorf("prompt.ids is missing or empty")
	case r == nil:
		err = fmt.Errorf("runs.f32 is missing")
	case len(r.Positions)+len(r.FinalLogits)+len(r.Greedy.IDs) == 0:
		err = fmt.Errorf("runs.f32 has none of positions, final_logits and greedy")
	case len(r.Positions) != 0 && len(r.Positions) != len(g.Prompt.IDs):
		err = fmt.Errorf("runs.f32.positions has %d entries for a prompt of %d tokens", len(r.Positions), len(g.Prompt.IDs))
	}
	if err != nil {
		return nil, fault.Corruptf("%s: %w", path, err)
	}
	return g, nil
}

// decode reads the three parts that are compared, and refuses what it does not know in them.
func (g *Golden) decode(text []byte) error {
	var file struct{ Prompt, Tolerance, Runs json.RawMessage }
	if err := json.Unmarshal(text, &file); err != nil {
		return err
	}
	for _, part := range []struct {
		name string
		text json.RawMessage
		into any
	}{{"prompt", file.Prompt, &g.Prompt}, {"tolerance", file.Tolerance, &g.Tolerance}, {"runs", file.Runs, &g.Runs}} {
		if part.text == nil {
			continue
		}
		d := json.NewDecoder(bytes.NewReader(part.text))
		d.DisallowUnknownFields()
		if err := d.Decode(part.into); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
	}
	return nil
}
