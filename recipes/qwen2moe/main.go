// Qwen2 mixture-of-experts models (Qwen1.5-MoE-A2.7B, Qwen2-57B-A14B). Equation numbers are those of
// specs/qwen3moe.md, whose section 10 says what is different here.
package main

import (
	"math"
	"strconv"
	"strings"

	"github.com/bigmoe/bigmoe/sdk/recipe"
)

func init() { recipe.Register("qwen2moe", "1", build) }

func main() {}

func build(b *recipe.Builder) {
	layers := b.Uint("block_count", 1, recipe.MaxLayers)
	context := b.Uint("context_length", 1, recipe.MaxContext)
	width := b.Uint("embedding_length", 1, recipe.MaxWidth)
	heads := b.Uint("attention.head_count", 1, recipe.MaxCount)
	kvHeads := b.UintOr("attention.head_count_kv", heads, 1, recipe.MaxCount)
	headDim := width / heads
	keyDim := b.UintOr("attention.key_length", headDim, 1, recipe.MaxCount)
	valueDim := b.UintOr("attention.value_length", headDim, 1, recipe.MaxCount)
	rotated := b.UintOr("rope.dimension_count", headDim, 1, recipe.MaxCount)
	eps := b.Float("attention.layer_norm_rms_epsilon", 1e-20, 1)
	experts := b.Uint("expert_count", 1, recipe.MaxCount)
	used := b.PerLayer("expert_used_count", layers, 1, experts)
	dense := b.UintOr("feed_forward_length", 0, 0, recipe.MaxWidth)
	hidden := b.PerLayerOr("expert_feed_forward_length", dense/used[0], layers, 1, recipe.MaxWidth)
	shared := b.UintOr("expert_shared_feed_forward_length", dense, 1, recipe.MaxWidth)
	vocabulary := b.Vocabulary()
	b.RequireMultiple("attention.head_count", heads, "attention.head_count_kv", kvHeads)
	if headDim*heads != width || keyDim != headDim || valueDim != headDim || rotated != headDim || headDim%2 != 0 {
		b.RefuseKeys(recipe.Unsupported, "the last three must be the first divided by the second, and even", "embedding_length",
			"attention.head_count", "attention.key_length", "attention.value_length", "rope.dimension_count")
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

	b.Embedding()
	h := b.Embed("h", b.Rows("token_embd.weight", width, vocabulary), 1) // E2
	for i := range layers {
		blk := b.Layer(i)

		a := b.RMSNorm("attn_norm", h, b.Weight(blk+"attn_norm.weight", width), eps, 0) // E3
		rows := func(kind string) []recipe.Piece {
			return []recipe.Piece{{Tensor: blk + "attn_q" + kind, Rows: width},
				{Tensor: blk + "attn_k" + kind, Rows: kvHeads * headDim}, {Tensor: blk + "attn_v" + kind, Rows: kvHeads * headDim}}
		}
		w := b.Fused(blk+"attn_qkv.weight", false, width, rows(".weight")...)
		bias := b.Fused(blk+"attn_qkv.bias", true, 0, rows(".bias")...)
		q := b.Linear("q", a, w[0], bias[0]) // E4; no norm follows
		k := b.Linear("k", a, w[1], bias[1])
		o := b.Attention("attn", recipe.Attention{ // E7, E8
			Q: b.Rope("q_rope", q, rope), K: b.Rope("k_rope", k, rope), V: b.Linear("v", a, w[2], bias[2]),
			Cache: b.KV("kv", kvHeads*headDim, kvHeads*headDim, 0),
			Heads: heads, KVHeads: kvHeads, HeadDim: headDim, Scale: 1 / math.Sqrt(float64(headDim)),
		})
		o = b.Linear("attn_out", o, b.Weight(blk+"attn_output.weight", width, width), "")
		h = b.Add("h_attn", h, o) // E9

		x := b.RMSNorm("ffn_norm", h, b.Weight(blk+"ffn_norm.weight", width), eps, 0) // E10
		router := b.WeightOf(recipe.TypeF32, blk+"ffn_gate_inp.weight", width, experts)
		ids, weights := b.Route("ids", "weights", recipe.Route{ // R1 to R3; not normalised
			Logits: b.LinearExact("router", x, router, ""), TopK: used[i], Gating: "softmax"})

		// The shared expert sees every token, times the sigmoid of one number. It comes first: it computes while the routed
		// ones are read.
		up := b.Linear("shared_up", x, b.Weight(blk+"ffn_up_shexp.weight", width, shared), "")
		gate := b.Linear("shared_gate", x, b.Weight(blk+"ffn_gate_shexp.weight", width, shared), "")
		s := b.GLU("shared_hidden", gate, up, recipe.GLU{Activation: "silu"})
		s = b.Linear("shared_down", s, b.Weight(blk+"ffn_down_shexp.weight", shared, width), "")
		g := b.LinearExact("shared_logit", x, b.WeightOf(recipe.TypeF32, blk+"ffn_gate_inp_shexp.weight", width, 1), "")
		s = b.Mul("shared", s, b.Unary("shared_weight", "sigmoid", g))

		m := b.Experts("routed", recipe.Experts{X: x, IDs: ids, Weights: weights, // R6, R7
			Bank: b.StackedBank(i, experts, width, hidden[i])})
		h = b.Add("h", h, b.Add("moe", m, s)) // E12
	}
	b.Head()
	z := b.RMSNorm("norm", h, b.Weight("output_norm.weight", width), eps, 0)
	b.Linear(recipe.Logits, z, b.Weight("output.weight", width, vocabulary), "") // E13
}
