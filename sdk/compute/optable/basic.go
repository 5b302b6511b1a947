package optable

import (
	"math"

	"github.com/bigmoe/bigmoe/sdk/dtype"
	"github.com/bigmoe/bigmoe/sdk/plan"
)

func basicCases() []Case {
	cases := []Case{
		{Name: "embed from memory", Width: 5, Tripled: true, Ops: []*plan.Op{Op("repeat", "x", "", "y", Attrs{"times": 1})},
			Want: each(func(x []float64) []float64 { return x })},
		{Name: "embed and scale", Width: 5, Ops: []*plan.Op{Op("scale", "x", "", "y", Attrs{"factor": -2.5})},
			Want: each(func(x []float64) (y []float64) {
				for _, v := range x {
					y = append(y, -2.5*v)
				}
				return y
			})},
		{Name: "rms_norm", Width: 96, Weights: []Tensor{f32("w", 96)}, Ops: []*plan.Op{Op("rms_norm", "x", "w", "y", Attrs{"eps": 0.01})},
			Want: func(x Matrix, w map[string]Matrix) (y Matrix) {
				for _, row := range x {
					y = append(y, rms64(row, w["w"][0], 0.01))
				}
				return y
			}},
		{Name: "rms_norm groups, half-precision weight", Width: 96, Weights: []Tensor{of("w", dtype.F16, 32)},
			Ops: []*plan.Op{Op("rms_norm", "x", "w", "y", Attrs{"eps": 1e-6, "group": 32})},
			Want: func(x Matrix, w map[string]Matrix) (y Matrix) {
				for _, row := range x {
					var out []float64
					for g := 0; g < 96; g += 32 {
						out = append(out, rms64(row[g:g+32], w["w"][0], 1e-6)...)
					}
					y = append(y, out)
				}
				return y
			}},
		{Name: "rms_norm without weight", Width: 7, Ops: []*plan.Op{Op("rms_norm", "x", "", "y", Attrs{"eps": 1e-6})},
			Want: each(func(x []float64) []float64 { return rms64(x, nil, 1e-6) })},
		{Name: "linear with bias", Width: 48, Weights: []Tensor{f32("w", 48, 700), f32("b", 700)}, Ops: []*plan.Op{Op("linear", "x", "w b", "y", nil)},
			Want: func(x Matrix, w map[string]Matrix) (y Matrix) {
				for _, row := range x {
					out := times64(w["w"], row)
					for i := range out {
						out[i] += w["b"][0][i]
					}
					y = append(y, out)
				}
				return y
			}},
		{Name: "linear in groups", Width: 96, Weights: []Tensor{of("w", dtype.BF16, 32, 15)}, Ops: []*plan.Op{Op("linear", "x", "w", "y", Attrs{"groups": 3})},
			Want: func(x Matrix, w map[string]Matrix) (y Matrix) {
				for _, row := range x {
					var out []float64
					for g := range 3 {
						out = append(out, times64(w["w"][5*g:5*g+5], row[32*g:32*g+32])...)
					}
					y = append(y, out)
				}
				return y
			}},
		{Name: "exact linear", Width: 96, Weights: []Tensor{of("w", dtype.Q8_0, 96, 20)}, Ops: []*plan.Op{Op("linear", "x", "w", "y", Attrs{"exact": true})},
			Want: func(x Matrix, w map[string]Matrix) (y Matrix) {
				for _, row := range x {
					y = append(y, times64(w["w"], row))
				}
				return y
			}},
		{Name: "linears of one value", Width: 96, Within: 0.02, // activations are rounded to 8 bits
			Weights: []Tensor{of("w", dtype.Q8_0, 96, 2000), f32("u", 96, 40), of("v", dtype.Q8_0, 96, 3)},
			Ops: []*plan.Op{Op("linear", "x", "w", "a", nil), Op("linear", "x", "u", "b", nil), Op("linear", "x", "v", "c", nil),
				Op("concat", "a b", "", "ab", nil), Op("concat", "ab c", "", "y", nil)},
			Want: func(x Matrix, w map[string]Matrix) (y Matrix) {
				for _, row := range x {
					y = append(y, append(append(times64(w["w"], row), times64(w["u"], row)...), times64(w["v"], row)...))
				}
				return y
			}},
		{Name: "rope", Width: 16, Ops: []*plan.Op{Op("rope", "x", "", "y", Attrs{"head_dim": 8, "n_rot": 8, "base": 100.0})},
			Want: rope64(4, 0, false, 1, power(100, 8))},
		{Name: "rope interleaved, part of the head, with magnitude", Width: 16,
			Ops:  []*plan.Op{Op("rope", "x", "", "y", Attrs{"head_dim": 8, "n_rot": 4, "offset": 2, "layout": "interleaved", "magnitude": 1.5})},
			Want: rope64(2, 2, true, 1.5, power(10000, 4))},
		{Name: "rope inverse", Width: 16, Ops: []*plan.Op{Op("rope", "x", "", "y", Attrs{"head_dim": 8, "n_rot": 6, "inverse": true})},
			Want: rope64(3, 0, false, 1, func(j int, _ map[string]Matrix) float64 { return -power(10000, 6)(j, nil) })},
		{Name: "rope linear, with divisors", Width: 16, Weights: []Tensor{f32("d", 4)},
			Ops:  []*plan.Op{Op("rope", "x", "d", "y", Attrs{"head_dim": 8, "n_rot": 8, "scaling": "linear", "factor": 4.0})},
			Want: rope64(4, 0, false, 1, func(j int, w map[string]Matrix) float64 { return power(10000, 8)(j, nil) / 4 / w["d"][0][j] })},
		{Name: "rope yarn", Width: 16,
			// corr(2) = 8 ln(64/4pi) / (2 ln 50) = 1.66 -> 1, corr(0.5) = 3.08 -> 4; so j = 0, 1 stay, 2 and 3 are mixed.
			Ops: []*plan.Op{Op("rope", "x", "", "y", Attrs{"head_dim": 8, "n_rot": 8, "base": 50.0, "scaling": "yarn", "factor": 8.0,
				"original_context": 64, "beta_fast": 2.0, "beta_slow": 0.5, "magnitude": 1.25})},
			Want: rope64(4, 0, false, 1.25, func(j int, _ map[string]Matrix) float64 {
				return power(50, 8)(j, nil) * []float64{1, 1, 2.0/3 + 1.0/3/8, 1.0/3 + 2.0/3/8}[j]
			})},
		{Name: "rope yarn untruncated", Width: 16,
			Ops: []*plan.Op{Op("rope", "x", "", "y", Attrs{"head_dim": 8, "n_rot": 8, "base": 50.0, "scaling": "yarn", "factor": 8.0,
				"original_context": 64, "beta_fast": 2.0, "beta_slow": 0.5, "untruncated": true})},
			Want: rope64(4, 0, false, 1, func(j int, _ map[string]Matrix) float64 {
				lo := 4 * math.Log(64/(4*math.Pi)) / math.Log(50)
				hi := 4 * math.Log(64/math.Pi) / math.Log(50)
				mix := min(max((float64(j)-lo)/(hi-lo), 0), 1)
				return power(50, 8)(j, nil) * (1 - mix + mix/8)
			})},
		{Name: "embed, rope and linear in the head", Width: 16, Head: true, Weights: []Tensor{f32("w", 16, 16)},
			Ops: []*plan.Op{Op("embed", "", "table", "e", nil), Op("linear", "x", "w", "l", nil), Op("add", "l e", "", "s", nil),
				Op("rope", "s", "", "y", Attrs{"head_dim": 8, "n_rot": 8, "base": 100.0})},
			Want: func(x Matrix, w map[string]Matrix) (s Matrix) {
				for _, row := range x {
					sum := times64(w["w"], row)
					for i, v := range row {
						sum[i] += v
					}
					s = append(s, sum)
				}
				return rope64(4, 0, false, 1, power(100, 8))(s, nil)
			}},
		{Name: "attention", Width: 64, States: []*plan.State{kvState("kv", 16, 16)}, Ops: attentionOps(nil, "", true), Want: attention64(8, 0, 0, false)},
		{Name: "attention, half-precision cache", Width: 64, States: []*plan.State{kvState("kv", 16, 16)}, Ops: attentionOps(nil, "", true),
			Want: attention64(8, 0, 0, false), Half: true, Within: 2e-3},
		{Name: "attention with narrower values", Width: 56, States: []*plan.State{kvState("kv", 16, 8)},
			Ops: attentionOps(Attrs{"value_dim": 4}, "", true), Want: attention64(4, 0, 0, false)},
		{Name: "attention, window, softcap, sinks", Width: 64, States: []*plan.State{kvState("kv", 16, 16)}, Weights: []Tensor{f32("sinks", 4)},
			Ops: attentionOps(Attrs{"window": 3, "softcap": 1.5}, "sinks", true), Want: attention64(8, 3, 1.5, true)},
		{Name: "attention, keys are values", Width: 48, States: []*plan.State{kvState("kv", 16, 0)}, Ops: attentionOps(nil, "", false), Want: attention64(8, 0, 0, false)},
		{Name: "attention over another's cache", Width: 64, States: []*plan.State{kvState("kv", 16, 16)},
			Ops: append(attentionOps(nil, "", true)[:3],
				withState("kv", Op("attention", "q k v", "", "first", Attrs{"heads": 4, "kv_heads": 2, "head_dim": 8, "scale": 2.0})),
				withState("kv", Op("attention", "q", "", "y", Attrs{"heads": 4, "kv_heads": 2, "head_dim": 8, "scale": 0.5}))),
			Want: attention64(8, 0, 0, false)},
		{Name: "route and experts", Width: 38, Bank: smallBank, Weights: expertWeights(),
			Ops: moeOps(Attrs{}, "", nil, ""), Want: moe{gate: softmax64, scale: 1, glu: swiglu64}.want},
		{Name: "route: normalised with a floor, scaled; fused gate and up", Width: 38, Bank: fusedBank, Weights: expertWeights(),
			Ops:  moeOps(Attrs{"normalize": true, "norm_floor": 0.75, "scale": 2.5}, "", nil, ""),
			Want: moe{gate: softmax64, normalize: true, scale: 2.5, glu: swiglu64}.want},
		{Name: "route: sigmoid with bias", Width: 38, Bank: smallBank, Weights: expertWeights(f32("bias", 6)),
			Ops: moeOps(Attrs{"gating": "sigmoid"}, "bias", nil, ""), Want: moe{gate: func(l []float64) []float64 {
				return map64(l, func(x float64) float64 { return 1 / (1 + math.Exp(-x)) })
			}, scale: 1, glu: swiglu64}.want},
		{Name: "route: root of softplus", Width: 38, Bank: smallBank, Weights: expertWeights(),
			Ops: moeOps(Attrs{"gating": "sqrt_softplus"}, "", nil, ""), Want: moe{gate: func(l []float64) []float64 {
				return map64(l, func(x float64) float64 { return math.Sqrt(math.Log(1 + math.Exp(x))) })
			}, scale: 1, glu: swiglu64}.want},
		{Name: "route: softmax of the selected; experts with biases, scales and clamps", Width: 38, Bank: smallBank,
			Weights: expertWeights(f32("gate_bias", 24, 6), f32("up_bias", 24, 6), f32("down_bias", 32, 6), f32("scale", 6)),
			Ops: moeOps(Attrs{"gating": "softmax_selected"}, "",
				Attrs{"activation": "swiglu_oai", "limit": 2.0, "alpha": 1.7}, "gate_bias up_bias down_bias scale"),
			Want: moe{gate: func(l []float64) []float64 { return l }, selected: true, scale: 1, glu: func(g, u float64) float64 {
				g, u = min(g, 2), min(max(u, -2), 2)
				return g / (1 + math.Exp(-1.7*g)) * (u + 1)
			}}.want},
		{Name: "glu: silu with a limit", Width: 10, Ops: []*plan.Op{Op("glu", "x", "", "y", Attrs{"limit": 0.5})},
			Want: each(func(x []float64) (y []float64) {
				for i := range 5 {
					y = append(y, silu64(min(x[i], 0.5))*min(max(x[5+i], -0.5), 0.5))
				}
				return y
			})},
		{Name: "glu: silu, then limited", Width: 10, Ops: []*plan.Op{Op("glu", "x", "", "y", Attrs{"activation": "silu_clamped", "limit": 0.4})},
			Want: each(func(x []float64) (y []float64) {
				for i := range 5 {
					y = append(y, min(silu64(x[i]), 0.4)*min(max(x[5+i], -0.4), 0.4))
				}
				return y
			})},
		{Name: "glu: gelu", Width: 10, Ops: []*plan.Op{Op("glu", "x", "", "y", Attrs{"activation": "gelu_tanh"})},
			Want: each(func(x []float64) (y []float64) {
				for i := range 5 {
					y = append(y, gelu64(x[i])*x[5+i])
				}
				return y
			})},
		{Name: "glu", Width: 10, Ops: []*plan.Op{Op("slice", "x", "", "a", Attrs{"width": 5}), Op("slice", "x", "", "b", Attrs{"start": 5, "width": 5}),
			Op("glu", "a b", "", "y", nil)}, Want: each(glu64)},
		{Name: "glu of a fused value", Width: 10, Ops: []*plan.Op{Op("glu", "x", "", "y", nil)}, Want: each(glu64)},
		{Name: "add and mul", Width: 9, Ops: []*plan.Op{Op("slice", "x", "", "a", Attrs{"width": 4}), Op("slice", "x", "", "b", Attrs{"start": 4, "width": 4}),
			Op("slice", "x", "", "s", Attrs{"start": 8, "width": 1}), Op("add", "a b", "", "c", nil), Op("mul", "c b", "", "d", nil), Op("mul", "d s", "", "y", nil)},
			Want: each(func(x []float64) (y []float64) {
				for i := range 4 {
					y = append(y, (x[i]+x[4+i])*x[4+i]*x[8])
				}
				return y
			})},
		{Name: "add_weight and mul_weight", Width: 9, Weights: []Tensor{f32("a", 3), f32("b", 9)},
			Ops: []*plan.Op{Op("add_weight", "x", "a", "s", nil), Op("mul_weight", "s", "b", "y", nil)},
			Want: func(x Matrix, w map[string]Matrix) (y Matrix) {
				for _, row := range x {
					var out []float64
					for i, v := range row {
						out = append(out, (v+w["a"][0][i%3])*w["b"][0][i])
					}
					y = append(y, out)
				}
				return y
			}},
		{Name: "softcap", Width: 6, Ops: []*plan.Op{Op("softcap", "x", "", "y", Attrs{"cap": 1.5})},
			Want: each(func(x []float64) []float64 {
				return map64(x, func(v float64) float64 { return 1.5 * math.Tanh(v/1.5) })
			})},
		{Name: "slice of groups", Width: 12, Ops: []*plan.Op{Op("slice", "x", "", "y", Attrs{"group": 4, "start": 1, "width": 2})},
			Want: each(func(x []float64) []float64 { return []float64{x[1], x[2], x[5], x[6], x[9], x[10]} })},
		{Name: "repeat", Width: 2, Ops: []*plan.Op{Op("repeat", "x", "", "y", Attrs{"times": 3})},
			Want: each(func(x []float64) []float64 { return []float64{x[0], x[1], x[0], x[1], x[0], x[1]} })},
	}
	for fn, f := range map[string]func(float64) float64{
		"sigmoid": func(x float64) float64 { return 1 / (1 + math.Exp(-x)) }, "silu": silu64, "tanh": math.Tanh, "exp": math.Exp,
		"softplus": func(x float64) float64 { return math.Log(1 + math.Exp(x)) }, "relu": func(x float64) float64 { return (x + math.Abs(x)) / 2 },
		"gelu_tanh": gelu64,
	} {
		cases = append(cases, Case{Name: "unary " + fn, Width: 40, Ops: []*plan.Op{Op("unary", "x", "", "y", Attrs{"fn": fn})},
			Want: each(func(x []float64) []float64 { return map64(x, f) })})
	}
	return cases
}
