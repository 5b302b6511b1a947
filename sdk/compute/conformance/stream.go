package conformance

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"time"
	"unsafe"

	"github.com/bigmoe/bigmoe/sdk/compute"
	"github.com/bigmoe/bigmoe/sdk/compute/mailbox"
	"github.com/bigmoe/bigmoe/sdk/compute/optable"
	"github.com/bigmoe/bigmoe/sdk/fault"
)

// layer loads a layer with attention and experts, and evaluates it once.
func (s *suite) layer() (t *text, want []float32, err error) {
	p, m, err := s.build(optable.Layer())
	if err != nil {
		return nil, nil, err
	}
	if t, err = p.load(s.ctx, m, nil); err != nil {
		return nil, nil, err
	}
	want, err = t.eval(s.ctx, optable.NewHost(m), true, optable.AllTokens()...)
	if err != nil {
		return nil, nil, err
	}
	return t, want, t.trim(s.ctx, 0)
}

// onLayer is a check of the layer under a host, or with an engine, of the check's choosing.
func (s *suite) onLayer(group, name string, f func(t *text, h *optable.Host, want []float32) error) {
	s.run(group, name, func() error {
		t, want, err := s.layer()
		if err != nil {
			return err
		}
		return f(t, optable.NewHost(t.model), want)
	})
}

// again evaluates all tokens from the beginning.
func (s *suite) again(t *text, h compute.Host) ([]float32, error) {
	if t.at > 0 {
		if err := t.trim(s.ctx, 0); err != nil {
			return nil, err
		}
	}
	return t.eval(s.ctx, h, true, optable.AllTokens()...)
}

// sameAgain evaluates all tokens from the beginning, which must give the bits that it gave before.
func (s *suite) sameAgain(t *text, h compute.Host, want []float32) error {
	got, err := s.again(t, h)
	if err != nil {
		return err
	}
	return same(want, got)
}

// recovers wants an evaluation to have been refused, and the next one, after a reset, to work.
func (s *suite) recovers(t *text, want []float32, err error, says string) error {
	var r refused
	switch {
	case err == nil:
		return errors.New("the evaluation worked")
	case !errors.As(err, &r):
		return err
	case !strings.Contains(err.Error(), says):
		return fmt.Errorf("the error is %q, expected %q in it", err, says)
	}
	t.box.SetCancel(false)
	if err := t.trim(s.ctx, 0); err != nil {
		return fmt.Errorf("afterwards, a reset: %w", err)
	}
	if err := s.sameAgain(t, optable.NewHost(t.model), want); err != nil {
		return fmt.Errorf("afterwards: %w", err)
	}
	return nil
}

func (s *suite) streams() {
	s.onLayer("streaming", "one expert at a time", func(t *text, h *optable.Host, want []float32) error {
		h.PerWave = 1
		return s.sameAgain(t, h, want)
	})
	s.onLayer("streaming", "experts and parts that land late, in any order", func(t *text, h *optable.Host, want []float32) error {
		for seed := range uint64(8) {
			h := optable.NewHost(t.model)
			h.Late, h.Shuffle, h.PerWave = true, rand.New(rand.NewPCG(seed, 0)), int(seed)%5
			if err := s.sameAgain(t, h, want); err != nil {
				return err
			}
		}
		return nil
	})
	s.onLayer("streaming", "logits of the last token only", func(t *text, h *optable.Host, want []float32) error {
		got, err := t.eval(s.ctx, h, false, optable.AllTokens()...)
		if err != nil {
			return err
		}
		for i, v := range want[len(want)-len(got):] {
			if math.Abs(float64(got[i]-v)) > 1e-4 {
				return fmt.Errorf("element %d is %g, with all tokens it was %g", i, got[i], v)
			}
		}
		return nil
	})
	s.onLayer("streaming", "writes only where it may", s.tidy)
	s.onLayer("streaming", "signs of life and stall while it waits for an expert", s.slow)
	s.onLayer("streaming", "weights that the engine changes", s.reweighed)
	s.onLayer("streaming", "an expert that could not be read", func(t *text, h *optable.Host, want []float32) error {
		h.Fail, h.Late, h.Delay = true, true, 20*time.Millisecond
		_, err := t.eval(s.ctx, h, true, optable.AllTokens()...)
		h.Wait()
		return s.recovers(t, want, err, "")
	})
	s.onLayer("streaming", "a failure of the engine", func(t *text, h *optable.Host, want []float32) error {
		_, err := t.eval(s.ctx, changed{h, func(*compute.Wave) error { return fault.Corruptf("the disk is on fire") }}, true, 1, 2)
		return s.recovers(t, want, err, "the disk is on fire")
	})
	s.onLayer("streaming", "cancelled before it routes", func(t *text, h *optable.Host, want []float32) error {
		t.box.SetCancel(true)
		_, err := t.eval(s.ctx, changed{h, func(*compute.Wave) error { return errors.New("it routed, with cancel set") }}, true, 1, 2)
		if err := s.recovers(t, want, err, ""); err != nil {
			return err
		}
		if strings.Contains(err.Error(), "it routed") {
			return err
		}
		return nil
	})
	s.onLayer("streaming", "cancelled between waves", func(t *text, h *optable.Host, want []float32) error {
		h.PerWave = 1
		_, err := t.eval(s.ctx, changed{h, func(*compute.Wave) error { t.box.SetCancel(true); return nil }}, true, optable.AllTokens()...)
		return s.recovers(t, want, err, "")
	})
	for _, c := range []struct {
		name   string
		change func(w *compute.Wave)
	}{
		{"a slot that was given away", func(w *compute.Wave) { w.Slots[0].Gen++ }},
		{"an expert that nobody picked", func(w *compute.Wave) { w.Slots[0].Expert = 6 }},
		{"an expert that comes twice", func(w *compute.Wave) { w.Slots = append(w.Slots, w.Slots[0]) }},
		{"an expert that is left out", func(w *compute.Wave) { w.Slots = w.Slots[1:] }},
		{"a part outside the region", func(w *compute.Wave) { w.Slots[0].Part[1] = math.MaxUint64 - 64 }},
		{"a part that ends outside the region", func(w *compute.Wave) { w.Slots[0].Part[1] = regionBytes - 8 }},
		{"a readiness word outside the region", func(w *compute.Wave) { w.Slots[0].Ready = math.MaxUint32 }},
	} {
		s.onLayer("streaming", c.name, func(t *text, h *optable.Host, want []float32) error {
			_, err := t.eval(s.ctx, changed{h, func(w *compute.Wave) error { c.change(w); return nil }}, true, 1)
			return s.recovers(t, want, err, "")
		})
	}
}

// changed is a host that says something else.
type changed struct {
	*optable.Host
	change func(w *compute.Wave) error
}

func (c changed) Route(bank, k int, ids []int32, weights []float32) (compute.Wave, error) {
	w, err := c.Host.Route(bank, k, ids, weights)
	if err == nil {
		err = c.change(&w)
	}
	return w, err
}

// slow lets every part of an expert take its time.
func (s *suite) slow(t *text, h *optable.Host, want []float32) error {
	const delay = 130 * time.Millisecond
	h.Late, h.Delay = true, delay
	before, start := t.box.Heartbeat().Load(), time.Now()
	if _, err := t.eval(s.ctx, h, true, 1); err != nil {
		return err
	}
	took := time.Since(start)
	// Three experts of three parts: 9 waits of 130 ms, with a sign of life at least every 100 ms.
	if beats := t.box.Heartbeat().Load() - before; beats < 9 {
		return fmt.Errorf("the heartbeat went up by %d while it waited for %v", beats, took)
	}
	if stall := time.Duration(t.last.Stall); stall < took/2 {
		return fmt.Errorf("DONE says that %v were waited for experts, it took %v", stall, took)
	}
	return nil
}

// tidy looks at all of the region, and at what follows it, after an evaluation that brings the same experts into the same
// slots as the one before.
func (s *suite) tidy(t *text, h *optable.Host, want []float32) error {
	const beyond = 1 << 20
	l, region := t.model.Layout, t.model.Region.Bytes
	if err := s.sameAgain(t, h, want); err != nil {
		return err
	}
	if err := t.trim(s.ctx, 0); err != nil {
		return err
	}
	t.place(t.model.Batch(0, true, optable.AllTokens()...))
	before := bytes.Clone(region[:l.RegionBytes+beyond])
	if err := s.sameAgain(t, h, want); err != nil {
		return err
	}
	after := bytes.Clone(region[:len(before)])
	rows := uint64(t.bound.Options.LogitRows) * uint64(t.bound.Plan.Model.Vocabulary)
	for _, part := range []struct{ at, size uint64 }{
		{l.Mailbox, mailbox.Bytes}, {l.Routes, 8 * l.MaxRoute}, {l.Logits, 4 * rows}, // its own
		{l.Wave, uint64(unsafe.Sizeof(compute.Slot{})) * l.MaxWave}, {l.Ready, 4 * l.Slots}, // the engine's, new each time
	} {
		copy(after[part.at:][:part.size], before[part.at:])
	}
	for i, data := range t.model.Dense { // else what it writes each time would go unnoticed
		copy(before[t.model.Bound.Weights[i].Offset:], data)
	}
	for i, b := range before {
		if after[i] != b {
			return fmt.Errorf("byte %d of the region is %#x, it was %#x, and is not the backend's to write", i, after[i], b)
		}
	}
	return nil
}

// reweighed doubles the weights of the picks, and with them what the experts add.
func (s *suite) reweighed(t *text, h *optable.Host, want []float32) error {
	var sums [3][]float32
	for i := range sums {
		got, err := s.again(t, weighing{h, float32(i)})
		if err != nil {
			return err
		}
		sums[i] = got
	}
	var moved float64
	for i := range want {
		none, once, twice := float64(sums[0][i]), float64(sums[1][i]), float64(sums[2][i])
		moved = max(moved, math.Abs(once-none))
		if math.Abs(twice-once-(once-none)) > 1e-3*max(1, math.Abs(once)) {
			return fmt.Errorf("element %d is %g, %g and %g with weights times 0, 1 and 2", i, none, once, twice)
		}
	}
	if moved == 0 {
		return errors.New("the weights that the engine leaves in routes change nothing")
	}
	return nil
}

// weighing multiplies the weights.
type weighing struct {
	*optable.Host
	factor float32
}

func (w weighing) Route(bank, k int, ids []int32, weights []float32) (compute.Wave, error) {
	wave, err := w.Host.Route(bank, k, ids, weights)
	for i := range weights {
		weights[i] *= w.factor
	}
	return wave, err
}
