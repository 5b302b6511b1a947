package cpu_test

import (
	"fmt"
	"math"
	"slices"

	"github.com/bigmoe/bigmoe/sdk/dtype"
	"github.com/bigmoe/bigmoe/sdk/plan"
)

// latentCases are what latent attention, choice by groups and key-wise decay add to the vocabulary (specs/deepseek2.md,
// specs/bailingmoe3.md).
func latentCases() []opCase {
	sigmoids := func(l []float64) []float64 { return map64(l, sigmoid64) }
	return []opCase{
		{name: "route by groups with bias", width: 38, bank: smallBank, weights: expertWeights(f32("bias", 6)),
			ops:  moeOps(attrs{"gating": "sigmoid", "groups": 3, "groups_used": 2, "normalize": true, "norm_floor": 0.75}, "bias", nil, ""),
			want: moe{gate: sigmoids, normalize: true, scale: 1, hide: hideGroups(3, 2), glu: swiglu64}.want},
		{name: "route by groups", width: 38, bank: smallBank, weights: expertWeights(),
			ops:  moeOps(attrs{"groups": 2, "groups_used": 1, "scale": 2.5}, "", nil, ""),
			want: moe{gate: softmax64, scale: 2.5, hide: hideGroups(2, 1), glu: swiglu64}.want},
		{name: "route by groups of one", width: 38, bank: smallBank, weights: expertWeights(),
			ops:  moeOps(attrs{"groups": 6, "groups_used": 4}, "", nil, ""),
			want: moe{gate: softmax64, scale: 1, glu: swiglu64}.want},
		{name: "mul by runs", width: 15, ops: []*plan.Op{op("slice", "x", "", "a", attrs{"width": 12}), op("slice", "x", "", "b", attrs{"start": 12, "width": 3}),
			op("mul", "a b", "", "y", nil)},
			want: each(func(x []float64) (y []float64) {
				for i := range 12 {
					y = append(y, x[i]*x[12+i/4])
				}
				return y
			})},
		{name: "mul_weight by runs", width: 12, weights: []tensor{f32("a", 3)}, ops: []*plan.Op{op("mul_weight", "x", "a", "y", attrs{"run": 2})},
			want: func(x matrix, w map[string]matrix) (y matrix) {
				for _, row := range x {
					var out []float64
					for i, v := range row {
						out = append(out, v*w["a"][0][i/2%3])
					}
					y = append(y, out)
				}
				return y
			}},
		{name: "concat by groups", width: 10, ops: []*plan.Op{op("slice", "x", "", "a", attrs{"width": 6}), op("slice", "x", "", "b", attrs{"start": 6, "width": 4}),
			op("concat", "a b", "", "y", attrs{"groups": 2})},
			want: each(func(x []float64) []float64 {
				return []float64{x[0], x[1], x[2], x[6], x[7], x[3], x[4], x[5], x[8], x[9]}
			})},
		channelDecay(2, 4, 5), channelDecay(1, 1, 40),
		matrixByHead(dtype.Q8_0, 0.02), // activations are rounded to 8 bits
	}
}

// matrixByHead multiplies 3 heads of 32 by a matrix each, all in one tensor.
func matrixByHead(t dtype.Type, within float64) opCase {
	return opCase{name: fmt.Sprintf("linear by groups, %v", t), width: 96, within: within, weights: []tensor{{"w", t, []uint64{32, 21}}},
		ops: []*plan.Op{op("linear", "x", "w", "y", attrs{"groups": 3})},
		want: func(x matrix, w map[string]matrix) (y matrix) {
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
func channelDecay(keyHeads, valueHeads, dim int) opCase {
	sizes := []int{keyHeads * dim, keyHeads * dim, valueHeads * dim, valueHeads, valueHeads * dim}
	var ops []*plan.Op
	width := 0
	for i, n := range sizes {
		ops = append(ops, op("slice", "x", "", []string{"q", "k0", "v", "b", "g0"}[i], attrs{"start": width, "width": n}))
		width += n
	}
	ops = append(ops, op("l2_norm", "k0", "", "k", attrs{"eps": 1e-6, "group": dim}), op("unary", "b", "", "beta", nil),
		op("unary", "g0", "", "g1", nil), op("scale", "g1", "", "gamma", attrs{"factor": -1.5}),
		withState("s", op("gated_delta_net", "q k v beta gamma", "", "y",
			attrs{"key_heads": keyHeads, "value_heads": valueHeads, "head_dim": dim, "map": "grouped"})))
	return opCase{name: fmt.Sprintf("gated_delta_net, decay by channel, heads of %d", dim), width: width, ops: ops, within: 1e-5, // of 13 steps
		states: []*plan.State{fixedState("s", plan.StateKind_RECURRENT, uint64(valueHeads*dim*dim))},
		want: func(x matrix, _ map[string]matrix) (y matrix) {
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
