package optable

import (
	"math"
	"slices"

	"github.com/bigmoe/bigmoe/sdk/dtype"
	"github.com/bigmoe/bigmoe/sdk/plan"
)

func softplus64(x float64) float64 { return math.Log1p(math.Exp(x)) }

// mix64 is specs/deepseek4.md (3) to (9) for n streams.
func mix64(f []float64, w map[string]Matrix, n, iterations int, eps, hcEps float64) (pre, post, comb []float64) {
	m, scale, base := times64(w["fn"], rms64(f, nil, eps)), w["scale"][0], w["base"][0]
	for s := range n {
		pre = append(pre, sigmoid64(m[s]*scale[0]+base[s])+hcEps)
		post = append(post, 2*sigmoid64(m[n+s]*scale[1]+base[n+s]))
	}
	for a := range n {
		var row []float64
		for b := range n {
			k := 2*n + n*a + b
			row = append(row, m[k]*scale[2]+base[k])
		}
		comb = append(comb, map64(softmax64(row), func(p float64) float64 { return p + hcEps })...)
	}
	columns := func() {
		for b := range n {
			sum := hcEps
			for a := range n {
				sum += comb[n*a+b]
			}
			for a := range n {
				comb[n*a+b] /= sum
			}
		}
	}
	columns()
	for range iterations - 1 {
		for a := range n {
			sum := hcEps
			for b := range n {
				sum += comb[n*a+b]
			}
			for b := range n {
				comb[n*a+b] /= sum
			}
		}
		columns()
	}
	return pre, post, comb
}

// folded is compress, and attention over its rows, of 2 heads of 8. Rows of x are q (16), kv (8), then key and score of the
// compressor (8 or 16 each), then q (2 heads of 4), gate (2), key and score (8 each) of an indexer that overlaps.
type folded struct {
	ratio, window int
	overlap       bool
	topK          int // 0: without indexer
}

const foldedBase, foldedEps = 50.0, 0.01

// rows returns the compressed rows of dim elements of all blocks, of which the last 4 turn.
func (c folded) rows(k, s, ape Matrix, norm []float64, dim int, overlap bool) (rows Matrix) {
	for end := c.ratio; end <= len(k); end += c.ratio {
		start := end - c.ratio
		var row []float64
		for j := range dim {
			var keys, scores []float64
			take := func(from, to, channel int) {
				for u := from; u < to; u++ {
					keys = append(keys, k[u][channel])
					scores = append(scores, s[u][channel]+ape[u%c.ratio][channel])
				}
			}
			if overlap {
				take(max(0, start-c.ratio), start, j)
				take(start, end, dim+j)
			} else {
				take(start, end, j)
			}
			row = append(row, dot64(softmax64(scores), keys))
		}
		row = rms64(row, norm, foldedEps)
		for j := range 2 {
			turn(row[dim-4:], 2*j, 2*j+1, float64(start)*math.Pow(foldedBase, -float64(j)/2), 1)
		}
		rows = append(rows, row)
	}
	return rows
}

func (c folded) want(x Matrix, w map[string]Matrix) (y Matrix) {
	width := 8
	if c.overlap {
		width = 16
	}
	part := func(from, n int) (out Matrix) {
		for _, row := range x {
			out = append(out, row[from:from+n])
		}
		return out
	}
	rows := c.rows(part(24, width), part(24+width, width), w["ape"], w["norm"][0], 8, c.overlap)
	at := 24 + 2*width
	var index Matrix
	if c.topK > 0 {
		index = c.rows(part(at+10, 8), part(at+18, 8), w["index_ape"], w["index_norm"][0], 4, true)
	}
	for p := range x {
		seen := min((p+1)/c.ratio, len(rows))
		picked := make([]int, seen)
		for b := range picked {
			picked[b] = b
		}
		if c.topK > 0 && seen > c.topK {
			score := func(b int) (sum float64) {
				for h := range 2 {
					sum += 0.5 * x[p][at+8+h] * max(0, dot64(x[p][at+4*h:][:4], index[b]))
				}
				return sum
			}
			slices.SortFunc(picked, func(a, b int) int {
				if score(a) > score(b) {
					return -1
				}
				return 1
			})
			picked = picked[:c.topK]
		}
		keys := slices.Clone(part(16, 8)[max(0, p-c.window+1) : p+1])
		for _, b := range picked {
			keys = append(keys, rows[b])
		}
		var out []float64
		for h := range 2 {
			var z []float64
			for _, k := range keys {
				z = append(z, 0.4*dot64(x[p][8*h:][:8], k))
			}
			weights := softmax64(append(z, w["sinks"][0][h]))
			o := make([]float64, 8)
			for u, k := range keys {
				for i := range o {
					o[i] += weights[u] * k[i]
				}
			}
			out = append(out, o...)
		}
		y = append(y, out)
	}
	return y
}

func (c folded) Case(name string) Case {
	rope := func(extra Attrs) Attrs {
		a := Attrs{"ratio": c.ratio, "eps": foldedEps, "n_rot": 4, "layout": "interleaved", "base": foldedBase}
		for k, v := range extra {
			a[k] = v
		}
		return a
	}
	width, at := 8, 0
	if c.overlap {
		width = 16
	}
	kept := func(width int) uint64 { return uint64(2 * width / 8 * c.ratio * width) } // twice as much where blocks overlap
	var ops []*plan.Op
	take := func(name string, n int) {
		ops = append(ops, Op("slice", "x", "", name, Attrs{"start": at, "width": n}))
		at += n
	}
	take("q", 16)
	take("kv", 8)
	take("ck", width)
	take("cs", width)
	fold := Op("compress", "ck cs", "ape norm", "", rope(Attrs{"dim": 8, "overlap": c.overlap}))
	fold.States = []string{"pending", "rows"}
	ops = append(ops, fold)
	weights := []Tensor{f32("ape", uint64(width), uint64(c.ratio)), of("norm", dtype.BF16, 8), f32("sinks", 2)}
	states := []*plan.State{kvState("kv", 8, 0), fixedState("pending", plan.StateKind_RECURRENT, kept(width)),
		{Name: "rows", Kind: plan.StateKind_COMPRESSED, KeyWidth: 8, Ratio: uint64(c.ratio)}}
	in := "q kv"
	if c.topK > 0 {
		take("iq", 8)
		take("gate", 2)
		take("ik", 8)
		take("is", 8)
		fold := Op("compress", "ik is", "index_ape index_norm", "", rope(Attrs{"dim": 4, "overlap": true}))
		fold.States = []string{"index_pending", "index"}
		ops = append(ops, fold, withState("index", Op("index_top", "iq gate", "", "picks", Attrs{"heads": 2, "dim": 4, "top_k": c.topK, "scale": 0.5})))
		weights = append(weights, of("index_ape", dtype.F16, 8, uint64(c.ratio)), f32("index_norm", 4))
		states = append(states, fixedState("index_pending", plan.StateKind_RECURRENT, 32*uint64(c.ratio)),
			&plan.State{Name: "index", Kind: plan.StateKind_COMPRESSED, KeyWidth: 4, Ratio: uint64(c.ratio)})
		in = "q kv - picks"
	}
	a := Op("attention", in, "sinks", "y", Attrs{"heads": 2, "kv_heads": 1, "head_dim": 8, "scale": 0.4, "window": c.window})
	a.States = []string{"kv", "rows"}
	return Case{Name: name, Width: at, Weights: weights, States: states, Ops: append(ops, a), Want: c.want, Within: 3e-6}
}

// deepseek4Cases are the ops that only deepseek4 uses.
func deepseek4Cases() []Case {
	const n, wide = 3, 5 // streams, and their width
	mixed := func(f func(x []float64, w map[string]Matrix) []float64) func(Matrix, map[string]Matrix) Matrix {
		return func(x Matrix, w map[string]Matrix) (y Matrix) {
			for _, row := range x {
				y = append(y, f(row, w))
			}
			return y
		}
	}
	picks := Op("experts", "in ids w", "", "y2", nil)
	picks.Bank = "bank"
	return []Case{
		{Name: "hc_mix", Width: n * wide, Weights: []Tensor{f32("fn", n*wide, 2*n+n*n), f32("scale", 3), f32("base", 2*n+n*n)}, Within: 2e-6,
			Ops: []*plan.Op{Op("hc_mix", "x", "fn scale base", "pre post comb", Attrs{"streams": n, "iterations": 4, "eps": 0.01, "hc_eps": 0.02}),
				Op("concat", "pre post", "", "c", nil), Op("concat", "c comb", "", "y", nil)},
			Want: mixed(func(x []float64, w map[string]Matrix) []float64 {
				pre, post, comb := mix64(x, w, n, 4, 0.01, 0.02)
				return slices.Concat(pre, post, comb)
			})},
		{Name: "hc_head", Width: n * wide, Weights: []Tensor{of("fn", dtype.BF16, n*wide, n), f32("scale", 1), f32("base", n)}, Head: true,
			Ops: []*plan.Op{Op("hc_head", "x", "fn scale base", "y", Attrs{"streams": n, "eps": 0.01, "hc_eps": 0.02})}, Within: 2e-6,
			Want: mixed(func(x []float64, w map[string]Matrix) (y []float64) {
				for s, m := range times64(w["fn"], rms64(x, nil, 0.01)) {
					y = append(y, sigmoid64(m*w["scale"][0][0]+w["base"][0][s])+0.02)
				}
				return y
			})},
		{Name: "hc_collapse", Width: n*wide + n, Within: 2e-6,
			Ops: []*plan.Op{Op("slice", "x", "", "h", Attrs{"width": n * wide}), Op("slice", "x", "", "pre", Attrs{"start": n * wide, "width": n}),
				Op("hc_collapse", "h pre", "", "y", Attrs{"streams": n})},
			Want: each(func(x []float64) []float64 {
				y := make([]float64, wide)
				for s, a := range x[n*wide:] {
					for i := range y {
						y[i] += a * x[s*wide+i]
					}
				}
				return y
			})},
		{Name: "hc_expand", Width: n*wide + wide + n + n*n, Within: 2e-6,
			Ops: []*plan.Op{Op("slice", "x", "", "h", Attrs{"width": n * wide}), Op("slice", "x", "", "s", Attrs{"start": n * wide, "width": wide}),
				Op("slice", "x", "", "post", Attrs{"start": n*wide + wide, "width": n}), Op("slice", "x", "", "comb", Attrs{"start": n*wide + wide + n, "width": n * n}),
				Op("hc_expand", "h s post comb", "", "y", Attrs{"streams": n})},
			Want: each(func(x []float64) (y []float64) {
				s, post, comb := x[n*wide:][:wide], x[n*wide+wide:][:n], x[n*wide+wide+n:]
				for b := range n {
					for i := range wide {
						v := post[b] * s[i]
						for a := range n {
							v += comb[n*a+b] * x[a*wide+i]
						}
						y = append(y, v)
					}
				}
				return y
			})},
		folded{ratio: 4, window: 3}.Case("compress, all rows"),
		folded{ratio: 3, window: 5, overlap: true}.Case("compress with overlap, all rows"),
		folded{ratio: 2, window: 2, overlap: true, topK: 2}.Case("index_top"),
		folded{ratio: 3, window: 1, topK: 1}.Case("index_top of 1"),
		{Name: "token_row and route with picks", Width: 6 + 32, Weights: expertWeights(of("experts_of", dtype.I32, 3, Tokens)), Bank: smallBank, Within: 1e-5,
			Ops: []*plan.Op{Op("token_row", "", "experts_of", "picks", nil), Op("slice", "x", "", "l", Attrs{"width": 6}), Op("slice", "x", "", "in", Attrs{"start": 6, "width": 32}),
				Op("route", "l picks", "", "ids w", Attrs{"top_k": 3, "gating": "sqrt_softplus", "normalize": true, "scale": 1.5}), picks, Op("concat", "w y2", "", "y", nil)},
			Want: func(x Matrix, w map[string]Matrix) (y Matrix) {
				for token, row := range x {
					ids := w["experts_of"][token]
					var weights []float64
					var sum float64
					for _, id := range ids {
						weights = append(weights, math.Sqrt(softplus64(row[int(id)])))
						sum += weights[len(weights)-1]
					}
					out := make([]float64, 32)
					for k, id := range ids {
						weights[k] *= 1.5 / sum
						g, u := times64(w["gate"][24*int(id):][:24], row[6:]), times64(w["up"][24*int(id):][:24], row[6:])
						for j := range g {
							g[j] = silu64(g[j]) * u[j]
						}
						for o, v := range times64(w["down"][32*int(id):][:32], g) {
							out[o] += weights[k] * v
						}
					}
					y = append(y, append(weights, out...))
				}
				return y
			}},
	}
}
