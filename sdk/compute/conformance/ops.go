package conformance

import (
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/bigmoe/bigmoe/sdk/compute"
	"github.com/bigmoe/bigmoe/sdk/compute/optable"
	"github.com/bigmoe/bigmoe/sdk/dtype"
)

// ops holds every op and type to the op table.
func (s *suite) ops() {
	for _, c := range optable.Cases() {
		s.run("ops", c.Name, func() error { return s.opCase(c) })
	}
	for _, b := range optable.AllBlocks() {
		cases := b.Cases()
		if !slices.Contains(s.report.Backend.Types, uint32(b.Type)) { // the first shows that it is refused
			cases = cases[:1]
		}
		for _, c := range cases {
			s.run("types", c.Name, func() error { return s.opCase(c) })
		}
	}
}

func (s *suite) opCase(c *optable.Case) error {
	p, err := s.program()
	if err != nil {
		return err
	}
	m, err := c.Build()
	if err != nil {
		return err
	}
	t, err := p.load(s.ctx, m, nil)
	if err != nil {
		return err
	}
	if err := s.undeclared(c, m); err != nil {
		return err
	}
	logits, err := t.eval(s.ctx, optable.NewHost(m), true, optable.AllTokens()...)
	if err != nil {
		return err
	}
	if err := c.Compare(m, logits); err != nil {
		return err
	}
	again, err := s.otherwise(p, m, logits)
	if err != nil {
		return err
	}
	if err := c.Compare(m, again); err != nil {
		return fmt.Errorf("in batches of 5: %w", err)
	}
	return nil
}

// undeclared fails when the backend took a plan with ops or types that it does not describe.
func (s *suite) undeclared(c *optable.Case, m *optable.Model) error {
	for _, kind := range c.Kinds() {
		if !slices.Contains(s.report.Backend.Ops, kind) {
			return fmt.Errorf("takes op %s, which it does not describe", kind)
		}
	}
	for i, w := range m.Bound.Weights {
		// Integers are for tables that token_row reads.
		if w.Type != uint32(dtype.I32) && !slices.Contains(s.report.Backend.Types, w.Type) {
			return fmt.Errorf("takes weight %q of type %v, which it does not describe", m.Bound.Plan.Weights[i].Name, dtype.Type(w.Type))
		}
	}
	return nil
}

// otherwise runs all tokens on three threads with one expert at a time, which must give the same bits, and then in batches
// of 5, which may differ in rounding. It returns the logits of the latter.
func (s *suite) otherwise(p *peer, m *optable.Model, want []float32) ([]float32, error) {
	o := &compute.Options{Context: optable.Tokens, Batch: optable.Tokens, LogitRows: optable.Tokens, Threads: 3, KvType: m.Bound.Options.KvType}
	t, err := p.loadPlaced(s.ctx, m, o)
	if err != nil {
		return nil, err
	}
	h := optable.NewHost(m)
	h.PerWave, h.Late, h.Shuffle = 1, true, rand.New(rand.NewPCG(1, 1))
	got, err := t.eval(s.ctx, h, true, optable.AllTokens()...)
	if err != nil {
		return nil, err
	}
	if err := same(want, got); err != nil {
		return nil, fmt.Errorf("with 3 threads and one expert at a time: %w", err)
	}
	if err := t.trim(s.ctx, 0); err != nil {
		return nil, err
	}
	var all []float32
	for tokens := range slices.Chunk(optable.AllTokens(), 5) {
		got, err := t.eval(s.ctx, optable.NewHost(m), true, tokens...)
		if err != nil {
			return nil, err
		}
		all = append(all, got...)
	}
	return all, nil
}

// same fails unless both are the same numbers.
func same(want, got []float32) error {
	for i, v := range want {
		if got[i] != v {
			return fmt.Errorf("element %d is %g, expected the same bits as before, %g", i, got[i], v)
		}
	}
	return nil
}
