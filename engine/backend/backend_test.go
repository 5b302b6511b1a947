package backend

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/sdk/compute"
	"github.com/bigmoe/bigmoe/sdk/fault"
)

// script runs prefill, decode, trim and decode again, and returns all logits.
func script(t *testing.T, h *bench, seq compute.Sequence) []float32 {
	var all []float32
	eval := func(b *compute.Batch) {
		require.NoError(t, seq.Eval(t.Context(), b, h))
		all = append(all, b.Logits...)
	}
	eval(h.batch(0, false, 1, 2, 3, 4, 5))
	eval(h.batch(5, true, 6, 7, 8))
	eval(h.batch(8, false, 0))
	require.NoError(t, seq.Trim(6))
	eval(h.batch(6, false, 3))
	require.NoError(t, seq.Trim(0))
	eval(h.batch(0, false, 3))
	return all
}

func TestSameResultsInAndOutOfProcess(t *testing.T) {
	h := newBench(t)
	want := script(t, h, h.load(t, InProcess(fake{}, h.memory)))
	require.Len(t, want, 7*vocabulary)

	p := h.start(t)
	require.Equal(t, "fake", p.Describe().Name)
	needs, err := p.Prepare(t.Context(), h.model)
	require.NoError(t, err)
	require.EqualValues(t, 64, needs.StateBytes)
	for _, perWave := range []int{slots, 2, 1} {
		for _, delay := range []time.Duration{0, 3 * time.Millisecond} {
			h.perWave, h.delay = perWave, delay
			require.Equal(t, want, script(t, h, h.load(t, p)), "%d slots per wave, ready after %v", perWave, delay)
		}
	}
	require.NoError(t, p.Dead())
}

func TestErrorsKeepTheirTextAndKind(t *testing.T) {
	h := newBench(t)
	p := h.start(t)

	h.model.Options.Threads = 900
	_, err := p.Prepare(t.Context(), h.model)
	require.ErrorContains(t, err, `op "warp" is not supported`)
	require.Equal(t, fault.Unsupported, fault.KindOf(err))

	h.model.Options.Threads = 902
	_, err = p.Load(t.Context(), h.model, h.layout)
	require.ErrorContains(t, err, `weight "w" is not finite`)
	require.Equal(t, fault.Corrupt, fault.KindOf(err))

	h.model.Options.Threads = 1
	for name, d := range map[string]Device{"in process": InProcess(fake{}, h.memory), "out of process": p} {
		t.Run(name, func(t *testing.T) {
			seq := h.load(t, d)
			err := seq.Eval(t.Context(), h.batch(0, false, tokenUnsupported), h)
			require.EqualError(t, err, `type "Q9_9"`)
			require.Equal(t, fault.Unsupported, fault.KindOf(err))

			err = seq.Trim(17)
			require.EqualError(t, err, "trim to 17 of 0")
			require.Equal(t, fault.User, fault.KindOf(err))

			broken := errors.New("disk is on fire")
			h.fail = broken
			err = seq.Eval(t.Context(), h.batch(0, false, 1), h)
			require.EqualError(t, err, "layer 0: disk is on fire")
			require.ErrorIs(t, err, broken, "the engine's own error comes back as itself")
			h.fail = nil

			require.NoError(t, seq.Trim(0))
			require.NoError(t, seq.Eval(t.Context(), h.batch(0, false, 1), h), "works afterwards")
			require.NoError(t, seq.Close())
			require.NoError(t, seq.Close())
		})
	}
	require.NoError(t, p.Dead())
}

// TestIdleProcessors sees that a backend's Go has processors to spare, or its scheduler takes those of waiting threads away all the time.
func TestIdleProcessors(t *testing.T) {
	h := newBench(t)
	h.model.Options.Threads = 16
	h.load(t, h.start(t))
}
