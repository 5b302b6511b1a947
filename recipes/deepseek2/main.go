// DeepSeek V2, V2-Lite, V3 and R1: attention over one latent vector for each position, and experts chosen by groups. Numbers
// in parentheses are the equations of specs/deepseek2.md.
//
// Not verified against an oracle: there is no recording of another implementation. The tests compare it with the
// equations in 64-bit floats, on models with random weights.
package main

import (
	"math"
	"strconv"

	"github.com/bigmoe/bigmoe/sdk/recipe"
)

func init() { recipe.Register("deepseek2", "1", build) }

func main() {}

func build(b *recipe.Builder) {
	blocks := b.Uint("block_count", 1, recipe.MaxLayers)
	layers := b.Trunk(blocks) // the rest draft tokens
	context := b.Uint("context_length", 1, recipe.MaxContext)
	width := b.Uint("embedding_length", 1, recipe.MaxWidth)
	dense := b.UintOr("leading_dense_block_count", 0, 0, layers)
	denseWidth := b.Uint("feed_forward_length", 1, recipe.MaxWidth)
	heads := b.Uint("attention.head_count", 1, recipe.MaxCount)
	eps := b.Float("attention.layer_norm_rms_epsilon", 1e-20, 1)
	qRank := b.UintOr("attention.q_lora_rank", 0, 0, recipe.MaxWidth) // 0: q is one matrix
	rank := b.Uint("attention.kv_lora_rank", 1, recipe.MaxCount)
	rotated := b.Uint("rope.dimension_count", 2, recipe.MaxCount)
	keyDim, valueDim := headDims(b)
	plainDim := keyDim - rotated // what of a head does not turn
	experts := b.Uint("expert_count", 1, recipe.MaxCount)
	used := b.Uint("expert_used_count", 1, experts)
	hidden := b.Uint("expert_feed_forward_length", 1, recipe.MaxWidth)
	shared := hidden * b.Uint("expert_shared_count", 1, recipe.MaxCount)
	route := recipe.Route{TopK: used, Gating: gating(b, blocks), Normalize: b.BoolOr("expert_weights_norm", false), NormFloor: 1. / (1 << 14),
		Scale:  b.FloatOr("expert_weights_scale", 1, 0, 1e6), // 0, like 1, is none
		Groups: b.UintOr("expert_group_count", 1, 0, experts)}
	if route.Groups > 1 {
		route.GroupsUsed = b.Uint("expert_group_used_count", 1, route.Groups)
	}
	switch {
	case rotated%2 != 0 || plainDim < 1:
		b.RefuseKeys(recipe.Corrupt, "must be even and less than the "+strconv.Itoa(keyDim)+" of a head", "rope.dimension_count")
	case route.Groups > 1 && (experts%route.Groups != 0 || used > experts/route.Groups*route.GroupsUsed):
		b.RefuseKeys(recipe.Corrupt, "do not fit together", "expert_count", "expert_used_count", "expert_group_count", "expert_group_used_count")
	}
	vocabulary := b.Vocabulary()
	b.Describe(recipe.Model{Layers: layers, Embedding: width, Vocabulary: vocabulary, ContextLength: context,
		Experts: experts, ExpertsUsed: used})

	rope := b.RopeScaling(rotated, context)
	rope.Layout, rope.HeadDim, rope.Magnitude = "interleaved", rotated, 1 // 3.1: the magnitude is in the scale instead
	scale := 1 / math.Sqrt(float64(keyDim))
	if rope.Scaling == "yarn" {
		m := 1 + b.Float("rope.scaling.yarn_log_multiplier", 0, 10)*math.Log(rope.Factor) // the key holds a tenth of mscale_all_dim
		scale *= m * m
	}
	table, head := b.TableAndHead(width, vocabulary)

	b.Embedding()
	h := b.Embed("h", table, 1) // (1)
	for i := range layers {
		blk := b.Layer(i)
		linear := func(name string, x recipe.Value, tensor string, in, out int) recipe.Value {
			return b.Linear(name, x, b.Weight(blk+tensor+".weight", in, out), "")
		}
		byHead := func(name string, x recipe.Value, tensor string, in, out int) recipe.Value {
			return b.LinearGroups(name, x, b.Reshape(blk+tensor+".weight", []int{in, out, heads}, in, out*heads), "", heads)
		}
		norm := func(name string, x recipe.Value, tensor string, n int) recipe.Value {
			return b.RMSNorm(name, x, b.Weight(blk+tensor+".weight", n), eps, 0)
		}
		ffn := func(name string, x recipe.Value, suffix string, n int) recipe.Value {
			y := b.GLU(name+"_hidden", linear(name+"_gate", x, "ffn_gate"+suffix, width, n), linear(name+"_up", x, "ffn_up"+suffix, width, n),
				recipe.GLU{Activation: "silu"})
			return linear(name, y, "ffn_down"+suffix, n, width)
		}

		x := norm("attn_norm", h, "attn_norm", width) // (2)
		var q recipe.Value
		if qRank > 0 { // (3)
			q = linear("q", norm("q_low", linear("q_a", x, "attn_q_a", width, qRank), "attn_q_a_norm", qRank), "attn_q_b", qRank, heads*keyDim)
		} else {
			q = linear("q", x, "attn_q", width, heads*keyDim)
		}
		qPlain := b.Slice("q_plain", q, keyDim, 0, plainDim)
		qTurned := b.Rope("q_rope", b.Slice("q_turn", q, keyDim, plainDim, rotated), rope) // (5)
		t := linear("kv_a", x, "attn_kv_a_mqa", width, rank+rotated)
		c := norm("latent", b.Slice("kv_low", t, 0, 0, rank), "attn_kv_a_norm", rank) // (4)
		kTurned := b.Rope("k_rope", b.Slice("k_turn", t, 0, rank, rotated), rope)
		a := recipe.Attention{Heads: heads, Scale: scale}
		var o recipe.Value
		if b.HasTensor(blk + "attn_k_b.weight") { // (6) (7): the latent is key and value of all heads
			a.Q = b.ConcatGroups("q_latent", byHead("q_up", qPlain, "attn_k_b", plainDim, rank), qTurned, heads)
			a.K, a.KVHeads, a.HeadDim = b.Concat("key", c, kTurned), 1, rank+rotated
			a.Cache = b.KV("kv", rank+rotated, 0, 0)
			o = byHead("v_up", b.Slice("o_latent", b.Attention("attn", a), rank+rotated, 0, rank), "attn_v_b", rank, valueDim)
		} else { // (7) unabsorbed, for files that have the matrix of keys the other way round: every head has keys of its own
			kv := linear("kv_b", c, "attn_kv_b", rank, heads*(plainDim+valueDim))
			a.Q = b.ConcatGroups("q_heads", qPlain, qTurned, heads)
			a.K = b.ConcatGroups("k_heads", b.Slice("k_plain", kv, plainDim+valueDim, 0, plainDim), b.Repeat("k_all", kTurned, heads), heads)
			a.V = b.Slice("v", kv, plainDim+valueDim, plainDim, valueDim)
			a.KVHeads, a.HeadDim, a.ValueDim = heads, keyDim, valueDim
			a.Cache = b.KV("kv", heads*keyDim, heads*valueDim, 0)
			o = b.Attention("attn", a)
		}
		h = b.Add("h_attn", h, linear("attn_out", o, "attn_output", heads*valueDim, width)) // (8)

		x = norm("ffn_norm", h, "ffn_norm", width) // (9)
		if i < dense {
			h = b.Add("h", h, ffn("ffn", x, "", denseWidth))
			continue
		}
		r := route
		r.Logits = b.LinearExact("router", x, b.WeightOf(recipe.TypeF32, blk+"ffn_gate_inp.weight", width, experts), "") // (11)
		r.Bias = b.Optional(blk+"exp_probs_b.bias", experts)
		ids, weights := b.Route("ids", "weights", r) // (12) to (14)
		// The shared expert comes first: it computes while the routed ones are read.
		s := ffn("shared", x, "_shexp", shared)
		y := b.Experts("routed", recipe.Experts{X: x, IDs: ids, Weights: weights, Bank: b.StackedBank(i, experts, width, hidden)})
		h = b.Add("h", h, b.Add("moe", y, s)) // (15)
	}
	b.Head()
	b.Linear(recipe.Logits, b.RMSNorm("norm", h, b.Weight("output_norm.weight", width), eps, 0), head, "") // (10)
}
