package cpu_test

import (
	"context"
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/plugins/compute-cpu/cpu"
	"github.com/bigmoe/bigmoe/sdk/compute"
	"github.com/bigmoe/bigmoe/sdk/dtype"
	"github.com/bigmoe/bigmoe/sdk/fault"
	"github.com/bigmoe/bigmoe/sdk/plan"
)

func fixedState(name string, kind plan.StateKind, elements uint64) *plan.State {
	return &plan.State{Name: name, Kind: kind, Elements: elements, Rewind: plan.Rewind_SNAPSHOT}
}

func sigmoid64(x float64) float64 { return 1 / (1 + math.Exp(-x)) }

// conv64 convolves channels with the kernel w, zeros before the text.
func conv64(act func(float64) float64) func(matrix, map[string]matrix) matrix {
	return func(x matrix, w map[string]matrix) (y matrix) {
		for t := range x {
			var out []float64
			for c := range x[t] {
				taps, sum := w["w"][c], 0.0
				for i, k := range taps {
					if at := t - len(taps) + 1 + i; at >= 0 {
						sum += k * x[at][c]
					}
				}
				out = append(out, act(sum))
			}
			y = append(y, out)
		}
		return y
	}
}

func convCase(name string, taps, width uint64, activation string, act func(float64) float64) opCase {
	return opCase{name: name, width: int(width), weights: []tensor{f32("w", taps, width)},
		states: []*plan.State{fixedState("past", plan.StateKind_CONVOLUTION, (taps-1)*width)},
		ops:    []*plan.Op{withState("past", op("short_conv", "x", "w", "y", attrs{"activation": activation}))}, want: conv64(act)}
}

// l2Case normalises 3 groups of 8, the last of them so small that eps decides.
func l2Case(mode string, length func(sum, eps float64) float64) opCase {
	const eps = 0.3
	return opCase{name: "l2_norm " + mode, width: 24,
		ops: []*plan.Op{op("scale", "x", "", "s", attrs{"factor": 0.05}), op("slice", "x", "", "a", attrs{"width": 16}),
			op("slice", "s", "", "b", attrs{"start": 16, "width": 8}), op("concat", "a b", "", "c", nil),
			op("l2_norm", "c", "", "y", attrs{"eps": eps, "group": 8, "mode": mode})},
		want: each(func(x []float64) (y []float64) {
			x = append(append([]float64(nil), x[:16]...), map64(x[16:], func(v float64) float64 { return 0.05 * v })...)
			for g := 0; g < 24; g += 8 {
				group := x[g : g+8]
				for _, v := range group {
					y = append(y, v/length(dot64(group, group), eps))
				}
			}
			return y
		})}
}

// deltaCase runs the recurrence on x = q, k, v, beta, gamma before their norms and activations.
func deltaCase(order string, keyHeads, valueHeads, dim int) opCase {
	sizes := []int{keyHeads * dim, keyHeads * dim, valueHeads * dim, valueHeads, valueHeads}
	var ops []*plan.Op
	width := 0
	for i, n := range sizes {
		ops = append(ops, op("slice", "x", "", []string{"q", "k0", "v", "b", "g0"}[i], attrs{"start": width, "width": n}))
		width += n
	}
	ops = append(ops, op("l2_norm", "k0", "", "k", attrs{"eps": 1e-6, "group": dim}), op("unary", "b", "", "beta", nil),
		op("unary", "g0", "", "g1", attrs{"fn": "softplus"}), op("scale", "g1", "", "gamma", attrs{"factor": -0.5}),
		withState("s", op("gated_delta_net", "q k v beta gamma", "", "y",
			attrs{"key_heads": keyHeads, "value_heads": valueHeads, "head_dim": dim, "map": order})))
	return opCase{name: fmt.Sprintf("gated_delta_net %s, heads of %d", order, dim), width: width, ops: ops, within: 1e-5, // of 13 steps
		states: []*plan.State{fixedState("s", plan.StateKind_RECURRENT, uint64(valueHeads*dim*dim))},
		want: func(x matrix, _ map[string]matrix) (y matrix) {
			s := make([][]float64, valueHeads*dim) // [head, key][value]
			for i := range s {
				s[i] = make([]float64, dim)
			}
			for _, row := range x {
				q, k, v := row[:sizes[0]], row[sizes[0]:2*sizes[0]], row[2*sizes[0]:][:sizes[2]]
				b, g := row[width-2*valueHeads:][:valueHeads], row[width-valueHeads:]
				var out []float64
				for h := range valueHeads {
					key := h % keyHeads
					if order == "grouped" {
						key = h / (valueHeads / keyHeads)
					}
					kh := k[key*dim:][:dim]
					kh = map64(kh, func(e float64) float64 { return e / math.Sqrt(dot64(kh, kh)+1e-6) })
					decay := math.Exp(-0.5 * math.Log(1+math.Exp(g[h])))
					for j := range dim {
						var mu, o float64
						for i := range dim {
							s[h*dim+i][j] *= decay
							mu += s[h*dim+i][j] * kh[i]
						}
						for i := range dim {
							s[h*dim+i][j] += kh[i] * sigmoid64(b[h]) * (v[h*dim+j] - mu)
							o += s[h*dim+i][j] * q[key*dim+i]
						}
						out = append(out, o)
					}
				}
				y = append(y, out)
			}
			return y
		}}
}

// hybridCases are the ops that remember earlier tokens in a state of fixed size.
func hybridCases() []opCase {
	return []opCase{
		convCase("short_conv", 3, 300, "none", func(x float64) float64 { return x }),
		convCase("short_conv of 2 taps", 2, 7, "none", func(x float64) float64 { return x }),
		convCase("short_conv and silu", 4, 600, "silu", silu64),
		convCase("short_conv longer than a batch", 9, 20, "silu", silu64),
		l2Case("add", func(sum, eps float64) float64 { return math.Sqrt(sum + eps) }),
		l2Case("max", func(sum, eps float64) float64 { return max(math.Sqrt(sum), eps) }),
		l2Case("add_mean", func(sum, eps float64) float64 { return math.Sqrt(sum + 8*eps) }),
		deltaCase("tiled", 2, 6, 5), deltaCase("grouped", 2, 6, 5), deltaCase("tiled", 1, 2, 40),
	}
}

// TestShortConvByHand is the check of specs/lfm2moe.md 3.2.
func TestShortConvByHand(t *testing.T) {
	y := conv64(func(x float64) float64 { return x })(matrix{{1}, {2}, {3}}, map[string]matrix{"w": {{0.1, 0.2, 0.3}}})
	for i, want := range []float64{0.3, 0.8, 1.4} {
		require.InDelta(t, want, y[i][0], 1e-12)
	}
}

// TestFixedStates: a state of fixed size goes back to the beginning and nowhere else, and a failed evaluation leaves it
// unusable until then.
func TestFixedStates(t *testing.T) {
	for _, c := range []opCase{convCase("conv", 4, 20, "none", nil), deltaCase("tiled", 2, 4, 8)} {
		t.Run(c.name, func(t *testing.T) {
			c.want = func(x matrix, _ map[string]matrix) matrix { return matrix{make([]float64, vocabularyOf(&c))} }
			m, _, _ := c.build(t)
			backend, err := cpu.New(cpu.Options{})
			require.NoError(t, err)
			bound := m.options(&compute.Options{Context: 16, Batch: 16, LogitRows: 16, Threads: 2})
			needs, err := backend.Prepare(bound)
			require.NoError(t, err)
			require.GreaterOrEqual(t, needs.StateBytes, 4*c.states[0].Elements)
			require.Less(t, needs.StateBytes, 4*c.states[0].Elements+128)
			seq, err := backend.Load(bound, m.region)
			require.NoError(t, err)
			defer seq.Close()
			h := newHost(m)
			eval := func(ctx context.Context, position int, tokens ...int32) ([]float32, error) {
				b := &compute.Batch{Tokens: tokens, Position: position, Rows: m.rows(tokens), All: true,
					Logits: make([]float32, len(tokens)*vocabularyOf(&c))}
				return b.Logits, seq.Eval(ctx, b, h)
			}
			ctx := t.Context()
			want, err := eval(ctx, 0, 1, 2, 3, 4, 5)
			require.NoError(t, err)
			require.NoError(t, seq.Trim(5), "where it is")
			for _, position := range []int{1, 4} {
				err := seq.Trim(position)
				require.ErrorContains(t, err, c.states[0].Name)
				require.Equal(t, fault.Bug, fault.KindOf(err))
			}
			_, err = eval(ctx, 5, 6, 7)
			require.NoError(t, err, "a refused trim changes nothing")
			require.NoError(t, seq.Trim(0))
			again, err := eval(ctx, 0, 1, 2, 3, 4, 5)
			require.NoError(t, err)
			require.Equal(t, want, again)
		})
	}
}

// vocabularyOf is the width of the last value of a case of TestFixedStates.
func vocabularyOf(c *opCase) int {
	if c.ops[len(c.ops)-1].Kind == "short_conv" {
		return c.width
	}
	return 4 * 8
}

// TestFixedStatesAfterFailure: an evaluation that stops behind a convolution has already changed what it remembers.
func TestFixedStatesAfterFailure(t *testing.T) {
	c := convCase("conv and experts", 4, 32, "none", nil)
	c.weights = append(expertWeights(c.weights...), tensor{"r", dtype.F32, []uint64{32, 6}})
	c.bank = smallBank
	e := op("experts", "c ids w", "", "y", nil)
	e.Bank = "bank"
	c.ops = []*plan.Op{withState("past", op("short_conv", "x", "w", "c", nil)), op("linear", "c", "r", "l", nil),
		op("route", "l", "", "ids w2", attrs{"top_k": 3}), e}
	c.ops[2].Out, e.In = []string{"ids", "w2"}, []string{"c", "ids", "w2"}
	c.want = func(matrix, map[string]matrix) matrix { return matrix{make([]float64, 32)} }
	m, _, _ := c.build(t)
	backend, err := cpu.New(cpu.Options{})
	require.NoError(t, err)
	seq, err := backend.Load(m.options(&compute.Options{Context: 16, Batch: 16, LogitRows: 1, Threads: 1}), m.region)
	require.NoError(t, err)
	defer seq.Close()
	h := newHost(m)
	eval := func(ctx context.Context, position int) ([]float32, error) {
		tokens := []int32{1, 2, 3}
		b := &compute.Batch{Tokens: tokens, Position: position, Rows: m.rows(tokens), Logits: make([]float32, 32)}
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
