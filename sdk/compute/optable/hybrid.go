package optable

import (
	"fmt"
	"math"
	"slices"

	"github.com/bigmoe/bigmoe/sdk/plan"
)

func fixedState(name string, kind plan.StateKind, elements uint64) *plan.State {
	return &plan.State{Name: name, Kind: kind, Elements: elements, Rewind: plan.Rewind_SNAPSHOT}
}

func sigmoid64(x float64) float64 { return 1 / (1 + math.Exp(-x)) }

// conv64 convolves channels with the kernel w, zeros before the text.
func conv64(act func(float64) float64) func(Matrix, map[string]Matrix) Matrix {
	return func(x Matrix, w map[string]Matrix) (y Matrix) {
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

func convCase(name string, taps, width uint64, activation string, act func(float64) float64) Case {
	return Case{Name: name, Width: int(width), Weights: []Tensor{f32("w", taps, width)},
		States: []*plan.State{fixedState("past", plan.StateKind_CONVOLUTION, (taps-1)*width)},
		Ops:    []*plan.Op{withState("past", Op("short_conv", "x", "w", "y", Attrs{"activation": activation}))}, Want: conv64(act)}
}

// convAndExperts routes what a convolution gives.
func convAndExperts() Case {
	c := convCase("short_conv and experts", 4, 32, "none", nil)
	c.Within = 3e-6
	c.Weights, c.Bank = append(expertWeights(c.Weights...), f32("router", 32, 6)), smallBank
	e := Op("experts", "y ids weights", "", "z", nil)
	e.Bank = "bank"
	c.Ops = append(c.Ops, Op("linear", "y", "router", "l", Attrs{"exact": true}), Op("route", "l", "", "ids weights", Attrs{"top_k": 3}), e)
	c.Want = func(x Matrix, w map[string]Matrix) (z Matrix) {
		y := conv64(func(x float64) float64 { return x })(x, w)
		var in Matrix
		for _, row := range y {
			in = append(in, slices.Concat(times64(w["router"], row), row))
		}
		for _, row := range (moe{gate: softmax64, scale: 1, glu: swiglu64}).want(in, w) {
			z = append(z, row[3:])
		}
		return z
	}
	return c
}

// l2Case normalises 3 groups of 8, the last of them so small that eps decides.
func l2Case(mode string, length func(sum, eps float64) float64) Case {
	const eps = 0.3
	return Case{Name: "l2_norm " + mode, Width: 24,
		Ops: []*plan.Op{Op("scale", "x", "", "s", Attrs{"factor": 0.05}), Op("slice", "x", "", "a", Attrs{"width": 16}),
			Op("slice", "s", "", "b", Attrs{"start": 16, "width": 8}), Op("concat", "a b", "", "c", nil),
			Op("l2_norm", "c", "", "y", Attrs{"eps": eps, "group": 8, "mode": mode})},
		Want: each(func(x []float64) (y []float64) {
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
func deltaCase(order string, keyHeads, valueHeads, dim int) Case {
	sizes := []int{keyHeads * dim, keyHeads * dim, valueHeads * dim, valueHeads, valueHeads}
	var ops []*plan.Op
	width := 0
	for i, n := range sizes {
		ops = append(ops, Op("slice", "x", "", []string{"q", "k0", "v", "b", "g0"}[i], Attrs{"start": width, "width": n}))
		width += n
	}
	ops = append(ops, Op("l2_norm", "k0", "", "k", Attrs{"eps": 1e-6, "group": dim}), Op("unary", "b", "", "beta", nil),
		Op("unary", "g0", "", "g1", Attrs{"fn": "softplus"}), Op("scale", "g1", "", "gamma", Attrs{"factor": -0.5}),
		withState("s", Op("gated_delta_net", "q k v beta gamma", "", "y",
			Attrs{"key_heads": keyHeads, "value_heads": valueHeads, "head_dim": dim, "map": order})))
	return Case{Name: fmt.Sprintf("gated_delta_net %s, heads of %d", order, dim), Width: width, Ops: ops, Within: 1e-5, // of 13 steps
		States: []*plan.State{fixedState("s", plan.StateKind_RECURRENT, uint64(valueHeads*dim*dim))},
		Want: func(x Matrix, _ map[string]Matrix) (y Matrix) {
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
func hybridCases() []Case {
	return []Case{
		convCase("short_conv", 3, 300, "none", func(x float64) float64 { return x }),
		convCase("short_conv of 2 taps", 2, 7, "none", func(x float64) float64 { return x }),
		convCase("short_conv and silu", 4, 600, "silu", silu64),
		convCase("short_conv longer than a batch", 9, 20, "silu", silu64),
		convAndExperts(),
		l2Case("add", func(sum, eps float64) float64 { return math.Sqrt(sum + eps) }),
		l2Case("max", func(sum, eps float64) float64 { return max(math.Sqrt(sum), eps) }),
		l2Case("add_mean", func(sum, eps float64) float64 { return math.Sqrt(sum + 8*eps) }),
		deltaCase("tiled", 2, 6, 5), deltaCase("grouped", 2, 6, 5), deltaCase("tiled", 1, 2, 40),
	}
}
