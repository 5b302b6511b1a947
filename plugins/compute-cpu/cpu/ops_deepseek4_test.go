package cpu_test

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/plugins/compute-cpu/cpu"
	"github.com/bigmoe/bigmoe/sdk/compute"
	"github.com/bigmoe/bigmoe/sdk/dtype"
	"github.com/bigmoe/bigmoe/sdk/fault"
	"github.com/bigmoe/bigmoe/sdk/plan"
)

func softplus64(x float64) float64 { return math.Log1p(math.Exp(x)) }

// mix64 is specs/deepseek4.md (3) to (9) for n streams.
func mix64(f []float64, w map[string]matrix, n, iterations int, eps, hcEps float64) (pre, post, comb []float64) {
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
func (c folded) rows(k, s, ape matrix, norm []float64, dim int, overlap bool) (rows matrix) {
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

func (c folded) want(x matrix, w map[string]matrix) (y matrix) {
	width := 8
	if c.overlap {
		width = 16
	}
	part := func(from, n int) (out matrix) {
		for _, row := range x {
			out = append(out, row[from:from+n])
		}
		return out
	}
	rows := c.rows(part(24, width), part(24+width, width), w["ape"], w["norm"][0], 8, c.overlap)
	at := 24 + 2*width
	var index matrix
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

func (c folded) opCase(name string) opCase {
	rope := func(extra attrs) attrs {
		a := attrs{"ratio": c.ratio, "eps": foldedEps, "n_rot": 4, "layout": "interleaved", "base": foldedBase}
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
		ops = append(ops, op("slice", "x", "", name, attrs{"start": at, "width": n}))
		at += n
	}
	take("q", 16)
	take("kv", 8)
	take("ck", width)
	take("cs", width)
	fold := op("compress", "ck cs", "ape norm", "", rope(attrs{"dim": 8, "overlap": c.overlap}))
	fold.States = []string{"pending", "rows"}
	ops = append(ops, fold)
	weights := []tensor{f32("ape", uint64(width), uint64(c.ratio)), {"norm", dtype.BF16, []uint64{8}}, f32("sinks", 2)}
	states := []*plan.State{kvState("kv", 8, 0), fixedState("pending", plan.StateKind_RECURRENT, kept(width)),
		{Name: "rows", Kind: plan.StateKind_COMPRESSED, KeyWidth: 8, Ratio: uint64(c.ratio)}}
	in := "q kv"
	if c.topK > 0 {
		take("iq", 8)
		take("gate", 2)
		take("ik", 8)
		take("is", 8)
		fold := op("compress", "ik is", "index_ape index_norm", "", rope(attrs{"dim": 4, "overlap": true}))
		fold.States = []string{"index_pending", "index"}
		ops = append(ops, fold, withState("index", op("index_top", "iq gate", "", "picks", attrs{"heads": 2, "dim": 4, "top_k": c.topK, "scale": 0.5})))
		weights = append(weights, tensor{"index_ape", dtype.F16, []uint64{8, uint64(c.ratio)}}, f32("index_norm", 4))
		states = append(states, fixedState("index_pending", plan.StateKind_RECURRENT, 32*uint64(c.ratio)),
			&plan.State{Name: "index", Kind: plan.StateKind_COMPRESSED, KeyWidth: 4, Ratio: uint64(c.ratio)})
		in = "q kv - picks"
	}
	a := op("attention", in, "sinks", "y", attrs{"heads": 2, "kv_heads": 1, "head_dim": 8, "scale": 0.4, "window": c.window})
	a.States = []string{"kv", "rows"}
	return opCase{name: name, width: at, weights: weights, states: states, ops: append(ops, a), want: c.want, within: 3e-6}
}

// deepseek4Cases are the ops that only deepseek4 uses.
func deepseek4Cases() []opCase {
	const n, wide = 3, 5 // streams, and their width
	mixed := func(f func(x []float64, w map[string]matrix) []float64) func(matrix, map[string]matrix) matrix {
		return func(x matrix, w map[string]matrix) (y matrix) {
			for _, row := range x {
				y = append(y, f(row, w))
			}
			return y
		}
	}
	picks := op("experts", "in ids w", "", "y2", nil)
	picks.Bank = "bank"
	return []opCase{
		{name: "hc_mix", width: n * wide, weights: []tensor{f32("fn", n*wide, 2*n+n*n), f32("scale", 3), f32("base", 2*n+n*n)}, within: 2e-6,
			ops: []*plan.Op{op("hc_mix", "x", "fn scale base", "pre post comb", attrs{"streams": n, "iterations": 4, "eps": 0.01, "hc_eps": 0.02}),
				op("concat", "pre post", "", "c", nil), op("concat", "c comb", "", "y", nil)},
			want: mixed(func(x []float64, w map[string]matrix) []float64 {
				pre, post, comb := mix64(x, w, n, 4, 0.01, 0.02)
				return slices.Concat(pre, post, comb)
			})},
		{name: "hc_head", width: n * wide, weights: []tensor{{"fn", dtype.BF16, []uint64{n * wide, n}}, f32("scale", 1), f32("base", n)}, head: true,
			ops: []*plan.Op{op("hc_head", "x", "fn scale base", "y", attrs{"streams": n, "eps": 0.01, "hc_eps": 0.02})}, within: 2e-6,
			want: mixed(func(x []float64, w map[string]matrix) (y []float64) {
				for s, m := range times64(w["fn"], rms64(x, nil, 0.01)) {
					y = append(y, sigmoid64(m*w["scale"][0][0]+w["base"][0][s])+0.02)
				}
				return y
			})},
		{name: "hc_collapse", width: n*wide + n, within: 2e-6,
			ops: []*plan.Op{op("slice", "x", "", "h", attrs{"width": n * wide}), op("slice", "x", "", "pre", attrs{"start": n * wide, "width": n}),
				op("hc_collapse", "h pre", "", "y", attrs{"streams": n})},
			want: each(func(x []float64) []float64 {
				y := make([]float64, wide)
				for s, a := range x[n*wide:] {
					for i := range y {
						y[i] += a * x[s*wide+i]
					}
				}
				return y
			})},
		{name: "hc_expand", width: n*wide + wide + n + n*n, within: 2e-6,
			ops: []*plan.Op{op("slice", "x", "", "h", attrs{"width": n * wide}), op("slice", "x", "", "s", attrs{"start": n * wide, "width": wide}),
				op("slice", "x", "", "post", attrs{"start": n*wide + wide, "width": n}), op("slice", "x", "", "comb", attrs{"start": n*wide + wide + n, "width": n * n}),
				op("hc_expand", "h s post comb", "", "y", attrs{"streams": n})},
			want: each(func(x []float64) (y []float64) {
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
		folded{ratio: 4, window: 3}.opCase("compress, all rows"),
		folded{ratio: 3, window: 5, overlap: true}.opCase("compress with overlap, all rows"),
		folded{ratio: 2, window: 2, overlap: true, topK: 2}.opCase("index_top"),
		folded{ratio: 3, window: 1, topK: 1}.opCase("index_top of 1"),
		{name: "token_row and route with picks", width: 6 + 32, weights: expertWeights(tensor{"experts_of", dtype.I32, []uint64{3, opTokens}}), bank: smallBank, within: 1e-5,
			ops: []*plan.Op{op("token_row", "", "experts_of", "picks", nil), op("slice", "x", "", "l", attrs{"width": 6}), op("slice", "x", "", "in", attrs{"start": 6, "width": 32}),
				op("route", "l picks", "", "ids w", attrs{"top_k": 3, "gating": "sqrt_softplus", "normalize": true, "scale": 1.5}), picks, op("concat", "w y2", "", "y", nil)},
			want: func(x matrix, w map[string]matrix) (y matrix) {
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

// TestGivenExpertsThatDoNotExist: a table of experts by token is part of the file, and may be wrong.
func TestGivenExpertsThatDoNotExist(t *testing.T) {
	cases := deepseek4Cases()
	c := cases[len(cases)-1]
	require.Equal(t, "token_row and route with picks", c.name)
	c.ops[1] = op("slice", "x", "", "l", attrs{"width": 4}) // of 6 experts
	m, _, _ := c.build(t)
	backend, err := cpu.New(cpu.Options{})
	require.NoError(t, err)
	seq, err := backend.Load(m.options(&compute.Options{Context: opTokens, Batch: opTokens, LogitRows: opTokens, Threads: 2}), m.region)
	require.NoError(t, err)
	defer seq.Close()
	var tokens []int32
	for i := range opTokens {
		tokens = append(tokens, int32(i))
	}
	b := &compute.Batch{Tokens: tokens, Rows: m.rows(tokens), All: true, Logits: make([]float32, opTokens*(3+32))}
	err = seq.Eval(t.Context(), b, newHost(m))
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
		{op("token_row", "", "experts_of", "y", nil), dtype.F32, `weight "experts_of" is F32, a table of ids is I32`},
		{op("embed", "", "experts_of", "y", nil), dtype.I32, `weight "experts_of" is I32, which the cpu backend has no kernel for`},
	} {
		p := &plan.Plan{Schema: plan.SchemaVersion, Recipe: "case", Model: &plan.Model{Layers: 1, Vocabulary: 3},
			Weights: []*plan.Weight{{Name: "experts_of", Shape: []uint64{3, 5}}},
			Blocks:  []*plan.Block{{Kind: plan.BlockKind_LAYER, Ops: []*plan.Op{test.op}}}}
		backend, err := cpu.New(cpu.Options{})
		require.NoError(t, err)
		_, err = backend.Prepare(&compute.Bound{Plan: p, Values: plan.Values{"y": {Width: 3}}, Weights: []*compute.BoundWeight{{Type: uint32(test.typ), RowBytes: 12}},
			Options: &compute.Options{Context: 4, Batch: 4, LogitRows: 1, Threads: 1}})
		require.ErrorContains(t, err, test.says)
		require.Equal(t, fault.Unsupported, fault.KindOf(err))
	}
}
