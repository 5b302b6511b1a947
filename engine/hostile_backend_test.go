package engine_test

import (
	"context"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/engine"
	"github.com/bigmoe/bigmoe/sdk/compute"
	"github.com/bigmoe/bigmoe/sdk/fault"
)

// lying is the CPU backend with a change to what it says or writes.
type lying struct {
	compute.Backend
	needs func(*compute.Needs)
	wrap  func(compute.Host) compute.Host
	after func(*compute.Batch)
}

func (l lying) Prepare(m *compute.Bound) (*compute.Needs, error) {
	n, err := l.Backend.Prepare(m)
	if err == nil && l.needs != nil {
		l.needs(n)
	}
	return n, err
}

func (l lying) Load(m *compute.Bound, r *compute.Region) (compute.Sequence, error) {
	seq, err := l.Backend.Load(m, r)
	return lyingSequence{seq, l}, err
}

type lyingSequence struct {
	compute.Sequence
	lying lying
}

func (s lyingSequence) Eval(ctx context.Context, b *compute.Batch, h compute.Host) error {
	if s.lying.wrap != nil {
		h = s.lying.wrap(h)
	}
	err := s.Sequence.Eval(ctx, b, h)
	if err == nil && s.lying.after != nil {
		s.lying.after(b)
	}
	return err
}

// routing is a host that is asked for something else.
type routing struct {
	compute.Host
	route func(h compute.Host, bank, k int, ids []int32, weights []float32) (compute.Wave, error)
}

func (r routing) Route(bank, k int, ids []int32, weights []float32) (compute.Wave, error) {
	return r.route(r.Host, bank, k, ids, weights)
}

// TestHostileComputation: what a backend computes is checked where the engine relies on it.
func TestHostileComputation(t *testing.T) {
	g, model := loadGolden(t, "qwen3moe/qwen3moe-f32")
	routes := func(f func(h compute.Host, bank, k int, ids []int32, weights []float32) (compute.Wave, error)) lying {
		return lying{wrap: func(h compute.Host) compute.Host { return routing{h, f} }}
	}
	for name, c := range map[string]struct {
		lying lying
		say   string
	}{
		"logits that are NaN":      {lying{after: func(b *compute.Batch) { b.Logits[17] = float32(math.NaN()) }}, "NaN"},
		"logits that are infinite": {lying{after: func(b *compute.Batch) { b.Logits[17] = float32(math.Inf(1)) }}, "Inf"},
		"an expert that does not exist": {routes(func(h compute.Host, bank, k int, ids []int32, w []float32) (compute.Wave, error) {
			ids[0] = 16
			return h.Route(bank, k, ids, w)
		}), "expert 16"},
		"a negative expert": {routes(func(h compute.Host, bank, k int, ids []int32, w []float32) (compute.Wave, error) {
			ids[0] = -1
			return h.Route(bank, k, ids, w)
		}), "expert -1"},
		"a layer that does not exist": {routes(func(h compute.Host, bank, k int, ids []int32, w []float32) (compute.Wave, error) {
			return h.Route(99, k, ids, w)
		}), "bank 99"},
		"a wave too many": {routes(func(h compute.Host, bank, k int, ids []int32, w []float32) (compute.Wave, error) {
			if _, err := h.Route(bank, k, ids, w); err != nil {
				return compute.Wave{}, err
			}
			return h.Next()
		}), "wave that was not announced"},
	} {
		t.Run(name, func(t *testing.T) {
			c.lying.Backend = newCPU("")
			e := open(t, config(model, engine.Backend{InProcess: c.lying}))
			_, err := e.NewSession().Generate(t.Context(), greedy(g.Prompt.IDs, 2), silent)
			require.ErrorContains(t, err, c.say)
			require.Equal(t, fault.Bug, fault.KindOf(err), err)
		})
	}
	t.Run("it needs more than there is", func(t *testing.T) {
		cfg := config(model, engine.Backend{InProcess: lying{Backend: newCPU(""), needs: func(n *compute.Needs) { n.StateBytes = 1 << 50 }}})
		cfg.MemoryBytes = 1 << 30
		_, err := engine.Open(t.Context(), cfg)
		require.ErrorContains(t, err, "states for a context of")
		require.Equal(t, fault.User, fault.KindOf(err))
	})
}
