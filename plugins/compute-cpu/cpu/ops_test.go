package cpu_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/plugins/compute-cpu/cpu"
	"github.com/bigmoe/bigmoe/plugins/compute-cpu/internal/arena"
	"github.com/bigmoe/bigmoe/plugins/compute-cpu/internal/kernel"
	"github.com/bigmoe/bigmoe/sdk/compute"
	"github.com/bigmoe/bigmoe/sdk/dtype"
	"github.com/bigmoe/bigmoe/sdk/plan"
)

// matrix is rows of float64: a value (a row per token) or a weight.
type matrix [][]float64

// opCase is one small plan: ops take the value x to the value y, in one layer.
type opCase struct {
	name    string
	width   int
	weights []tensor
	states  []*plan.State
	bank    *plan.Bank
	ops     []*plan.Op
	want    func(x matrix, w map[string]matrix) matrix
	within  float64 // of the largest magnitude in want; 0: 1e-6
	head    bool    // the ops are in the head, not in a layer
	half    bool    // the cache is float16
	tripled bool    // x is three times the row of a table in memory, otherwise the row that the batch brings
}

// tensor is a weight with random values.
type tensor struct {
	name  string
	t     dtype.Type
	shape []uint64
}

func f32(name string, shape ...uint64) tensor { return tensor{name, dtype.F32, shape} }

func kvState(name string, key, value uint64) *plan.State {
	return &plan.State{Name: name, Kind: plan.StateKind_KV, KeyWidth: key, ValueWidth: value}
}

// each makes a want of a function of one row.
func each(f func(x []float64) []float64) func(matrix, map[string]matrix) matrix {
	return func(x matrix, _ map[string]matrix) (y matrix) {
		for _, row := range x {
			y = append(y, f(row))
		}
		return y
	}
}

func dot64(a, b []float64) (sum float64) {
	for i := range a {
		sum += a[i] * b[i]
	}
	return sum
}

func times64(w matrix, x []float64) (y []float64) {
	for _, row := range w {
		y = append(y, dot64(row, x))
	}
	return y
}

func rms64(x, w []float64, eps float64) (y []float64) {
	norm := math.Sqrt(dot64(x, x)/float64(len(x)) + eps)
	for i, v := range x {
		if v /= norm; w != nil {
			v *= w[i]
		}
		y = append(y, v)
	}
	return y
}

func softmax64(x []float64) (y []float64) {
	var sum float64
	for _, v := range x {
		sum += math.Exp(v)
	}
	for _, v := range x {
		y = append(y, math.Exp(v)/sum)
	}
	return y
}

func silu64(x float64) float64 { return x / (1 + math.Exp(-x)) }

func gelu64(x float64) float64 {
	return x / 2 * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(x+0.044715*x*x*x)))
}

// turn rotates the pair (a, b) of x by an angle.
func turn(x []float64, a, b int, angle, magnitude float64) {
	s, c := math.Sincos(angle)
	x[a], x[b] = magnitude*(x[a]*c-x[b]*s), magnitude*(x[a]*s+x[b]*c)
}

// rope64 rotates 2 heads of 8 by freq(j) radians per position, j < half, from element offset on.
func rope64(half, offset int, interleaved bool, magnitude float64, freq func(j int, w map[string]matrix) float64) func(matrix, map[string]matrix) matrix {
	return func(x matrix, w map[string]matrix) (y matrix) {
		for pos, row := range x {
			row = append([]float64(nil), row...)
			for head := range 2 {
				for j := range half {
					a, b := j, j+half
					if interleaved {
						a, b = 2*j, 2*j+1
					}
					turn(row[8*head+offset:], a, b, float64(pos)*freq(j, w), magnitude)
				}
			}
			y = append(y, row)
		}
		return y
	}
}

func power(base float64, n int) func(int, map[string]matrix) float64 {
	return func(j int, _ map[string]matrix) float64 { return math.Pow(base, -2*float64(j)/float64(n)) }
}

// attention64 is attention of 4 heads of 8 with 2 key-value heads. Rows of x are q (32), k (16), v (2 x valueDim).
func attention64(valueDim, window int, softcap float64, sinks bool) func(matrix, map[string]matrix) matrix {
	return func(x matrix, w map[string]matrix) (y matrix) {
		for pos := range x {
			var out []float64
			for head := range 4 {
				q, g := x[pos][8*head:][:8], head/2
				var s []float64
				from := 0
				if window > 0 {
					from = max(0, pos-window+1)
				}
				for u := from; u <= pos; u++ {
					v := 0.5 * dot64(q, x[u][32+8*g:][:8])
					if softcap > 0 {
						v = softcap * math.Tanh(v/softcap)
					}
					s = append(s, v)
				}
				if sinks {
					s = append(s, w["sinks"][0][head])
				}
				p := softmax64(s)
				o := make([]float64, valueDim)
				for u := from; u <= pos; u++ {
					v := x[u][32+8*g:][:8] // the key is the value
					if len(x[u]) > 48 {
						v = x[u][48+valueDim*g:][:valueDim]
					}
					for i := range o {
						o[i] += p[u-from] * v[i]
					}
				}
				out = append(out, o...)
			}
			y = append(y, out)
		}
		return y
	}
}

func attentionOps(extra attrs, weights string, v bool) []*plan.Op {
	a := attrs{"heads": 4, "kv_heads": 2, "head_dim": 8, "scale": 0.5}
	for k, x := range extra {
		a[k] = x
	}
	ops := []*plan.Op{op("slice", "x", "", "q", attrs{"width": 32}), op("slice", "x", "", "k", attrs{"start": 32, "width": 16})}
	in := "q k"
	if v {
		width := 16
		if d, ok := extra["value_dim"]; ok {
			width = 2 * d.(int)
		}
		ops, in = append(ops, op("slice", "x", "", "v", attrs{"start": 48, "width": width})), "q k v"
	}
	o := op("attention", in, weights, "y", a)
	o.States = []string{"kv"}
	return append(ops, o)
}

// moe is route and experts: x is logits (6) and the experts' input (32); y is the weights (3) and the sum (32).
type moe struct {
	gate      func(l []float64) []float64
	normalize bool // with a floor of 0.75
	scale     float64
	selected  bool
	hide      func(rank []float64) // what is not to be chosen
	glu       func(g, u float64) float64
}

func (c moe) want(x matrix, w map[string]matrix) (y matrix) {
	add := func(y []float64, bias string, row int) []float64 {
		for i := range y {
			if b := w[bias]; b != nil {
				y[i] += b[row][i]
			}
		}
		return y
	}
	for _, row := range x {
		l, in := row[:6], row[6:]
		p := c.gate(l)
		rank := add(append([]float64(nil), p...), "bias", 0)
		if c.hide != nil {
			c.hide(rank)
		}
		var ids []int
		for range 3 {
			best := -1
			for e, v := range rank {
				if best < 0 || v > rank[best] {
					best = e
				}
			}
			ids = append(ids, best)
			rank[best] = math.Inf(-1)
		}
		weights := []float64{p[ids[0]], p[ids[1]], p[ids[2]]}
		if c.selected {
			weights = softmax64(weights)
		}
		sum := weights[0] + weights[1] + weights[2]
		out := make([]float64, 32)
		for k, id := range ids {
			if c.normalize {
				weights[k] /= max(sum, 0.75)
			}
			weights[k] *= c.scale
			g := add(times64(w["gate"][24*id:][:24], in), "gate_bias", id)
			u := add(times64(w["up"][24*id:][:24], in), "up_bias", id)
			for j := range g {
				g[j] = c.glu(g[j], u[j])
			}
			factor := weights[k]
			if s := w["scale"]; s != nil {
				factor *= s[0][id]
			}
			for o, v := range add(times64(w["down"][32*id:][:32], g), "down_bias", id) {
				out[o] += factor * v
			}
		}
		y = append(y, append(weights, out...))
	}
	return y
}

func swiglu64(g, u float64) float64 { return silu64(g) * u }

func moeOps(a attrs, bias string, experts attrs, weights string) []*plan.Op {
	a["top_k"] = 3
	e := op("experts", "e ids w", weights, "m", experts)
	e.Bank = "bank"
	return []*plan.Op{
		op("slice", "x", "", "l", attrs{"width": 6}), op("slice", "x", "", "e", attrs{"start": 6, "width": 32}),
		op("route", "l", bias, "ids w", a), e, op("concat", "w m", "", "y", nil),
	}
}

// expertWeights are the experts of the banks below, and more.
func expertWeights(more ...tensor) []tensor {
	return append([]tensor{f32("gate", 32, 24, 6), f32("up", 32, 24, 6), f32("down", 24, 32, 6)}, more...)
}

var smallBank = &plan.Bank{Name: "bank", Experts: 6, Parts: []*plan.Part{
	{Role: plan.Role_GATE, Tensors: []string{"gate"}, In: 32, Out: 24},
	{Role: plan.Role_UP, Tensors: []string{"up"}, In: 32, Out: 24},
	{Role: plan.Role_DOWN, Tensors: []string{"down"}, In: 24, Out: 32},
}}

var fusedBank = &plan.Bank{Name: "bank", Experts: 6, Parts: []*plan.Part{
	{Role: plan.Role_GATE_UP, Tensors: []string{"gate+up"}, In: 32, Out: 48},
	{Role: plan.Role_DOWN, Tensors: []string{"down"}, In: 24, Out: 32},
}}

func opCases() []opCase {
	cases := []opCase{
		{name: "embed from memory", width: 5, tripled: true, ops: []*plan.Op{op("repeat", "x", "", "y", attrs{"times": 1})},
			want: each(func(x []float64) []float64 { return x })},
		{name: "embed and scale", width: 5, ops: []*plan.Op{op("scale", "x", "", "y", attrs{"factor": -2.5})},
			want: each(func(x []float64) (y []float64) {
				for _, v := range x {
					y = append(y, -2.5*v)
				}
				return y
			})},
		{name: "rms_norm", width: 96, weights: []tensor{f32("w", 96)}, ops: []*plan.Op{op("rms_norm", "x", "w", "y", attrs{"eps": 0.01})},
			want: func(x matrix, w map[string]matrix) (y matrix) {
				for _, row := range x {
					y = append(y, rms64(row, w["w"][0], 0.01))
				}
				return y
			}},
		{name: "rms_norm groups, half-precision weight", width: 96, weights: []tensor{{"w", dtype.F16, []uint64{32}}},
			ops: []*plan.Op{op("rms_norm", "x", "w", "y", attrs{"eps": 1e-6, "group": 32})},
			want: func(x matrix, w map[string]matrix) (y matrix) {
				for _, row := range x {
					var out []float64
					for g := 0; g < 96; g += 32 {
						out = append(out, rms64(row[g:g+32], w["w"][0], 1e-6)...)
					}
					y = append(y, out)
				}
				return y
			}},
		{name: "rms_norm without weight", width: 7, ops: []*plan.Op{op("rms_norm", "x", "", "y", attrs{"eps": 1e-6})},
			want: each(func(x []float64) []float64 { return rms64(x, nil, 1e-6) })},
		{name: "linear with bias", width: 48, weights: []tensor{f32("w", 48, 700), f32("b", 700)}, ops: []*plan.Op{op("linear", "x", "w b", "y", nil)},
			want: func(x matrix, w map[string]matrix) (y matrix) {
				for _, row := range x {
					out := times64(w["w"], row)
					for i := range out {
						out[i] += w["b"][0][i]
					}
					y = append(y, out)
				}
				return y
			}},
		{name: "linear in groups", width: 96, weights: []tensor{{"w", dtype.BF16, []uint64{32, 15}}}, ops: []*plan.Op{op("linear", "x", "w", "y", attrs{"groups": 3})},
			want: func(x matrix, w map[string]matrix) (y matrix) {
				for _, row := range x {
					var out []float64
					for g := range 3 {
						out = append(out, times64(w["w"][5*g:5*g+5], row[32*g:32*g+32])...)
					}
					y = append(y, out)
				}
				return y
			}},
		{name: "exact linear", width: 96, weights: []tensor{{"w", dtype.Q8_0, []uint64{96, 20}}}, ops: []*plan.Op{op("linear", "x", "w", "y", attrs{"exact": true})},
			want: func(x matrix, w map[string]matrix) (y matrix) {
				for _, row := range x {
					y = append(y, times64(w["w"], row))
				}
				return y
			}},
		{name: "linears of one value", width: 96, within: 0.02, // activations are rounded to 8 bits
			weights: []tensor{{"w", dtype.Q8_0, []uint64{96, 2000}}, f32("u", 96, 40), {"v", dtype.Q8_0, []uint64{96, 3}}},
			ops: []*plan.Op{op("linear", "x", "w", "a", nil), op("linear", "x", "u", "b", nil), op("linear", "x", "v", "c", nil),
				op("concat", "a b", "", "ab", nil), op("concat", "ab c", "", "y", nil)},
			want: func(x matrix, w map[string]matrix) (y matrix) {
				for _, row := range x {
					y = append(y, append(append(times64(w["w"], row), times64(w["u"], row)...), times64(w["v"], row)...))
				}
				return y
			}},
		{name: "rope", width: 16, ops: []*plan.Op{op("rope", "x", "", "y", attrs{"head_dim": 8, "n_rot": 8, "base": 100.0})},
			want: rope64(4, 0, false, 1, power(100, 8))},
		{name: "rope interleaved, part of the head, with magnitude", width: 16,
			ops:  []*plan.Op{op("rope", "x", "", "y", attrs{"head_dim": 8, "n_rot": 4, "offset": 2, "layout": "interleaved", "magnitude": 1.5})},
			want: rope64(2, 2, true, 1.5, power(10000, 4))},
		{name: "rope inverse", width: 16, ops: []*plan.Op{op("rope", "x", "", "y", attrs{"head_dim": 8, "n_rot": 6, "inverse": true})},
			want: rope64(3, 0, false, 1, func(j int, _ map[string]matrix) float64 { return -power(10000, 6)(j, nil) })},
		{name: "rope linear, with divisors", width: 16, weights: []tensor{f32("d", 4)},
			ops:  []*plan.Op{op("rope", "x", "d", "y", attrs{"head_dim": 8, "n_rot": 8, "scaling": "linear", "factor": 4.0})},
			want: rope64(4, 0, false, 1, func(j int, w map[string]matrix) float64 { return power(10000, 8)(j, nil) / 4 / w["d"][0][j] })},
		{name: "rope yarn", width: 16,
			// corr(2) = 8 ln(64/4pi) / (2 ln 50) = 1.66 -> 1, corr(0.5) = 3.08 -> 4; so j = 0, 1 stay, 2 and 3 are mixed.
			ops: []*plan.Op{op("rope", "x", "", "y", attrs{"head_dim": 8, "n_rot": 8, "base": 50.0, "scaling": "yarn", "factor": 8.0,
				"original_context": 64, "beta_fast": 2.0, "beta_slow": 0.5, "magnitude": 1.25})},
			want: rope64(4, 0, false, 1.25, func(j int, _ map[string]matrix) float64 {
				return power(50, 8)(j, nil) * []float64{1, 1, 2.0/3 + 1.0/3/8, 1.0/3 + 2.0/3/8}[j]
			})},
		{name: "rope yarn untruncated", width: 16,
			ops: []*plan.Op{op("rope", "x", "", "y", attrs{"head_dim": 8, "n_rot": 8, "base": 50.0, "scaling": "yarn", "factor": 8.0,
				"original_context": 64, "beta_fast": 2.0, "beta_slow": 0.5, "untruncated": true})},
			want: rope64(4, 0, false, 1, func(j int, _ map[string]matrix) float64 {
				lo := 4 * math.Log(64/(4*math.Pi)) / math.Log(50)
				hi := 4 * math.Log(64/math.Pi) / math.Log(50)
				mix := min(max((float64(j)-lo)/(hi-lo), 0), 1)
				return power(50, 8)(j, nil) * (1 - mix + mix/8)
			})},
		{name: "embed, rope and linear in the head", width: 16, head: true, weights: []tensor{f32("w", 16, 16)},
			ops: []*plan.Op{op("embed", "", "table", "e", nil), op("linear", "x", "w", "l", nil), op("add", "l e", "", "s", nil),
				op("rope", "s", "", "y", attrs{"head_dim": 8, "n_rot": 8, "base": 100.0})},
			want: func(x matrix, w map[string]matrix) (s matrix) {
				for _, row := range x {
					sum := times64(w["w"], row)
					for i, v := range row {
						sum[i] += v
					}
					s = append(s, sum)
				}
				return rope64(4, 0, false, 1, power(100, 8))(s, nil)
			}},
		{name: "attention", width: 64, states: []*plan.State{kvState("kv", 16, 16)}, ops: attentionOps(nil, "", true), want: attention64(8, 0, 0, false)},
		{name: "attention, half-precision cache", width: 64, states: []*plan.State{kvState("kv", 16, 16)}, ops: attentionOps(nil, "", true),
			want: attention64(8, 0, 0, false), half: true, within: 2e-3},
		{name: "attention with narrower values", width: 56, states: []*plan.State{kvState("kv", 16, 8)},
			ops: attentionOps(attrs{"value_dim": 4}, "", true), want: attention64(4, 0, 0, false)},
		{name: "attention, window, softcap, sinks", width: 64, states: []*plan.State{kvState("kv", 16, 16)}, weights: []tensor{f32("sinks", 4)},
			ops: attentionOps(attrs{"window": 3, "softcap": 1.5}, "sinks", true), want: attention64(8, 3, 1.5, true)},
		{name: "attention, keys are values", width: 48, states: []*plan.State{kvState("kv", 16, 0)}, ops: attentionOps(nil, "", false), want: attention64(8, 0, 0, false)},
		{name: "attention over another's cache", width: 64, states: []*plan.State{kvState("kv", 16, 16)},
			ops: append(attentionOps(nil, "", true)[:3],
				withState("kv", op("attention", "q k v", "", "first", attrs{"heads": 4, "kv_heads": 2, "head_dim": 8, "scale": 2.0})),
				withState("kv", op("attention", "q", "", "y", attrs{"heads": 4, "kv_heads": 2, "head_dim": 8, "scale": 0.5}))),
			want: attention64(8, 0, 0, false)},
		{name: "route and experts", width: 38, bank: smallBank, weights: expertWeights(),
			ops: moeOps(attrs{}, "", nil, ""), want: moe{gate: softmax64, scale: 1, glu: swiglu64}.want},
		{name: "route: normalised with a floor, scaled; fused gate and up", width: 38, bank: fusedBank, weights: expertWeights(),
			ops:  moeOps(attrs{"normalize": true, "norm_floor": 0.75, "scale": 2.5}, "", nil, ""),
			want: moe{gate: softmax64, normalize: true, scale: 2.5, glu: swiglu64}.want},
		{name: "route: sigmoid with bias", width: 38, bank: smallBank, weights: expertWeights(f32("bias", 6)),
			ops: moeOps(attrs{"gating": "sigmoid"}, "bias", nil, ""), want: moe{gate: func(l []float64) []float64 {
				return map64(l, func(x float64) float64 { return 1 / (1 + math.Exp(-x)) })
			}, scale: 1, glu: swiglu64}.want},
		{name: "route: root of softplus", width: 38, bank: smallBank, weights: expertWeights(),
			ops: moeOps(attrs{"gating": "sqrt_softplus"}, "", nil, ""), want: moe{gate: func(l []float64) []float64 {
				return map64(l, func(x float64) float64 { return math.Sqrt(math.Log(1 + math.Exp(x))) })
			}, scale: 1, glu: swiglu64}.want},
		{name: "route: softmax of the selected; experts with biases, scales and clamps", width: 38, bank: smallBank,
			weights: expertWeights(f32("gate_bias", 24, 6), f32("up_bias", 24, 6), f32("down_bias", 32, 6), f32("scale", 6)),
			ops: moeOps(attrs{"gating": "softmax_selected"}, "",
				attrs{"activation": "swiglu_oai", "limit": 2.0, "alpha": 1.7}, "gate_bias up_bias down_bias scale"),
			want: moe{gate: func(l []float64) []float64 { return l }, selected: true, scale: 1, glu: func(g, u float64) float64 {
				g, u = min(g, 2), min(max(u, -2), 2)
				return g / (1 + math.Exp(-1.7*g)) * (u + 1)
			}}.want},
		{name: "glu: silu with a limit", width: 10, ops: []*plan.Op{op("glu", "x", "", "y", attrs{"limit": 0.5})},
			want: each(func(x []float64) (y []float64) {
				for i := range 5 {
					y = append(y, silu64(min(x[i], 0.5))*min(max(x[5+i], -0.5), 0.5))
				}
				return y
			})},
		{name: "glu: gelu", width: 10, ops: []*plan.Op{op("glu", "x", "", "y", attrs{"activation": "gelu_tanh"})},
			want: each(func(x []float64) (y []float64) {
				for i := range 5 {
					y = append(y, gelu64(x[i])*x[5+i])
				}
				return y
			})},
		{name: "glu", width: 10, ops: []*plan.Op{op("slice", "x", "", "a", attrs{"width": 5}), op("slice", "x", "", "b", attrs{"start": 5, "width": 5}),
			op("glu", "a b", "", "y", nil)}, want: each(glu64)},
		{name: "glu of a fused value", width: 10, ops: []*plan.Op{op("glu", "x", "", "y", nil)}, want: each(glu64)},
		{name: "add and mul", width: 9, ops: []*plan.Op{op("slice", "x", "", "a", attrs{"width": 4}), op("slice", "x", "", "b", attrs{"start": 4, "width": 4}),
			op("slice", "x", "", "s", attrs{"start": 8, "width": 1}), op("add", "a b", "", "c", nil), op("mul", "c b", "", "d", nil), op("mul", "d s", "", "y", nil)},
			want: each(func(x []float64) (y []float64) {
				for i := range 4 {
					y = append(y, (x[i]+x[4+i])*x[4+i]*x[8])
				}
				return y
			})},
		{name: "add_weight and mul_weight", width: 9, weights: []tensor{f32("a", 3), f32("b", 9)},
			ops: []*plan.Op{op("add_weight", "x", "a", "s", nil), op("mul_weight", "s", "b", "y", nil)},
			want: func(x matrix, w map[string]matrix) (y matrix) {
				for _, row := range x {
					var out []float64
					for i, v := range row {
						out = append(out, (v+w["a"][0][i%3])*w["b"][0][i])
					}
					y = append(y, out)
				}
				return y
			}},
		{name: "softcap", width: 6, ops: []*plan.Op{op("softcap", "x", "", "y", attrs{"cap": 1.5})},
			want: each(func(x []float64) []float64 {
				return map64(x, func(v float64) float64 { return 1.5 * math.Tanh(v/1.5) })
			})},
		{name: "slice of groups", width: 12, ops: []*plan.Op{op("slice", "x", "", "y", attrs{"group": 4, "start": 1, "width": 2})},
			want: each(func(x []float64) []float64 { return []float64{x[1], x[2], x[5], x[6], x[9], x[10]} })},
		{name: "repeat", width: 2, ops: []*plan.Op{op("repeat", "x", "", "y", attrs{"times": 3})},
			want: each(func(x []float64) []float64 { return []float64{x[0], x[1], x[0], x[1], x[0], x[1]} })},
	}
	for fn, f := range map[string]func(float64) float64{
		"sigmoid": func(x float64) float64 { return 1 / (1 + math.Exp(-x)) }, "silu": silu64, "tanh": math.Tanh, "exp": math.Exp,
		"softplus": func(x float64) float64 { return math.Log(1 + math.Exp(x)) }, "relu": func(x float64) float64 { return (x + math.Abs(x)) / 2 },
		"gelu_tanh": gelu64,
	} {
		cases = append(cases, opCase{name: "unary " + fn, width: 40, ops: []*plan.Op{op("unary", "x", "", "y", attrs{"fn": fn})},
			want: each(func(x []float64) []float64 { return map64(x, f) })})
	}
	return cases
}

func withState(name string, o *plan.Op) *plan.Op {
	o.States = []string{name}
	return o
}

func map64(x []float64, f func(float64) float64) (y []float64) {
	for _, v := range x {
		y = append(y, f(v))
	}
	return y
}

func glu64(x []float64) (y []float64) {
	for i := range 5 {
		y = append(y, silu64(x[i])*x[5+i])
	}
	return y
}

const opTokens = 13

// build makes the model of a case, and the operands as float64.
func (c *opCase) build(t *testing.T) (m *model, x matrix, weights map[string]matrix) {
	seed := fnv.New64()
	_, _ = seed.Write([]byte(c.name))
	rng := rand.New(rand.NewPCG(seed.Sum64(), 0))
	set := kernel.Reference()
	// random returns rows of n elements of type typ, and what they decode to.
	random := func(typ dtype.Type, n, rows int) (data []byte, decoded matrix) {
		for range rows {
			row := make([]float32, n)
			for i := range row {
				row[i] = float32(rng.NormFloat64())
			}
			if typ == dtype.I32 { // ids below 6
				wide := make([]float64, n)
				for i, id := range rng.Perm(6)[:n] {
					wide[i] = float64(id)
					data = binary.LittleEndian.AppendUint32(data, uint32(id))
				}
				decoded = append(decoded, wide)
				continue
			}
			var b []byte
			switch typ {
			case dtype.F32:
				b = append(b, arena.Bytes(row)...)
			case dtype.F16:
				half := make([]uint16, n)
				set.ToF16(half, row)
				b = arena.Bytes(half)
			case dtype.BF16:
				for _, v := range row {
					bits := math.Float32bits(v)
					b = append(b, byte(bits>>16), byte(bits>>24))
				}
			case dtype.Q8_0:
				b = make([]byte, kernel.ActQ8_0.RowBytes(n))
				set.Quantize(kernel.ActQ8_0, b, row)
			}
			set.Dequantize(typ, row, b)
			wide := make([]float64, n)
			for i, v := range row {
				wide[i] = float64(v)
			}
			data, decoded = append(data, b...), append(decoded, wide)
		}
		return data, decoded
	}
	p := &plan.Plan{Schema: plan.SchemaVersion, Recipe: "case", Model: &plan.Model{Layers: 1, ContextLength: 64}, States: c.states}
	m = &model{bound: &compute.Bound{Plan: p}}
	var dense []byte
	weights = map[string]matrix{}
	add := func(name string, typ dtype.Type, shape []uint64, residency plan.Residency, data []byte, rowBytes int) {
		p.Weights = append(p.Weights, &plan.Weight{Name: name, Shape: shape, Residency: residency, Sources: []*plan.Source{{Tensor: name}}})
		m.bound.Weights = append(m.bound.Weights, &compute.BoundWeight{Type: uint32(typ), RowBytes: uint64(rowBytes), Offset: uint64(len(dense))})
		dense = append(dense, data...)
		dense = append(dense, make([]byte, -len(dense)&63)...)
	}
	table, x := random(dtype.F32, c.width, opTokens)
	shape, factor := []uint64{uint64(c.width), opTokens}, 1.0
	if c.tripled {
		factor = 3
		add("table", dtype.F32, shape, plan.Residency_RESIDENT, table, 4*c.width)
		for _, row := range x {
			for i := range row {
				row[i] *= factor
			}
		}
	} else {
		add("table", dtype.F32, shape, plan.Residency_ROWS, nil, 4*c.width)
		m.table, m.row = table, 4*c.width
	}
	experts := map[string][]byte{}
	for _, w := range c.weights {
		rows := 1
		for _, d := range w.shape[1:] {
			rows *= int(d)
		}
		data, decoded := random(w.t, int(w.shape[0]), rows)
		weights[w.name] = decoded
		if len(w.shape) == 3 { // streamed
			experts[w.name] = data
			continue
		}
		add(w.name, w.t, w.shape, plan.Residency_RESIDENT, data, len(data)/rows)
	}
	if c.bank != nil {
		p.Banks = []*plan.Bank{c.bank}
		b := &compute.BoundBank{}
		var parts [][]byte
		for _, part := range c.bank.Parts {
			b.Parts = append(b.Parts, &compute.BoundPart{Type: uint32(dtype.F32), RowBytes: 4 * part.In})
			data := experts[part.Tensors[0]]
			if part.Role == plan.Role_GATE_UP {
				gate, up := experts["gate"], experts["up"]
				n := len(gate) / int(c.bank.Experts)
				for e := range int(c.bank.Experts) {
					data = append(append(data, gate[e*n:][:n]...), up[e*n:][:n]...)
				}
			}
			parts = append(parts, data)
		}
		m.bound.Banks, m.banks = []*compute.BoundBank{b}, [][][]byte{parts}
	}
	last := c.ops[len(c.ops)-1]
	p.Blocks = []*plan.Block{
		{Kind: plan.BlockKind_EMBEDDING, Ops: []*plan.Op{op("embed", "", "table", "x", attrs{"scale": factor})}},
		{Kind: plan.BlockKind_LAYER, Ops: c.ops},
		{Kind: plan.BlockKind_HEAD, Ops: []*plan.Op{op("scale", last.Out[0], "", plan.Logits, attrs{"factor": 1.0})}},
	}
	if c.head {
		p.Blocks[2].Ops = append(c.ops[:len(c.ops):len(c.ops)], p.Blocks[2].Ops...)
		p.Blocks = []*plan.Block{p.Blocks[0], p.Blocks[2]}
	}
	p.Model.Vocabulary = uint32(len(c.want(x, weights)[0]))
	values, err := plan.Validate(p)
	require.NoError(t, err)
	m.bound.Values = values
	m.place(t, dense, 4096*3+3, 6)
	return m, x, weights
}

// eval runs the case's tokens in batches of at most chunk.
func (c *opCase) eval(t *testing.T, m *model, kernels string, threads, chunk int, all bool) [][]float32 {
	backend, err := cpu.New(cpu.Options{Kernels: kernels})
	require.NoError(t, err)
	bound := m.options(&compute.Options{Context: opTokens, Batch: uint32(chunk), LogitRows: uint32(chunk), Threads: uint32(threads), KvType: c.kvType()})
	seq, err := backend.Load(bound, m.region)
	require.NoError(t, err)
	defer seq.Close()
	width := int(bound.Plan.Model.Vocabulary)
	var out [][]float32
	h := newHost(m)
	for pos := 0; pos < opTokens; pos += chunk {
		var tokens []int32
		for i := pos; i < min(pos+chunk, opTokens); i++ {
			tokens = append(tokens, int32(i))
		}
		b := &compute.Batch{Tokens: tokens, Position: pos, Rows: m.rows(tokens), All: all, Logits: make([]float32, len(tokens)*width)}
		require.NoError(t, seq.Eval(context.Background(), b, h))
		for i := range tokens {
			switch {
			case all:
				out = append(out, b.Logits[i*width:][:width])
			case i < len(tokens)-1:
				out = append(out, nil)
			default:
				out = append(out, b.Logits[:width])
			}
		}
	}
	return out
}

func (c *opCase) kvType() compute.KVType {
	if c.half {
		return compute.KVType_F16
	}
	return compute.KVType_F32
}

// TestOps holds every op on every kernel set to a plain float64 evaluation, and to itself for other threads and batches.
func TestOps(t *testing.T) {
	covered := map[string]bool{"embed": true}
	for _, c := range slices.Concat(opCases(), hybridCases(), deepseek4Cases(), latentCases()) {
		for _, o := range c.ops {
			covered[o.Kind] = true
		}
		t.Run(c.name, func(t *testing.T) {
			m, x, weights := c.build(t)
			want := c.want(x, weights)
			for _, kernels := range cpu.Kernels() {
				got := c.eval(t, m, kernels, 1, opTokens, true)
				var top float64
				for _, row := range want {
					for _, v := range row {
						top = max(top, math.Abs(v))
					}
				}
				within := c.within
				if within == 0 {
					within = 1e-6
				}
				for i := range want {
					require.Len(t, got[i], len(want[i]))
					for j, v := range want[i] {
						require.InDelta(t, v, got[i][j], within*top, "%s: row %d, element %d", kernels, i, j)
					}
				}
				for _, w := range []struct {
					threads, chunk int
					all            bool
				}{{3, opTokens, true}, {1, 4, true}, {2, 1, true}, {2, 5, false}} {
					again := c.eval(t, m, kernels, w.threads, w.chunk, w.all)
					for i, row := range again {
						if row != nil {
							require.Equal(t, got[i], row, "%s, %+v, row %d", kernels, w, i)
						}
					}
				}
			}
		})
	}
	backend, err := cpu.New(cpu.Options{})
	require.NoError(t, err)
	for _, kind := range backend.Describe().Ops {
		require.True(t, covered[kind], "op %q is described but no case covers it", kind)
	}
	require.Len(t, covered, len(backend.Describe().Ops), fmt.Sprint(covered))
}
