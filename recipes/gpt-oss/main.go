// OpenAI's open-weight models (gpt-oss-20b, gpt-oss-120b). Equation numbers are those of specs/gpt-oss.md.
package main

import (
	"math"

	"github.com/bigmoe/bigmoe/sdk/recipe"
)

func init() { recipe.Register("gpt-oss", "1", build) }

func main() {}

func build(b *recipe.Builder) {
	layers := b.Uint("block_count", 1, recipe.MaxLayers)
	context := b.Uint("context_length", 1, recipe.MaxContext)
	width := b.Uint("embedding_length", 1, recipe.MaxWidth)
	heads := b.Uint("attention.head_count", 1, recipe.MaxCount)
	kvHeads := b.UintOr("attention.head_count_kv", heads, 1, recipe.MaxCount)
	headDim := b.Uint("attention.key_length", 1, recipe.MaxCount)
	valueDim := b.Uint("attention.value_length", 1, recipe.MaxCount)
	rotated := b.UintOr("rope.dimension_count", headDim, 1, recipe.MaxCount)
	window := b.Uint("attention.sliding_window", 1, recipe.MaxContext)
	period := b.UintOr("attention.sliding_window_pattern", 2, 0, recipe.MaxLayers)
	eps := b.Float("attention.layer_norm_rms_epsilon", 1e-20, 1)
	experts := b.Uint("expert_count", 1, recipe.MaxCount)
	used := b.Uint("expert_used_count", 1, experts)
	hidden := b.Uint("expert_feed_forward_length", 1, recipe.MaxWidth)
	vocabulary := b.Vocabulary()
	b.RequireMultiple("attention.head_count", heads, "attention.head_count_kv", kvHeads)
	if headDim != valueDim || headDim != rotated || headDim%2 != 0 {
		b.RefuseKeys(recipe.Unsupported, "all three must be equal and even", "attention.key_length", "attention.value_length",
			"rope.dimension_count")
	}
	b.Describe(recipe.Model{Layers: layers, Embedding: width, Vocabulary: vocabulary, ContextLength: context,
		Experts: experts, ExpertsUsed: used})
	full := b.RopeScaling(rotated, context) // Y1 to Y6
	full.HeadDim = headDim
	sliding := full
	sliding.Base = b.FloatOr("rope.freq_base_swa", full.Base, 1e-3, 1e12)

	b.Embedding()
	h := b.Embed("h", b.Rows("token_embd.weight", width, vocabulary), 1) // E1
	for i := range layers {
		blk := b.Layer(i)
		rope, sees := full, 0
		if period == 0 || i%period < period-1 {
			rope, sees = sliding, window
		}

		a := b.RMSNorm("attn_norm", h, b.Weight(blk+"attn_norm.weight", width), eps, 0) // E2
		rows := func(kind string) []recipe.Piece {
			return []recipe.Piece{{Tensor: blk + "attn_q" + kind, Rows: heads * headDim},
				{Tensor: blk + "attn_k" + kind, Rows: kvHeads * headDim}, {Tensor: blk + "attn_v" + kind, Rows: kvHeads * headDim}}
		}
		w := b.Fused(blk+"attn_qkv.weight", false, width, rows(".weight")...)
		bias := b.Fused(blk+"attn_qkv.bias", true, 0, rows(".bias")...)
		q := b.Linear("q", a, w[0], bias[0]) // E3
		k := b.Linear("k", a, w[1], bias[1])
		o := b.Attention("attn", recipe.Attention{ // E5 to E7
			Q: b.Rope("q_rope", q, rope), K: b.Rope("k_rope", k, rope), V: b.Linear("v", a, w[2], bias[2]), // E4
			Sinks: b.Weight(blk+"attn_sinks.weight", heads),
			Cache: b.KV("kv", kvHeads*headDim, kvHeads*headDim, sees),
			Heads: heads, KVHeads: kvHeads, HeadDim: headDim, Scale: 1 / math.Sqrt(float64(headDim)), Window: sees,
		})
		o = b.Linear("attn_out", o, b.Weight(blk+"attn_output.weight", heads*headDim, width), b.Weight(blk+"attn_output.bias", width))
		h = b.Add("h_attn", h, o) // E8

		x := b.RMSNorm("ffn_norm", h, b.Weight(blk+"post_attention_norm.weight", width), eps, 0) // E9
		router := b.WeightOf(recipe.TypeF32, blk+"ffn_gate_inp.weight", width, experts)
		logits := b.LinearExact("router", x, router, b.Weight(blk+"ffn_gate_inp.bias", experts))                        // R1
		ids, weights := b.Route("ids", "weights", recipe.Route{Logits: logits, TopK: used, Gating: "softmax_selected"}) // R2, R3
		m := b.Experts("moe", recipe.Experts{X: x, IDs: ids, Weights: weights,                                          // R4 to R7
			Bank:     b.StackedBank(i, experts, width, hidden),
			GateBias: b.Weight(blk+"ffn_gate_exps.bias", hidden, experts),
			UpBias:   b.Weight(blk+"ffn_up_exps.bias", hidden, experts),
			DownBias: b.Weight(blk+"ffn_down_exps.bias", width, experts),
			GLU:      recipe.GLU{Activation: "swiglu_oai", Limit: 7, Alpha: 1.702},
		})
		h = b.Add("h", h, m) // E10
	}
	b.Head()
	z := b.RMSNorm("norm", h, b.Weight("output_norm.weight", width), eps, 0)
	b.Linear(recipe.Logits, z, b.Weight("output.weight", width, vocabulary), "") // E11
}
