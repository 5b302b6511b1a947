// Liquid LFM2 mixture-of-experts models (LFM2-8B-A1B, LFM2.5-8B-A1B, LFM2-24B-A2B): blocks of short convolutions with
// some of attention between them. Equation numbers are those of specs/lfm2moe.md.
package main

import (
	"math"
	"strconv"

	"github.com/bigmoe/bigmoe/sdk/recipe"
)

func init() { recipe.Register("lfm2moe", "1", build) }

func main() {}

func build(b *recipe.Builder) {
	layers := b.Uint("block_count", 1, recipe.MaxLayers)
	context := b.Uint("context_length", 1, recipe.MaxContext)
	width := b.Uint("embedding_length", 1, recipe.MaxWidth)
	headCounts := b.PerLayer("attention.head_count", layers, 1, recipe.MaxCount)
	heads := headCounts[0]
	kvHeads := b.PerLayer("attention.head_count_kv", layers, 0, recipe.MaxCount) // 0: a convolution block
	headDim := b.UintOr("attention.key_length", width/heads, 1, recipe.MaxCount)
	valueDim := b.UintOr("attention.value_length", width/heads, 1, recipe.MaxCount)
	rotated := b.UintOr("rope.dimension_count", headDim, 2, headDim)
	eps := b.Float("attention.layer_norm_rms_epsilon", 1e-20, 1)
	taps := b.Uint("shortconv.l_cache", 2, recipe.MaxCount)
	dense := b.UintOr("leading_dense_block_count", 0, 0, layers)
	denseWidth := b.Uint("feed_forward_length", 1, recipe.MaxWidth)
	experts := b.Uint("expert_count", 1, recipe.MaxCount)
	used := b.Uint("expert_used_count", 1, experts)
	hidden := b.PerLayer("expert_feed_forward_length", layers, 0, recipe.MaxWidth)
	factor := b.FloatOr("expert_weights_scale", 0, 0, 1e6) // 0, like 1, is none
	vocabulary := b.Vocabulary()
	b.Float("rope.freq_base", 1e-3, 1e12) // it differs between models, so there is no good default
	for i, n := range kvHeads {
		if headCounts[i] != heads {
			b.Refuse(recipe.Unsupported, "lfm2moe.attention.head_count: "+strconv.Itoa(heads)+" in block 0, "+
				strconv.Itoa(headCounts[i])+" in block "+strconv.Itoa(i)+": all must be equal")
		}
		if n > 0 && heads%n != 0 {
			b.Refuse(recipe.Corrupt, "lfm2moe.attention.head_count "+strconv.Itoa(heads)+" is not a multiple of attention.head_count_kv "+
				strconv.Itoa(n)+" of block "+strconv.Itoa(i))
		}
	}
	if headDim != valueDim || rotated%2 != 0 {
		b.RefuseKeys(recipe.Unsupported, "the first two must be equal, the last even", "attention.key_length",
			"attention.value_length", "rope.dimension_count")
	}
	b.RequireOnly("expert_gating_func", 2)       // sigmoid
	b.RequireOnly("attention.sliding_window", 0) // none: attention is full
	b.Describe(recipe.Model{Layers: layers, Embedding: width, Vocabulary: vocabulary, ContextLength: context,
		Experts: experts, ExpertsUsed: used})
	rope := b.RopeScaling(rotated, context) // 10
	rope.HeadDim = headDim
	table, head := b.TableAndHead(width, vocabulary)
	lastNorm := b.FirstTensor("token_embd_norm.weight", "output_norm.weight") // the former is of the end, despite its name

	b.Embedding()
	h := b.Embed("h", table, 1) // 1
	for i := range layers {
		blk := b.Layer(i)
		ffn := func(x recipe.Value) recipe.Value { // 17
			gate := b.Linear("ffn_gate", x, b.Weight(blk+"ffn_gate.weight", width, denseWidth), "")
			up := b.Linear("ffn_up", x, b.Weight(blk+"ffn_up.weight", width, denseWidth), "")
			y := b.GLU("ffn_hidden", gate, up, recipe.GLU{Activation: "silu"})
			return b.Linear("ffn_down", y, b.Weight(blk+"ffn_down.weight", denseWidth, width), "")
		}
		moe := func(x recipe.Value) recipe.Value {
			router := b.WeightOf(recipe.TypeF32, blk+"ffn_gate_inp.weight", width, experts)
			ids, weights := b.Route("ids", "weights", recipe.Route{ // 18 to 23
				Logits: b.LinearExact("router", x, router, ""), Bias: b.WeightOf(recipe.TypeF32, blk+"exp_probs_b.bias", experts),
				TopK: used, Gating: "sigmoid", Normalize: true, NormFloor: 6.103515625e-5, Scale: factor})
			return b.Experts("moe", recipe.Experts{X: x, IDs: ids, Weights: weights, // 24
				Bank: b.StackedBank(i, experts, width, hidden[i])})
		}

		x := b.RMSNorm("attn_norm", h, b.Weight(blk+"attn_norm.weight", width), eps, 0) // 2
		var y recipe.Value
		if n := kvHeads[i]; n > 0 {
			q := b.Linear("q", x, b.Weight(blk+"attn_q.weight", width, heads*headDim), "") // 8
			k := b.Linear("k", x, b.Weight(blk+"attn_k.weight", width, n*headDim), "")
			v := b.Linear("v", x, b.Weight(blk+"attn_v.weight", width, n*headDim), "")
			q = b.RMSNorm("q_norm", q, b.Weight(blk+"attn_q_norm.weight", headDim), eps, headDim) // 9
			k = b.RMSNorm("k_norm", k, b.Weight(blk+"attn_k_norm.weight", headDim), eps, headDim)
			y = b.Attention("attn", recipe.Attention{Q: b.Rope("q_rope", q, rope), K: b.Rope("k_rope", k, rope), V: v, // 11
				Cache: b.KV("kv", n*headDim, n*headDim, 0),
				Heads: heads, KVHeads: n, HeadDim: headDim, Scale: 1 / math.Sqrt(float64(headDim))})
			y = b.Linear("attn_out", y, b.Weight(blk+"attn_output.weight", heads*headDim, width), "") // 12
		} else {
			z := b.Linear("bcx", x, b.Weight(blk+"shortconv.in_proj.weight", width, 3*width), "")             // 13
			g := b.Mul("conv_in", b.Slice("b", z, 0, 0, width), b.Slice("x", z, 0, 2*width, width))           // 14
			a := b.ShortConv("conv", g, b.WeightOf(recipe.TypeF32, blk+"shortconv.conv.weight", taps, width), // 15
				b.Convolution("history", (taps-1)*width), "none")
			y = b.Mul("conv_out", b.Slice("c", z, 0, width, width), a) // 16
			y = b.Linear("out", y, b.Weight(blk+"shortconv.out_proj.weight", width, width), "")
		}
		r := b.Add("h_mixed", h, y)                                                   // 4
		u := b.RMSNorm("ffn_norm", r, b.Weight(blk+"ffn_norm.weight", width), eps, 0) // 5
		if i < dense {
			h = b.Add("h", r, ffn(u)) // 6
		} else {
			h = b.Add("h", r, moe(u))
		}
	}
	b.Head()
	b.Linear(recipe.Logits, b.RMSNorm("norm", h, b.Weight(lastNorm, width), eps, 0), head, "") // 7
}
