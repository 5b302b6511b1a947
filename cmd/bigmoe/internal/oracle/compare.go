package oracle

import (
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
	Positions int     `json:"positions"` // of the prompt whose logits were compared
	Greedy    int     `json:"greedy"`    // tokens written alike
	Choices   int     `json:"choices"`   // of experts, one for each token and layer
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
	cfg.KV, cfg.Context = compute.KVType_F32, n+len(g.Runs[exact].Greedy.IDs)+1
	cfg.Batch, cfg.LogitRows = n, n
	c := &comparison{Golden: g, run: g.Runs[exact], result: &Result{Positions: len(g.Runs[exact].Positions)}}
	cfg.OnRoute = c.route
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
	lossy    bool  // some weights are quantised: only which experts are chosen has to agree, not their order
	seen     []int // positions, by layer
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
	c.limit = c.Tolerance[exact]
	if l, ok := c.Tolerance[rounded]; ok && c.lossy {
		c.limit = l
	}
	c.result.Allowed = c.limit.LogitAbs
}

// route sees what the routers chose, layer after layer for every batch.
func (c *comparison) route(layer, k int, ids []int32, weights []float32) {
	for len(c.seen) <= layer {
		c.seen = append(c.seen, 0)
	}
	for i := 0; i < len(ids); i += k {
		at := c.seen[layer]
		c.seen[layer]++
		if layer < len(c.run.Routing.Experts) && at < len(c.run.Routing.Experts[layer]) && (!c.lossy || at < len(c.Prompt.IDs)) {
			c.choice(layer, at, ids[i:i+k], weights[i:i+k])
		}
	}
}

func (c *comparison) choice(layer, position int, ids []int32, weights []float32) {
	want, got := c.run.Routing.Experts[layer][position], ids
	if c.lossy {
		want, got = slices.Sorted(slices.Values(want)), slices.Sorted(slices.Values(got))
	}
	if !slices.Equal(want, got) {
		c.problem("layer %d, position %d: experts %v, expected %v", layer, position, ids, c.run.Routing.Experts[layer][position])
		return
	}
	c.result.Choices++
	if layer >= len(c.run.Routing.Weights) || position >= len(c.run.Routing.Weights[layer]) || c.limit.WeightAbs == 0 {
		return
	}
	for i, expert := range c.run.Routing.Experts[layer][position] {
		if i >= len(c.run.Routing.Weights[layer][position]) {
			return
		}
		w := float64(weights[slices.Index(ids, expert)])
		if expected := c.run.Routing.Weights[layer][position][i]; !(math.Abs(w-expected) <= c.limit.WeightAbs) {
			c.problem("layer %d, position %d: expert %d has weight %.6g, expected %.6g", layer, position, expert, w, expected)
			return
		}
	}
}

func (c *comparison) evaluate(ctx context.Context, s *engine.Session) error {
	var final []float32
	err := s.Score(ctx, c.Prompt.IDs, 0, func(pos int, logits []float32) error {
		if pos < len(c.run.Positions) {
			p := c.run.Positions[pos]
			c.see(fmt.Sprintf("position %d, log-sum-exp", pos), logSumExp(logits), p.LSE)
			for _, top := range p.Top {
				c.logit(pos, logits, int(top[0]), top[1])
			}
		}
		if pos == len(c.Prompt.IDs)-1 {
			final = slices.Clone(logits)
		}
		return nil
	})
	if err != nil {
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
	switch {
	case c.limit.LogitAbs == 0 && len(c.run.Positions)+len(c.run.FinalLogits) > 0:
		c.problem("tolerance.%s.logit_abs is missing; the largest difference is %.3g (%s)", exact, c.result.Largest, c.worst)
	case c.result.Largest > c.limit.LogitAbs:
		c.problem("logits differ by up to %.3g where %.3g is allowed (%s)", c.result.Largest, c.limit.LogitAbs, c.worst)
	}
	if len(c.problems) == 0 {
		return nil
	}
	return fmt.Errorf("not what %s says:\n  %s", c.path, strings.Join(c.problems, "\n  "))
}
