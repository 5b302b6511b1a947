package optable

import (
	"math"

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

// Windowed is attention that sees 5 positions, with a state that keeps the last keep of them and a batch; 0: all.
func Windowed(keep uint64) *Case {
	state := kvState("kv", 16, 16)
	state.Window = keep
	return &Case{Name: "attention, windowed cache", Width: 64, States: []*plan.State{state}, Ops: attentionOps(Attrs{"window": 5}, "", true),
		Want: attention64(8, 5, 0, false)}
}
