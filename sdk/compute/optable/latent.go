package optable

import (
	"fmt"
	"math"
	"slices"

	"github.com/bigmoe/bigmoe/sdk/dtype"
	"github.com/bigmoe/bigmoe/sdk/plan"
)

// latentCases are what latent attention, choice by groups and key-wise decay add to the vocabulary (specs/deepseek2.md,
// specs/bailingmoe3.md).
func latentCases() []Case {
	sigmoids := func(l []float64) []float64 { return map64(l, sigmoid64) }
	return []Case{
		{Name: "route by groups with bias", Width: 38, Bank: smallBank, Weights: expertWeights(f32("bias", 6)),
			Ops:  moeOps(Attrs{"gating": "sigmoid", "groups": 3, "groups_used": 2, "normalize": true, "norm_floor": 0.75}, "bias", nil, ""),
			Want: moe{gate: sigmoids, normalize: true, scale: 1, hide: hideGroups(3, 2), glu: swiglu64}.want},
		{Name: "route by groups", Width: 38, Bank: smallBank, Weights: expertWeights(),
			Ops:  moeOps(Attrs{"groups": 2, "groups_used": 1, "scale": 2.5}, "", nil, ""),
			Want: moe{gate: softmax64, scale: 2.5, hide: hideGroups(2, 1), glu: swiglu64}.want},
		{Name: "route by groups of one", Width: 38, Bank: smallBank, Weights: expertWeights(),
			Ops:  moeOps(Attrs{"groups": 6, "groups_used": 4}, "", nil, ""),
			Want: moe{gate: softmax64, scale: 1, glu: swiglu64}.want},
		{Name: "mul by runs", Width: 15, Ops: []*plan.Op{Op("slice", "x", "", "a", Attrs{"width": 12}), Op("slice", "x", "", "b", Attrs{"start": 12, "width": 3}),
			Op("mul", "a b", "", "y", nil)},
			Want: each(func(x []float64) (y []float64) {
				for i := range 12 {
					y = append(y, x[i]*x[12+i/4])
				}
				return y
			})},
		{Name: "mul_weight by runs", Width: 12, Weights: []Tensor{f32("a", 3)}, Ops: []*plan.Op{Op("mul_weight", "x", "a", "y", Attrs{"run": 2})},
			Want: func(x Matrix, w map[string]Matrix) (y Matrix) {
				for _, row := range x {
					var out []float64
					for i, v := range row {
						out = append(out, v*w["a"][0][i/2%3])
					}
					y = append(y, out)
				}
				return y
			}},
		{Name: "concat by groups", Width: 10, Ops: []*plan.Op{Op("slice", "x", "", "a", Attrs{"width": 6}), Op("slice", "x", "", "b", Attrs{"start": 6, "width": 4}),
			Op("concat", "a b", "", "y", Attrs{"groups": 2})},
			Want: each(func(x []float64) []float64 {
				return []float64{x[0], x[1], x[2], x[6], x[7], x[3], x[4], x[5], x[8], x[9]}
			})},
		channelDecay(2, 4, 5), channelDecay(1, 1, 40),
		matrixByHead(dtype.Q8_0, 0.02), // activations are rounded to 8 bits
	}
}

// matrixByHead multiplies 3 heads of 32 by a Matrix each, all in one tensor.
func matrixByHead(t dtype.Type, within float64) Case {
	return Case{Name: fmt.Sprintf("linear by groups, %v", t), Width: 96, Within: within, Weights: []Tensor{of("w", t, 32, 21)},
		Ops: []*plan.Op{Op("linear", "x", "w", "y", Attrs{"groups": 3})},
		Want: func(x Matrix, w map[string]Matrix) (y Matrix) {
			for _, row := range x {
				var out []float64
				for h := range 3 {
					out = append(out, times64(w["w"][7*h:][:7], row[32*h:][:32])...)
				}
				y = append(y, out)
			}
			return y
		}}
}

// hideGroups sorts the groups by the sum of their two best and hides all but the first ones.
func hideGroups(groups, used int) func(rank []float64) {
	return func(rank []float64) {
		n := len(rank) / groups
		score := func(g int) float64 {
			best := slices.Clone(rank[g*n:][:n])
			slices.Sort(best)
			return best[n-1] + best[n-2]
		}
		var order []int
		for g := range groups {
			order = append(order, g)
		}
		slices.SortStableFunc(order, func(a, b int) int {
			if score(a) > score(b) {
				return -1
			}
			return 1
		})
		for _, g := range order[used:] {
			for i := range n {
				rank[g*n+i] = math.Inf(-1)
			}
		}
	}
}

// channelDecay is the recurrence with a decay for every key channel, on x = q, k, v, beta, gamma before their activations.
func channelDecay(keyHeads, valueHeads, dim int) Case {
	sizes := []int{keyHeads * dim, keyHeads * dim, valueHeads * dim, valueHeads, valueHeads * dim}
	var ops []*plan.Op
	width := 0
	for i, n := range sizes {
		ops = append(ops, Op("slice", "x", "", []string{"q", "k0", "v", "b", "g0"}[i], Attrs{"start": width, "width": n}))
		width += n
	}
	ops = append(ops, Op("l2_norm", "k0", "", "k", Attrs{"eps": 1e-6, "group": dim}), Op("unary", "b", "", "beta", nil),
		Op("unary", "g0", "", "g1", nil), Op("scale", "g1", "", "gamma", Attrs{"factor": -1.5}),
		withState("s", Op("gated_delta_net", "q k v beta gamma", "", "y",
			Attrs{"key_heads": keyHeads, "value_heads": valueHeads, "head_dim": dim, "map": "grouped"})))
	return Case{Name: fmt.Sprintf("gated_delta_net, decay by channel, heads of %d", dim), Width: width, Ops: ops, Within: 1e-5, // of 13 steps
		States: []*plan.State{fixedState("s", plan.StateKind_RECURRENT, uint64(valueHeads*dim*dim))},
		Want: func(x Matrix, _ map[string]Matrix) (y Matrix) {
			s := make([][]float64, valueHeads*dim) // [head, key][value]
			for i := range s {
				s[i] = make([]float64, dim)
			}
			for _, row := range x {
				var part [][]float64
				for _, n := range sizes {
					part, row = append(part, row[:n]), row[n:]
				}
				var out []float64
				for h := range valueHeads {
					key := h / (valueHeads / keyHeads)
					q, k := part[0][key*dim:][:dim], part[1][key*dim:][:dim]
					k = map64(k, func(e float64) float64 { return e / math.Sqrt(dot64(k, k)+1e-6) })
					for i := range dim {
						decay := math.Exp(-1.5 * sigmoid64(part[4][h*dim+i]))
						for j := range dim {
							s[h*dim+i][j] *= decay
						}
					}
					for j := range dim {
						var u, o float64
						for i := range dim {
							u += s[h*dim+i][j] * k[i]
						}
						for i := range dim {
							s[h*dim+i][j] += k[i] * sigmoid64(part[3][h]) * (part[2][h*dim+j] - u)
							o += s[h*dim+i][j] * q[i]
						}
						out = append(out, o)
					}
				}
				y = append(y, out)
			}
			return y
		}}
}
