// Qwen3 mixture-of-experts models (Qwen3-30B-A3B and its family). Equation numbers are those of specs/qwen3moe.md.
package main

import (
	"math"
	"strconv"
	"strings"

	"github.com/bigmoe/bigmoe/sdk/recipe"
)

func init() { recipe.Register("qwen3moe", "1", build) }

func main() {}

func build(b *recipe.Builder) {
	layers := b.Uint("block_count", 1, recipe.MaxLayers)
	context := b.Uint("context_length", 1, recipe.MaxContext)
	width := b.Uint("embedding_length", 1, recipe.MaxWidth)
	heads := b.Uint("attention.head_count", 1, recipe.MaxCount)
	kvHeads := b.UintOr("attention.head_count_kv", heads, 1, recipe.MaxCount)
	headDim := b.UintOr("attention.key_length", width/heads, 1, recipe.MaxCount)
	valueDim := b.UintOr("attention.value_length", width/heads, 1, recipe.MaxCount)
	rotated := b.UintOr("rope.dimension_count", headDim, 1, recipe.MaxCount)
	eps := b.Float("attention.layer_norm_rms_epsilon", 1e-20, 1)
	experts := b.Uint("expert_count", 1, recipe.MaxCount)
	used := b.PerLayer("expert_used_count", layers, 1, experts)
	hidden := b.PerLayerOr("expert_feed_forward_length", b.UintOr("feed_forward_length", 0, 0, recipe.MaxWidth)/used[0],
		layers, 1, recipe.MaxWidth)
	vocabulary := b.Vocabulary()
	b.RequireMultiple("attention.head_count", heads, "attention.head_count_kv", kvHeads)
	if headDim != valueDim || headDim != rotated || headDim%2 != 0 {
		b.RefuseKeys(recipe.Unsupported, "all three must be equal and even", "attention.key_length", "attention.value_length",
			"rope.dimension_count")
	}
	for name := range b.Tensors() {
		if strings.HasSuffix(name, ".scale") || strings.HasSuffix(name, ".input_scale") {
			b.Refuse(recipe.Unsupported, "tensor "+strconv.Quote(name)+": scales beside a tensor are not supported")
		}
	}
	b.Describe(recipe.Model{Layers: layers, Embedding: width, Vocabulary: vocabulary, ContextLength: context,
		Experts: experts, ExpertsUsed: used[0]})
	rope := b.RopeScaling(rotated, context) // E6
	rope.HeadDim = headDim
	table, head := b.TableAndHead(width, vocabulary)

	b.Embedding()
	h := b.Embed("h", table, 1) // E2
	for i := range layers {
		blk := b.Layer(i)

		a := b.RMSNorm("attn_norm", h, b.Weight(blk+"attn_norm.weight", width), eps, 0) // E3
		rows := func(kind string) []recipe.Piece {
			return []recipe.Piece{{Tensor: blk + "attn_q" + kind, Rows: heads * headDim},
				{Tensor: blk + "attn_k" + kind, Rows: kvHeads * headDim}, {Tensor: blk + "attn_v" + kind, Rows: kvHeads * headDim}}
		}
		w := b.Fused(blk+"attn_qkv.weight", false, width, rows(".weight")...)
		bias := b.Fused(blk+"attn_qkv.bias", true, 0, rows(".bias")...)
		q := b.Linear("q", a, w[0], bias[0]) // E4
		k := b.Linear("k", a, w[1], bias[1])
		v := b.Linear("v", a, w[2], bias[2])
		q = b.RMSNorm("q_norm", q, b.Weight(blk+"attn_q_norm.weight", headDim), eps, headDim) // E5
		k = b.RMSNorm("k_norm", k, b.Weight(blk+"attn_k_norm.weight", headDim), eps, headDim)
		o := b.Attention("attn", recipe.Attention{ // E7, E8
			Q: b.Rope("q_rope", q, rope), K: b.Rope("k_rope", k, rope), V: v,
			Cache: b.KV("kv", kvHeads*headDim, kvHeads*headDim, 0),
			Heads: heads, KVHeads: kvHeads, HeadDim: headDim, Scale: 1 / math.Sqrt(float64(headDim)),
		})
		o = b.Linear("attn_out", o, b.Weight(blk+"attn_output.weight", heads*headDim, width), "")
		h = b.Add("h_attn", h, o) // E9

		x := b.RMSNorm("ffn_norm", h, b.Weight(blk+"ffn_norm.weight", width), eps, 0) // E10
		router := b.WeightOf(recipe.TypeF32, blk+"ffn_gate_inp.weight", width, experts)
		ids, weights := b.Route("ids", "weights", recipe.Route{ // R1 to R5
			Logits: b.LinearExact("router", x, router, ""), TopK: used[i], Gating: "softmax", Normalize: true})
		m := b.Experts("moe", recipe.Experts{X: x, IDs: ids, Weights: weights, // R6, R7
			Bank: b.StackedBank(i, experts, width, hidden[i])})
		h = b.Add("h", h, m) // E12
	}
	b.Head()
	z := b.RMSNorm("norm", h, b.Weight("output_norm.weight", width), eps, 0)
	b.Linear(recipe.Logits, z, head, "") // E13
}
