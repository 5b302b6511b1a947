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
// greedy has to be there.
package oracle

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/bigmoe/bigmoe/sdk/fault"
)

// Golden is a file of reference outputs.
type Golden struct {
	path      string
	Prompt    struct{ IDs []int32 }
	Tolerance map[string]Limits
	Runs      map[string]*Run
}

// Limits are the largest differences allowed.
type Limits struct {
	LogitAbs  float64 `json:"logit_abs"`
	WeightAbs float64 `json:"routing_weight_abs"`
}

// Run is what some implementation made of the prompt.
type Run struct {
	Positions []struct { // of the prompt
		LSE float64      // log-sum-exp of the logits
		Top [][2]float64 // id and logit of the highest
	}
	FinalLogits []float64 `json:"final_logits"` // of the last token of the prompt
	Greedy      struct{ IDs []int32 }
	Routing     struct {
		Experts [][][]int32   // [layer][position][k], best first
		Weights [][][]float64 // likewise
	}
}

// exact is the run in which nothing was rounded but weights; rounded is the tolerance for files whose weights are.
const (
	exact   = "f32"
	rounded = "quantised_activations"
)

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
	if err := json.Unmarshal(text, g); err != nil {
		return nil, fault.Corruptf("%s: %w", path, err)
	}
	r := g.Runs[exact]
	switch {
	case len(g.Prompt.IDs) == 0:
		err = fmt.Errorf("prompt.ids is missing or empty")
	case r == nil:
		err = fmt.Errorf("runs.%s is missing", exact)
	case len(r.Positions)+len(r.FinalLogits)+len(r.Greedy.IDs) == 0:
		err = fmt.Errorf("runs.%s has none of positions, final_logits and greedy", exact)
	case len(r.Positions) != 0 && len(r.Positions) != len(g.Prompt.IDs):
		err = fmt.Errorf("runs.%s.positions has %d entries for a prompt of %d tokens", exact, len(r.Positions), len(g.Prompt.IDs))
	}
	if err != nil {
		return nil, fault.Corruptf("%s: %w", path, err)
	}
	return g, nil
}
