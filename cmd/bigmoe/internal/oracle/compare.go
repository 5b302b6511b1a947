package oracle

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/bigmoe/bigmoe/engine"
	"github.com/bigmoe/bigmoe/plugins/compute-cpu/cpu"
	"github.com/bigmoe/bigmoe/sdk/compute"
	"github.com/bigmoe/bigmoe/sdk/dtype"
)

// Result is what a comparison found within the tolerance.
type Result struct {
	Largest   float64 `json:"largest_difference"` // of a logit
	Allowed   float64 `json:"allowed"`
	Logits    int     `json:"logits"`    // compared, log-sum-exps included
	Positions int     `json:"positions"` // of the prompt with logits that were compared
	Greedy    int     `json:"greedy"`    // tokens written alike
	Choices   int     `json:"choices"`   // of experts, one for each token and layer
	Layers    int     `json:"layers"`    // with choices that were compared
	Routed    int     `json:"routed"`    // layers with experts
	Tie       string  `json:"tie,omitempty"`
}

// String says in a line what was compared and how well it agreed.
func (r *Result) String() string {
	var parts []string
	if r.Logits > 0 {
		parts = append(parts, fmt.Sprintf("logits within %.2g of %.2g allowed", r.Largest, r.Allowed))
	} else {
		parts = append(parts, "no logits to compare")
	}
	switch {
	case r.Routed == 0:
	case r.Choices == 0:
		parts = append(parts, "no choices of experts to compare")
	case r.Layers < r.Routed:
		parts = append(parts, fmt.Sprintf("the same %d choices of experts in %d of %d layers", r.Choices, r.Layers, r.Routed))
	default:
		parts = append(parts, fmt.Sprintf("the same %d choices of experts", r.Choices))
	}
	if r.Greedy > 0 {
		parts = append(parts, fmt.Sprintf("%d tokens of text", r.Greedy))
	} else {
		parts = append(parts, "no text to compare")
	}
	if r.Tie != "" {
		parts = append(parts, r.Tie)
	}
	return strings.Join(parts, "; ")
}

// plainKernels is the name of the reference among the CPU backend's kernels.
const plainKernels = "go"

// Compare evaluates the prompt with cfg's model and recipes. An error that is no [fault.Kind] says what differs.
func (g *Golden) Compare(ctx context.Context, cfg engine.Config) (*Result, error) {
	b, err := cpu.New(cpu.Options{Kernels: plainKernels})
	if err != nil {
		return nil, err
	}
	n := len(g.Prompt.IDs)
	cfg.Backend = engine.Backend{InProcess: b}
	cfg.KV, cfg.Context = compute.KVType_F32, n+len(g.Runs.Exact.Greedy.IDs)+1
	cfg.Batch, cfg.LogitRows = n, n
	c := &comparison{Golden: g, run: g.Runs.Exact, result: &Result{}, until: math.MaxInt}
	cfg.OnRoute, cfg.OnScores = c.route, c.score
	e, err := engine.Open(ctx, cfg)
	if err != nil {
		return nil, err
	}
	c.limits(e)
	return c.result, errors.Join(c.evaluate(ctx, e.NewSession()), e.Close(), c.verdict())
}

type comparison struct {
	*Golden
	run      *Run
	result   *Result
	limit    Limits
	lossy    bool        // some weights are quantised: only which experts are chosen has to agree, not their order
	seen     []int       // positions, by layer
	scores   [][]float32 // of the experts, for each token of the batch that is being routed
	until    int         // positions from here on are not comparable: see tie
	squares  float64     // sum over all differences
	others   bool        // some experts were not those expected
	problems []string
	worst    string // where the largest difference is
}

func (c *comparison) problem(format string, args ...any) {
	const most = 5
	if len(c.problems) < most {
		c.problems = append(c.problems, fmt.Sprintf(format, args...))
	}
}

func (c *comparison) limits(e *engine.Engine) {
	for _, t := range e.File.Tensors() {
		c.lossy = c.lossy || !slices.Contains([]dtype.Type{dtype.F32, dtype.F16, dtype.BF16}, t.Type)
	}
	c.limit = c.Tolerance.Exact
	if c.lossy && c.Tolerance.Rounded != nil {
		c.limit = *c.Tolerance.Rounded
	}
	c.result.Allowed = c.limit.LogitAbs
}

func (c *comparison) evaluate(ctx context.Context, s *engine.Session) error {
	var final []float32
	err := s.Score(ctx, c.Prompt.IDs, 0, func(pos int, logits []float32) error {
		if pos < min(len(c.run.Positions), c.until) {
			p := c.run.Positions[pos]
			c.result.Positions++
			if p.LSE != nil {
				c.see(fmt.Sprintf("position %d, log-sum-exp", pos), logSumExp(logits), *p.LSE)
			}
			for _, top := range p.Top {
				c.logit(pos, logits, int(top[0]), top[1])
			}
		}
		if pos == len(c.Prompt.IDs)-1 {
			final = slices.Clone(logits)
		}
		return nil
	})
	if err != nil || len(c.Prompt.IDs) > c.until {
		return err
	}
	if n := len(c.run.FinalLogits); n > 0 && n != len(final) {
		c.problem("the vocabulary has %d tokens, expected %d", len(final), n)
		return nil
	}
	for id, want := range c.run.FinalLogits {
		c.logit(len(c.Prompt.IDs)-1, final, id, want)
	}
	return c.greedy(ctx, s, final)
}

func (c *comparison) greedy(ctx context.Context, s *engine.Session, logits []float32) error {
	for i, want := range c.run.Greedy.IDs {
		if len(c.Prompt.IDs)+i > c.until {
			return nil
		}
		next := int32(0)
		for id, l := range logits {
			if l > logits[next] {
				next = int32(id)
			}
		}
		if next != want {
			c.problem("token %d after the prompt is %d, expected %d", i, next, want)
			return nil
		}
		if c.result.Greedy++; c.result.Greedy == len(c.run.Greedy.IDs) {
			return nil
		}
		err := s.Score(ctx, []int32{next}, 0, func(_ int, row []float32) error {
			logits = slices.Clone(row)
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *comparison) logit(pos int, logits []float32, id int, want float64) {
	if id < 0 || id >= len(logits) {
		c.problem("position %d: token %d of %d", pos, id, len(logits))
		return
	}
	c.see(fmt.Sprintf("position %d, token %d", pos, id), float64(logits[id]), want)
}

func (c *comparison) see(where string, got, want float64) {
	d := math.Abs(got - want)
	if math.IsNaN(d) {
		d = math.Inf(1)
	}
	c.result.Logits++
	c.squares += d * d
	if d > c.result.Largest {
		c.result.Largest, c.worst = d, fmt.Sprintf("%s: %.6g, expected %.6g", where, got, want)
	}
}

func logSumExp(logits []float32) float64 {
	top := float64(slices.Max(logits))
	var sum float64
	for _, l := range logits {
		sum += math.Exp(float64(l) - top)
	}
	return top + math.Log(sum)
}

// verdict names routing first, since what differs there makes everything after it differ.
func (c *comparison) verdict() error {
	rms := math.Sqrt(c.squares / float64(max(c.result.Logits, 1)))
	switch {
	case c.limit.LogitAbs == 0 && c.result.Logits > 0:
		c.problem("tolerance.f32.logit_abs is missing; the largest difference is %.3g (%s)", c.result.Largest, c.worst)
	case c.result.Largest > c.limit.LogitAbs:
		c.problem("logits differ by up to %.3g where %.3g is allowed (%s)", c.result.Largest, c.limit.LogitAbs, c.worst)
	case c.limit.LogitRMS > 0 && rms > c.limit.LogitRMS:
		c.problem("logits differ by %.3g on average (root mean square) where %.3g is allowed", rms, c.limit.LogitRMS)
	case c.result.Logits+c.result.Greedy == 0 && len(c.problems) == 0:
		c.problem("nothing is left to compare: %s", cmp.Or(c.result.Tie, "no position has lse or top"))
	}
	if len(c.problems) == 0 {
		return nil
	}
	if c.lossy && c.Tolerance.Rounded == nil {
		c.problems = append(c.problems, "This need not be the recipe: the model is quantised, which rounds its products, and tolerance.quantised_activations is "+
			"missing. Check the recipe with a model in 32-bit floats, or state that tolerance.")
	} else if c.others && c.limit.WeightAbs == 0 {
		c.problems = append(c.problems, "The tolerance has no routing_weight_abs: without it, no other expert counts as a tie.")
	}
	return fmt.Errorf("not what %s says:\n  %s", c.path, strings.Join(c.problems, "\n  "))
}
