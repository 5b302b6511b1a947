// Recipe for NAME models: describes a file of this architecture as a plan, see docs/tutorial-recipe.md of bigmoe.
//
// It starts as a plain mixture of experts: attention with rotary positions, then the experts, each with a norm before
// and the residual around. Change what your architecture does differently.
package main

import (
	"math"

	"github.com/bigmoe/bigmoe/sdk/recipe"
)

func init() { recipe.Register("NAME", "1", build) }

func main() {}

func build(b *recipe.Builder) {
	// Keys are given without their prefix "NAME.". Each getter ends the recipe with a message when the key is missing or
	// out of range.
	layers := b.Uint("block_count", 1, recipe.MaxLayers)
	context := b.Uint("context_length", 1, recipe.MaxContext)
	width := b.Uint("embedding_length", 1, recipe.MaxWidth)
	heads := b.Uint("attention.head_count", 1, recipe.MaxCount)
	kvHeads := b.UintOr("attention.head_count_kv", heads, 1, recipe.MaxCount)
	headDim := b.UintOr("attention.key_length", width/heads, 1, recipe.MaxCount)
	eps := b.Float("attention.layer_norm_rms_epsilon", 1e-20, 1)
	experts := b.Uint("expert_count", 1, recipe.MaxCount)
	used := b.Uint("expert_used_count", 1, experts)
	hidden := b.Uint("expert_feed_forward_length", 1, recipe.MaxWidth)
	vocabulary := b.Vocabulary()
	b.RequireMultiple("attention.head_count", heads, "attention.head_count_kv", kvHeads)
	b.Describe(recipe.Model{Layers: layers, Embedding: width, Vocabulary: vocabulary, ContextLength: context,
		Experts: experts, ExpertsUsed: used})
	rope := b.RopeScaling(headDim, context)
	rope.HeadDim = headDim

	b.Embedding()
	h := b.Embed("h", b.Rows("token_embd.weight", width, vocabulary), 1)
	for i := range layers {
		blk := b.Layer(i)

		x := b.RMSNorm("attn_norm", h, b.Weight(blk+"attn_norm.weight", width), eps, 0)
		q := b.Linear("q", x, b.Weight(blk+"attn_q.weight", width, heads*headDim), "")
		k := b.Linear("k", x, b.Weight(blk+"attn_k.weight", width, kvHeads*headDim), "")
		v := b.Linear("v", x, b.Weight(blk+"attn_v.weight", width, kvHeads*headDim), "")
		o := b.Attention("attn", recipe.Attention{
			Q: b.Rope("q_rope", q, rope), K: b.Rope("k_rope", k, rope), V: v,
			Cache: b.KV("kv", kvHeads*headDim, kvHeads*headDim, 0),
			Heads: heads, KVHeads: kvHeads, HeadDim: headDim, Scale: 1 / math.Sqrt(float64(headDim)),
		})
		o = b.Linear("attn_out", o, b.Weight(blk+"attn_output.weight", heads*headDim, width), "")
		h = b.Add("h_attn", h, o)

		x = b.RMSNorm("ffn_norm", h, b.Weight(blk+"ffn_norm.weight", width), eps, 0)
		router := b.WeightOf(recipe.TypeF32, blk+"ffn_gate_inp.weight", width, experts)
		ids, weights := b.Route("ids", "weights", recipe.Route{
			Logits: b.LinearExact("router", x, router, ""), TopK: used, Gating: "softmax", Normalize: true})
		m := b.Experts("moe", recipe.Experts{X: x, IDs: ids, Weights: weights, Bank: b.StackedBank(i, experts, width, hidden)})
		h = b.Add("h", h, m)
	}
	b.Head()
	x := b.RMSNorm("norm", h, b.Weight("output_norm.weight", width), eps, 0)
	b.Linear(recipe.Logits, x, b.Weight("output.weight", width, vocabulary), "")
}
