// DeepSeek V4 models (V4 Flash and Pro). Numbers in parentheses are the equations of specs/deepseek4.md.
package main

import (
	"math"

	"github.com/bigmoe/bigmoe/sdk/recipe"
)

func init() { recipe.Register("deepseek4", "1", build) }

func main() {}

// layer is where the ops of one layer are written.
type layer struct {
	*recipe.Builder
	*model
	i    int
	blk  string
	rope recipe.Rope
}

func build(b *recipe.Builder) {
	m := readKeys(b)
	streams := m.hyper.Streams

	b.Embedding()
	h := b.Repeat("h", b.Embed("e", b.Rows("token_embd.weight", m.width, m.vocabulary), 1), streams) // (1) (2)
	for i := range m.layers {
		l := &layer{b, m, i, b.Layer(i), m.plain}
		if m.ratios[i] != 0 {
			l.rope = m.scaled
		}
		h = l.sublayer("attn", h, l.attention)
		h = l.sublayer("ffn", h, l.feedForward)
	}
	b.Head()
	head := m.hyper
	head.Fn = b.Weight(b.FirstTensor("output_hc_fn.weight", "hc_head_fn.weight"), streams*m.width, streams)
	head.Scale = b.Weight(b.FirstTensor("output_hc_scale.weight", "hc_head_scale.weight"), 1)
	head.Base = b.Weight(b.FirstTensor("output_hc_base.weight", "hc_head_base.weight"), streams)
	x := b.HCCollapse("x", h, b.HCHead("pre", h, head), streams) // (45) (46)
	z := b.RMSNorm("norm", x, b.Weight("output_norm.weight", m.width), m.eps, 0)
	b.Linear(recipe.Logits, z, b.Weight("output.weight", m.width, m.vocabulary), "")
}

// weight is a tensor of the layer.
func (l *layer) weight(name string, shape ...int) recipe.Weight {
	return l.Weight(l.blk+name+".weight", shape...)
}

// product multiplies by the tensor of a name, which has out rows.
func (l *layer) product(name string, x recipe.Value, tensor string, in, out int) recipe.Value {
	return l.Linear(name, x, l.weight(tensor, in, out), "")
}

// sublayer reads the streams, computes f and writes the streams: (3) to (12).
func (l *layer) sublayer(name string, h recipe.Value, f func(x recipe.Value) recipe.Value) recipe.Value {
	streams := l.hyper.Streams
	mix, numbers := l.hyper, streams*(2+streams)
	mix.Fn = l.weight("hc_"+name+"_fn", streams*l.width, numbers)
	mix.Scale, mix.Base = l.weight("hc_"+name+"_scale", 3), l.weight("hc_"+name+"_base", numbers)
	pre, post, comb := l.HCMix(name+"_pre", name+"_post", name+"_comb", h, mix)
	x := l.HCCollapse(name+"_in", h, pre, streams)
	x = l.RMSNorm(name+"_norm", x, l.weight(name+"_norm", l.width), l.eps, 0)
	return l.HCExpand(name+"_streams", h, f(x), post, comb, streams)
}

// turn rotates the end of each head (13).
func (l *layer) turn(name string, x recipe.Value, dim int, inverse bool) recipe.Value {
	r := l.rope
	r.HeadDim, r.Offset, r.Inverse = dim, dim-l.rotated, inverse
	return l.Rope(name, x, r)
}

func (l *layer) attention(x recipe.Value) recipe.Value {
	all, ratio := l.heads*l.headDim, l.ratios[l.i]
	qr := l.product("q_a", x, "attn_q_a", l.width, l.qRank)
	qr = l.RMSNorm("q_low", qr, l.weight("attn_q_a_norm", l.qRank), l.eps, 0)                      // (16)
	q := l.RMSNorm("q_norm", l.product("q_b", qr, "attn_q_b", l.qRank, all), "", l.eps, l.headDim) // (17)
	kv := l.Linear("kv_a", x, l.Weight(l.FirstTensor(l.blk+"attn_kv.weight", l.blk+"attn_kv_latent.weight",
		l.blk+"attn_kv_a_mqa.weight"), l.width, l.headDim), "")
	kv = l.RMSNorm("kv_norm", kv, l.weight("attn_kv_a_norm", l.headDim), l.eps, 0)
	a := recipe.Attention{Q: l.turn("q", q, l.headDim, false), K: l.turn("kv", kv, l.headDim, false), // (18) to (20)
		Sinks: l.weight("attn_sinks", l.heads), Cache: l.KV("cache", l.headDim, 0, l.window),
		Heads: l.heads, KVHeads: 1, HeadDim: l.headDim, Scale: 1 / math.Sqrt(float64(l.headDim)), Window: l.window}
	if ratio != 0 {
		a.Compressed = l.compress("block", x, "attn_compressor_", l.headDim) // (21)
	}
	if ratio == 4 {
		n, dim := l.index.heads, l.index.dim
		iq := l.turn("index_q", l.product("index_q_b", qr, "indexer.attn_q_b", l.qRank, n*dim), dim, false) // (34)
		rows := l.compress("index", x, "indexer_compressor_", dim)                                          // (35)
		gate := l.product("index_weights", x, "indexer.proj", l.width, n)
		a.Rows = l.IndexTop("rows", iq, gate, rows, n, dim, l.index.topK, 1/math.Sqrt(float64(n*dim))) // (36) to (38)
	}
	o := l.turn("o", l.Attention("attention", a), l.headDim, true)                                          // (22) to (26)
	o = l.LinearGroups("o_a", o, l.weight("attn_output_a", all/l.groups, l.groups*l.outRank), "", l.groups) // (27)
	return l.product("o_b", o, "attn_output_b", l.groups*l.outRank, l.width)                                // (28)
}

// compress folds the layer's positions into rows: (29) to (33).
func (l *layer) compress(name string, x recipe.Value, tensors string, dim int) recipe.State {
	ratio := l.ratios[l.i]
	width, kept := dim, ratio // of a key, and how many are kept
	if ratio == 4 {           // blocks overlap
		width, kept = 2*dim, 2*ratio
	}
	rows := l.Compressed(name+"_rows", dim, ratio)
	l.Compress(recipe.Compress{KV: l.product(name+"_kv", x, tensors+"kv", l.width, width),
		Gate: l.product(name+"_gate", x, tensors+"gate", l.width, width),
		APE:  l.weight(tensors+"ape", width, ratio), Norm: l.weight(tensors+"norm", dim),
		Pending: l.Recurrent(name+"_pending", 2*kept*width), Rows: rows,
		Ratio: ratio, Dim: dim, Overlap: width != dim, Eps: l.eps, Rope: l.rope})
	return rows
}

func (l *layer) feedForward(x recipe.Value) recipe.Value {
	router := l.LinearExact("router", x, l.weight("ffn_gate_inp", l.width, l.experts), "")
	r := recipe.Route{Logits: router, TopK: l.used, Gating: "sqrt_softplus", Normalize: l.normalize, NormFloor: 1. / (1 << 14),
		Scale: l.weightScale}
	hashed := l.HasTensor(l.blk + "ffn_gate_tid2eid.weight")
	if l.Has("hash_layer_count") {
		hashed = l.i < l.Uint("hash_layer_count", 0, recipe.MaxLayers)
	}
	if hashed {
		r.Picks = l.TokenRow("picks", l.WeightOf(typeI32, l.blk+"ffn_gate_tid2eid.weight", l.used, l.vocabulary))
	} else {
		r.Bias = l.Weight(l.FirstTensor(l.blk+"exp_probs_b.bias", l.blk+"exp_probs_b.weight"), l.experts)
	}
	ids, weights := l.Route("ids", "weights", r) // (39) to (41)
	// The shared expert comes first: it computes while the routed ones are read.
	gate := l.product("shared_gate", x, "ffn_gate_shexp", l.width, l.shared)
	up := l.product("shared_up", x, "ffn_up_shexp", l.width, l.shared)
	s := l.GLU("shared_hidden", gate, up, clamp(l.sharedLimits[l.i]))
	s = l.product("shared", s, "ffn_down_shexp", l.shared, l.width)                                   // (43)
	y := l.Experts("moe", recipe.Experts{X: x, IDs: ids, Weights: weights, GLU: clamp(l.limits[l.i]), // (42)
		Bank: l.StackedBank(l.i, l.experts, l.width, l.hidden)})
	return l.Add("ffn_out", y, s) // (44)
}

const typeI32 = 26 // the file format's number of 32-bit integers

// clamp is silu with a limit, which tiny values turn off.
func clamp(limit float64) recipe.GLU {
	if limit <= 1e-6 {
		limit = 0
	}
	return recipe.GLU{Limit: limit}
}
