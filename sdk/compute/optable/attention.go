package optable

import (
	"math"
	"slices"

	"github.com/bigmoe/bigmoe/sdk/plan"
)

// attention64 is attention of 4 heads of 8 with 2 key-value heads. Rows of x are q (32), k (16), v (2 x valueDim).
func attention64(valueDim, window int, softcap float64, sinks bool) func(Matrix, map[string]Matrix) Matrix {
	return func(x Matrix, w map[string]Matrix) (y Matrix) {
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

func attentionOps(extra Attrs, weights string, v bool) []*plan.Op {
	a := Attrs{"heads": 4, "kv_heads": 2, "head_dim": 8, "scale": 0.5}
	for k, x := range extra {
		a[k] = x
	}
	ops := []*plan.Op{Op("slice", "x", "", "q", Attrs{"width": 32}), Op("slice", "x", "", "k", Attrs{"start": 32, "width": 16})}
	in := "q k"
	if v {
		width := 16
		if d, ok := extra["value_dim"]; ok {
			width = 2 * d.(int)
		}
		ops, in = append(ops, Op("slice", "x", "", "v", Attrs{"start": 48, "width": width})), "q k v"
	}
	o := Op("attention", in, weights, "y", a)
	o.States = []string{"kv"}
	return append(ops, o)
}

// Layer is a layer as most models have it: attention, then experts. It needs embed, linear, attention, add, route, experts
// and scale.
func Layer() *Case {
	attention := Op("attention", "q k v", "", "o", Attrs{"heads": 4, "kv_heads": 2, "head_dim": 8, "scale": 0.5})
	e := Op("experts", "h ids weights", "", "m", nil)
	e.Bank = "bank"
	return &Case{Name: "a layer", Width: 32, States: []*plan.State{kvState("kv", 16, 16)}, Bank: smallBank, Within: 1e-5,
		Weights: expertWeights(f32("q", 32, 32), f32("k", 32, 16), f32("v", 32, 16), f32("router", 32, 6)),
		Ops: []*plan.Op{Op("linear", "x", "q", "q", nil), Op("linear", "x", "k", "k", nil), Op("linear", "x", "v", "v", nil),
			withState("kv", attention), Op("add", "x o", "", "h", nil), Op("linear", "h", "router", "l", Attrs{"exact": true}),
			Op("route", "l", "", "ids weights", Attrs{"top_k": 3}), e, Op("add", "h m", "", "y", nil)},
		Want: func(x Matrix, w map[string]Matrix) (y Matrix) {
			var qkv, in Matrix
			for _, row := range x {
				qkv = append(qkv, slices.Concat(times64(w["q"], row), times64(w["k"], row), times64(w["v"], row)))
			}
			o := attention64(8, 0, 0, false)(qkv, w)
			for t, row := range x {
				h := add64(row, o[t])
				in = append(in, slices.Concat(times64(w["router"], h), h))
			}
			for t, row := range (moe{gate: softmax64, scale: 1, glu: swiglu64}).want(in, w) {
				y = append(y, add64(in[t][6:], row[3:]))
			}
			return y
		}}
}

func add64(a, b []float64) (y []float64) {
	for i := range a {
		y = append(y, a[i]+b[i])
	}
	return y
}

// Windowed is attention that sees 5 positions, with a state that keeps the last keep of them and a batch; 0: all.
func Windowed(keep uint64) *Case {
	state := kvState("kv", 16, 16)
	state.Window = keep
	return &Case{Name: "attention, windowed cache", Width: 64, States: []*plan.State{state}, Ops: attentionOps(Attrs{"window": 5}, "", true),
		Want: attention64(8, 5, 0, false)}
}

// LongCache has a cache of 1024 numbers for each position, of which a token sees the last 2 positions: much memory and little
// work. It needs embed, linear, attention and scale.
func LongCache() *Case {
	attention := Op("attention", "q k v", "", "y", Attrs{"heads": 1, "kv_heads": 1, "head_dim": 512, "scale": 0.1, "window": 2})
	return &Case{Name: "a long cache", Width: 8, States: []*plan.State{kvState("kv", 512, 512)},
		Weights: []Tensor{f32("q", 8, 512), f32("k", 8, 512), f32("v", 8, 512)}, Within: 1e-5,
		Ops: []*plan.Op{Op("linear", "x", "q", "q", nil), Op("linear", "x", "k", "k", nil), Op("linear", "x", "v", "v", nil), withState("kv", attention)},
		Want: func(x Matrix, w map[string]Matrix) (y Matrix) {
			for t, row := range x {
				from := max(0, t-1)
				q := times64(w["q"], row)
				var z []float64
				for u := from; u <= t; u++ {
					z = append(z, 0.1*dot64(q, times64(w["k"], x[u])))
				}
				out := make([]float64, 512)
				for i, p := range softmax64(z) {
					for j, v := range times64(w["v"], x[from+i]) {
						out[j] += p * v
					}
				}
				y = append(y, out)
			}
			return y
		}}
}
