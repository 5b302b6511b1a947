package cpu_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/plugins/compute-cpu/cpu"
	"github.com/bigmoe/bigmoe/sdk/compute"
	"github.com/bigmoe/bigmoe/sdk/compute/optable"
	"github.com/bigmoe/bigmoe/sdk/fault"
)

// windowed is attention that sees 5 positions, with a state that keeps the last keep of them (0: all), for batches of 4
// in a context of 64.
func windowed(t *testing.T, keep uint64) (*optable.Model, compute.Sequence, uint64) {
	m := build(t, optable.Windowed(keep))
	backend, err := cpu.New(cpu.Options{})
	require.NoError(t, err)
	bound := m.Options(&compute.Options{Context: 64, Batch: 4, LogitRows: 4, Threads: 2, KvType: compute.KVType_F16})
	needs, err := backend.Prepare(bound)
	require.NoError(t, err)
	seq, err := backend.Load(bound, m.Region)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, seq.Close()) })
	return m, seq, needs.StateBytes
}

// text is an endless text.
func text(position, n int) (tokens []int32) {
	for i := range n {
		tokens = append(tokens, int32((position+i)*7%11))
	}
	return tokens
}

// TestWindowedState: a state that keeps a window and a batch gives the bits of one that keeps everything, wherever its ring
// wraps, and after every way back that it allows.
func TestWindowedState(t *testing.T) {
	whole, all, allBytes := windowed(t, 0)
	m, ring, ringBytes := windowed(t, 5)
	const position = 2 * 2 * 16 // bytes of F16 keys and values
	require.EqualValues(t, 64*position, allBytes)
	require.EqualValues(t, (5-1+4)*position, ringBytes)

	eval := func(at int, tokens []int32) {
		t.Helper()
		got, want := m.Batch(at, true, tokens...), whole.Batch(at, true, tokens...)
		require.NoError(t, all.Eval(t.Context(), want, optable.NewHost(whole)))
		require.NoError(t, ring.Eval(t.Context(), got, optable.NewHost(m)))
		require.Equal(t, want.Logits, got.Logits, "position %d", at)
	}
	at := 0
	for _, n := range []int{4, 1, 3, 2, 4, 4, 1, 4} {
		eval(at, text(at, n))
		at += n
	}
	for back := 1; back <= 4; back++ { // with another continuation each time
		require.NoError(t, ring.Trim(at-back))
		require.NoError(t, all.Trim(at-back))
		eval(at-back, text(at+back, back))
	}

	err := ring.Trim(at - 5)
	require.ErrorContains(t, err, `state "kv" keeps the last 8 of 23 positions`)
	require.Equal(t, fault.Unsupported, fault.KindOf(err))
	require.NoError(t, ring.Trim(at-4))
	require.ErrorContains(t, ring.Trim(at-5), "positions", "what was overwritten stays so when the text gets shorter")
	require.NoError(t, all.Trim(at-4))
	eval(at-4, text(at-4, 4))

	require.NoError(t, ring.Trim(0))
	require.NoError(t, all.Trim(0))
	eval(0, text(3, 4))
	eval(4, text(7, 4))
	require.NoError(t, ring.Trim(1), "nothing has been overwritten since")
	require.NoError(t, all.Trim(1))
	eval(1, text(1, 4))
}
