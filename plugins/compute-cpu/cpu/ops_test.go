package cpu_test

import (
	"context"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/plugins/compute-cpu/cpu"
	"github.com/bigmoe/bigmoe/sdk/compute"
	"github.com/bigmoe/bigmoe/sdk/compute/optable"
	"github.com/bigmoe/bigmoe/sdk/dtype"
	"github.com/bigmoe/bigmoe/sdk/fault"
	"github.com/bigmoe/bigmoe/sdk/plan"
)

// evalCase runs a case's tokens in batches of at most chunk. Logits that were not wanted are nil.
func evalCase(t *testing.T, m *optable.Model, kernels string, threads, chunk int, all bool) [][]float32 {
	backend, err := cpu.New(cpu.Options{Kernels: kernels})
	require.NoError(t, err)
	bound := m.Options(&compute.Options{Context: optable.Tokens, Batch: uint32(chunk), LogitRows: uint32(chunk), Threads: uint32(threads),
		KvType: m.Bound.Options.KvType})
	seq, err := backend.Load(bound, m.Region)
	require.NoError(t, err)
	defer seq.Close()
	width := int(bound.Plan.Model.Vocabulary)
	out := make([][]float32, optable.Tokens)
	h := optable.NewHost(m)
	pos := 0
	for tokens := range slices.Chunk(optable.AllTokens(), chunk) {
		b := m.Batch(pos, all, tokens...)
		require.NoError(t, seq.Eval(context.Background(), b, h))
		pos += len(tokens)
		rows := len(b.Logits) / width
		for i := range rows {
			out[pos-rows+i] = b.Logits[i*width:][:width]
		}
	}
	return out
}

// TestOps holds every op on every kernel set to a plain float64 evaluation, and to itself for other threads and batches.
func TestOps(t *testing.T) {
	covered := map[string]bool{}
	for _, c := range optable.Cases() {
		for _, kind := range c.Kinds() {
			covered[kind] = true
		}
		t.Run(c.Name, func(t *testing.T) {
			m := build(t, c)
			for _, kernels := range cpu.Kernels() {
				got := evalCase(t, m, kernels, 1, optable.Tokens, true)
				require.NoError(t, c.Compare(m, slices.Concat(got...)), kernels)
				for _, w := range []struct {
					threads, chunk int
					all            bool
				}{{3, optable.Tokens, true}, {1, 4, true}, {2, 1, true}, {2, 5, false}} {
					for i, row := range evalCase(t, m, kernels, w.threads, w.chunk, w.all) {
						if row != nil {
							require.Equal(t, got[i], row, "%s, %+v, row %d", kernels, w, i)
						}
					}
				}
			}
		})
	}
	for _, kind := range newBackend(t).Describe().Ops {
		require.True(t, covered[kind], "op %q is described but no case covers it", kind)
	}
	require.Len(t, covered, len(newBackend(t).Describe().Ops), covered)
}

// TestTypes holds every type of weight, on every kernel set, to its decoded blocks.
func TestTypes(t *testing.T) {
	covered := []uint32{uint32(dtype.F32), uint32(dtype.F16), uint32(dtype.BF16)} // by TestOps
	for _, b := range optable.AllBlocks() {
		covered = append(covered, uint32(b.Type))
	}
	require.ElementsMatch(t, newBackend(t).Describe().Types, covered)
	for _, c := range optable.TypeCases() {
		t.Run(c.Name, func(t *testing.T) {
			m := build(t, c)
			for _, kernels := range cpu.Kernels() {
				require.NoError(t, c.Compare(m, slices.Concat(evalCase(t, m, kernels, 2, optable.Tokens, true)...)), kernels)
			}
		})
	}
}

// TestGivenExpertsThatDoNotExist: a table of experts by token is part of the file, and may be wrong.
func TestGivenExpertsThatDoNotExist(t *testing.T) {
	c := optable.Named("token_row and route with picks")
	c.Ops[1] = optable.Op("slice", "x", "", "l", attrs{"width": 4}) // of 6 experts
	m := build(t, c)
	seq, err := newBackend(t).Load(m.Bound, m.Region)
	require.NoError(t, err)
	defer seq.Close()
	err = seq.Eval(t.Context(), m.Batch(0, true, optable.AllTokens()...), optable.NewHost(m))
	require.ErrorContains(t, err, "of 4 is given")
	require.Equal(t, fault.Corrupt, fault.KindOf(err))
}

// TestTablesOfIntegers: only token_row takes integers, and only integers.
func TestTablesOfIntegers(t *testing.T) {
	for _, test := range []struct {
		op   *plan.Op
		typ  dtype.Type
		says string
	}{
		{optable.Op("token_row", "", "experts_of", "y", nil), dtype.F32, `weight "experts_of" is F32, a table of ids is I32`},
		{optable.Op("embed", "", "experts_of", "y", nil), dtype.I32, `weight "experts_of" is I32, which the cpu backend has no kernel for`},
	} {
		p := &plan.Plan{Schema: plan.SchemaVersion, Recipe: "case", Model: &plan.Model{Layers: 1, Vocabulary: 3},
			Weights: []*plan.Weight{{Name: "experts_of", Shape: []uint64{3, 5}}},
			Blocks:  []*plan.Block{{Kind: plan.BlockKind_LAYER, Ops: []*plan.Op{test.op}}}}
		_, err := newBackend(t).Prepare(&compute.Bound{Plan: p, Values: plan.Values{"y": {Width: 3}}, Weights: []*compute.BoundWeight{{Type: uint32(test.typ), RowBytes: 12}},
			Options: &compute.Options{Context: 4, Batch: 4, LogitRows: 1, Threads: 1}})
		require.ErrorContains(t, err, test.says)
		require.Equal(t, fault.Unsupported, fault.KindOf(err))
	}
}

// TestFixedStates: a state of fixed size goes back to the beginning and nowhere else, and a failed evaluation leaves it
// unusable until then.
func TestFixedStates(t *testing.T) {
	for name, beside := range map[string]uint64{ // numbers that the backend keeps beside those of the plan
		"short_conv and silu":                           0,
		"gated_delta_net tiled, heads of 5":             2*8*5 + 6*8*5 + 6*9, // keys, corrections and decays of a chunk of 8 tokens
		"gated_delta_net, decay by channel, heads of 5": 0,
	} {
		t.Run(name, func(t *testing.T) {
			c := optable.Named(name)
			m := build(t, c)
			bound := m.Options(&compute.Options{Context: 16, Batch: 16, LogitRows: 16, Threads: 2})
			needs, err := newBackend(t).Prepare(bound)
			require.NoError(t, err)
			require.GreaterOrEqual(t, needs.StateBytes, 4*(c.States[0].Elements+beside))
			require.Less(t, needs.StateBytes, 4*(c.States[0].Elements+beside)+4*128)
			seq, err := newBackend(t).Load(bound, m.Region)
			require.NoError(t, err)
			defer seq.Close()
			h := optable.NewHost(m)
			first := m.Batch(0, true, 1, 2, 3, 4, 5)
			require.NoError(t, seq.Eval(t.Context(), first, h))
			require.NoError(t, seq.Trim(5), "where it is")
			for _, position := range []int{1, 4} {
				err := seq.Trim(position)
				require.ErrorContains(t, err, c.States[0].Name)
				require.Equal(t, fault.Bug, fault.KindOf(err))
			}
			require.NoError(t, seq.Eval(t.Context(), m.Batch(5, true, 6, 7), h), "a refused trim changes nothing")
			require.NoError(t, seq.Trim(0))
			again := m.Batch(0, true, 1, 2, 3, 4, 5)
			require.NoError(t, seq.Eval(t.Context(), again, h))
			require.Equal(t, first.Logits, again.Logits)
		})
	}
}

// TestFixedStatesAfterFailure: an evaluation that stops behind a convolution has already changed what it remembers.
func TestFixedStatesAfterFailure(t *testing.T) {
	m := build(t, optable.Named("short_conv and experts"))
	seq, err := newBackend(t).Load(m.Options(&compute.Options{Context: 16, Batch: 16, LogitRows: 1, Threads: 1}), m.Region)
	require.NoError(t, err)
	defer seq.Close()
	h := optable.NewHost(m)
	eval := func(ctx context.Context, position int) ([]float32, error) {
		b := m.Batch(position, false, 1, 2, 3)
		return b.Logits, seq.Eval(ctx, b, h)
	}
	want, err := eval(t.Context(), 0)
	require.NoError(t, err)
	stopped, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = eval(stopped, 3)
	require.ErrorIs(t, err, context.Canceled)
	for _, try := range []func() error{
		func() error { _, err := eval(t.Context(), 3); return err },
		func() error { return seq.Trim(3) },
	} {
		err := try()
		require.ErrorContains(t, err, "must be reset")
		require.Equal(t, fault.Bug, fault.KindOf(err))
	}
	require.NoError(t, seq.Trim(0))
	again, err := eval(t.Context(), 0)
	require.NoError(t, err)
	require.Equal(t, want, again)
}
