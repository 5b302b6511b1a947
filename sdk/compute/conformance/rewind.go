package conformance

import (
	"errors"
	"fmt"

	"github.com/bigmoe/bigmoe/sdk/compute"
	"github.com/bigmoe/bigmoe/sdk/compute/mailbox"
	"github.com/bigmoe/bigmoe/sdk/compute/optable"
	"github.com/bigmoe/bigmoe/sdk/fault"
)

func (s *suite) rewinds() {
	s.onLayer("rewind", "reset", func(t *text, h *optable.Host, want []float32) error {
		for range 2 {
			if err := s.sameAgain(t, h, want); err != nil {
				return err
			}
		}
		return nil
	})
	s.onLayer("rewind", "trim, and another continuation", s.trimmed)
	s.onLayer("rewind", "trim to where it is", func(t *text, h *optable.Host, _ []float32) error {
		if _, err := t.eval(s.ctx, h, true, 1, 2, 3); err != nil {
			return err
		}
		return t.trim(s.ctx, 3)
	})
	s.onLayer("rewind", "trim past the end", func(t *text, h *optable.Host, want []float32) error {
		return s.recovers(t, want, t.trim(s.ctx, 1), "")
	})
	s.onLayer("rewind", "a batch that leaves a gap", func(t *text, h *optable.Host, want []float32) error {
		t.at = 1
		_, err := t.eval(s.ctx, h, true, 1)
		return s.recovers(t, want, err, "")
	})
	s.run("rewind", "a windowed state, as far as it goes", s.window)
	for _, name := range []string{"short_conv", "gated_delta_net tiled, heads of 5", "compress, all rows"} {
		s.run("rewind", "states that cannot be trimmed: "+name, func() error { return s.snapshot(name) })
	}
	s.onLayer("rewind", "close, and load again", func(t *text, h *optable.Host, want []float32) error {
		if _, err := t.eval(s.ctx, h, true, 1, 2, 3); err != nil {
			return err
		}
		again, err := t.peer.loadPlaced(s.ctx, t.model, t.bound.Options)
		if err != nil {
			return err
		}
		return s.sameAgain(again, h, want)
	})
}

// trimmed goes back after other tokens, which must leave no trace.
func (s *suite) trimmed(t *text, h *optable.Host, _ []float32) error {
	var runs [2][]float32
	for i := range runs {
		if t.at > 0 {
			if err := t.trim(s.ctx, 0); err != nil {
				return err
			}
		}
		if _, err := t.eval(s.ctx, h, false, 0, 1, 2, 3, 4); err != nil {
			return err
		}
		if i == 1 {
			if _, err := t.eval(s.ctx, h, false, 9, 10, 11, 12); err != nil {
				return err
			}
			if err := t.trim(s.ctx, 5); err != nil {
				return err
			}
		}
		var err error
		if runs[i], err = t.eval(s.ctx, h, true, 5, 6, 7); err != nil {
			return err
		}
	}
	return same(runs[0], runs[1])
}

// small loads a case for batches of 4.
func (s *suite) small(c *optable.Case) (*text, error) {
	p, m, err := s.build(c)
	if err != nil {
		return nil, err
	}
	return p.load(s.ctx, m, &compute.Options{Context: optable.Tokens, Batch: 4, LogitRows: 4, Threads: 2, KvType: m.Bound.Options.KvType})
}

// window trims by a batch, which a windowed state allows, and by more, which it may refuse.
func (s *suite) window() error {
	t, err := s.small(optable.Windowed(5))
	if err != nil {
		return err
	}
	h := optable.NewHost(t.model)
	eval := func(tokens ...int32) []float32 {
		if err != nil {
			return nil
		}
		var logits []float32
		logits, err = t.eval(s.ctx, h, true, tokens...)
		return logits
	}
	trim := func(position int) {
		if err == nil {
			err = t.trim(s.ctx, position)
		}
	}
	eval(0, 1, 2, 3)
	eval(4, 5, 6, 7)
	want := eval(8, 9, 10, 11)
	trim(8)
	again := eval(8, 9, 10, 11)
	if err != nil {
		return err
	}
	if err := same(want, again); err != nil {
		return fmt.Errorf("after a trim by a batch: %w", err)
	}
	if err := t.trim(s.ctx, 2); err != nil { // it may also keep everything
		if err := refusedAs(err, fault.Unsupported); err != nil {
			return err
		}
		t.at = 12
		if _, err := t.eval(s.ctx, h, true, 12); err != nil {
			return fmt.Errorf("after a refused trim: %w", err)
		}
	}
	return nil
}

// snapshot goes to the middle, which must be refused and change nothing, and to the beginning.
func (s *suite) snapshot(name string) error {
	t, err := s.small(optable.Named(name))
	if err != nil {
		return err
	}
	h := optable.NewHost(t.model)
	var runs [2][]float32
	for i := range runs {
		first, err := t.eval(s.ctx, h, true, 0, 1, 2, 3)
		if err != nil {
			return err
		}
		if i == 0 {
			reply, err := t.ask(s.ctx, &mailbox.Message{Kind: mailbox.Trim, Position: 2})
			if err != nil {
				return err
			}
			if err := t.ended(mailbox.Trim, reply); err == nil {
				return errors.New("it says that it went to the middle")
			}
		}
		then, err := t.eval(s.ctx, h, true, 4, 5, 6, 7)
		if err != nil {
			return err
		}
		runs[i] = append(first, then...)
		if err := t.trim(s.ctx, 0); err != nil {
			return err
		}
	}
	return same(runs[1], runs[0])
}

// refusedAs wants err to be a refusal of that kind.
func refusedAs(err error, kind fault.Kind) error {
	var r refused
	switch {
	case err == nil:
		return errors.New("it was not refused")
	case !errors.As(err, &r):
		return err
	case fault.KindOf(err) != kind:
		return fmt.Errorf("refused as %v, expected %v: %w", fault.KindOf(err), kind, err)
	}
	return nil
}
