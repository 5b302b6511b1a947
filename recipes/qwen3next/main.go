// Qwen3-Next (80B-A3B): three layers of gated delta nets, then one of gated attention. Equation numbers are those of
// specs/qwen35moe.md, whose sections 5.4 and 5.5 say how this architecture differs from qwen35moe: the value heads of one
// key head lie together, beta and alpha come in one matrix, and rotation has no sections.
package main

import (
	"cmp"
	"math"
	"slices"

	"github.com/bigmoe/bigmoe/sdk/recipe"
)

func init() { recipe.Register("qwen3next", "1", build) }

func main() {}

func build(b *recipe.Builder) {
	blocks := b.Uint("block_count", 1, recipe.MaxLayers)
	layers := b.Trunk(blocks) // the rest draft tokens
	context := b.Uint("context_length", 1, recipe.MaxContext)
	width := b.Uint("embedding_length", 1, recipe.MaxWidth)
	heads := b.Uint("attention.head_count", 1, recipe.MaxCount)
	kvHeads := slices.Max(b.PerLayerOr("attention.head_count_kv", heads, blocks, 0, recipe.MaxCount)) // 0 where there is no attention
	headDim := b.UintOr("attention.key_length", width/heads, 1, recipe.MaxCount)
	valueDim := b.UintOr("attention.value_length", width/heads, 1, recipe.MaxCount)
	rotated := b.UintOr("rope.dimension_count", headDim, 2, headDim)
	eps := b.Float("attention.layer_norm_rms_epsilon", 1e-20, 1)
	scale := cmp.Or(b.FloatOr("attention.scale", 0, 0, 1e6), 1/math.Sqrt(float64(headDim))) // 0 is none
	experts := b.Uint("expert_count", 1, recipe.MaxCount)
	used := b.Uint("expert_used_count", 1, experts)
	dense := b.UintOr("feed_forward_length", 0, 0, recipe.MaxWidth)
	hidden := b.UintOr("expert_feed_forward_length", dense/used, 1, recipe.MaxWidth)
	shared := b.UintOr("expert_shared_feed_forward_length", dense, 1, recipe.MaxWidth)
	factor := b.FloatOr("expert_weights_scale", 0, 0, 1e6) // 0, like 1, is none
	taps := b.Uint("ssm.conv_kernel", 2, recipe.MaxCount)
	dim := b.Uint("ssm.state_size", 1, recipe.MaxCount)
	keyHeads := b.Uint("ssm.group_count", 1, recipe.MaxCount)
	valueHeads := b.Uint("ssm.time_step_rank", 1, recipe.MaxCount)
	inner := b.Uint("ssm.inner_size", 1, recipe.MaxWidth)
	vocabulary := b.Vocabulary()
	interval := b.UintOr("full_attention_interval", 4, 1, recipe.MaxLayers)
	recurrent := b.PerLayerBoolOr("attention.recurrent_layers", blocks, func(i int) bool { return (i+1)%interval != 0 })
	b.RequireMultiple("attention.head_count", heads, "attention.head_count_kv", kvHeads)
	switch {
	case headDim != valueDim || rotated%2 != 0:
		b.RefuseKeys(recipe.Unsupported, "the first two must be equal, the last even", "attention.key_length",
			"attention.value_length", "rope.dimension_count")
	case valueHeads%keyHeads != 0 || inner != valueHeads*dim:
		b.RefuseKeys(recipe.Corrupt, "do not fit together", "ssm.inner_size", "ssm.state_size", "ssm.group_count", "ssm.time_step_rank")
	case b.BoolOr("ssm.v_head_reordered", false):
		b.RefuseKeys(recipe.Unsupported, "how beta and alpha would be ordered is not known", "ssm.v_head_reordered")
	}
	b.Describe(recipe.Model{Layers: layers, Embedding: width, Vocabulary: vocabulary, ContextLength: context,
		Experts: experts, ExpertsUsed: used})
	b.UnusedUnder("drafts tokens, which is not supported", "mtp.")
	b.UnusedUnder("sees images, which is not supported", "v.", "mm.")
	rope := b.RopeScaling(rotated, context) // A4
	rope.HeadDim = headDim
	table, head := b.TableAndHead(width, vocabulary)

	b.Embedding()
	h := b.Embed("h", table, 1) // T1
	for i := range layers {
		blk := b.Layer(i)
		linear := func(name string, x recipe.Value, tensor string, in, out int) recipe.Value {
			return b.Linear(name, x, b.Weight(blk+tensor+".weight", in, out), "")
		}

		a := b.RMSNorm("attn_norm", h, b.Weight(blk+"attn_norm.weight", width), eps, 0) // T2
		var y recipe.Value
		if recurrent[i] {
			keys, channels := keyHeads*dim, 2*keyHeads*dim+inner
			wQKV, wZ, wBeta, wAlpha := projections(b, blk, width, keyHeads, valueHeads, dim)
			c, z := b.Linear("qkv", a, wQKV, ""), b.Linear("z", a, wZ, "") // D1
			bl, al := b.Linear("b", a, wBeta, ""), b.Linear("a", a, wAlpha, "")
			beta := b.Unary("beta", "sigmoid", bl)                                                               // D6
			dt := b.AddWeight("dt", al, b.Weight(b.FirstTensor(blk+"ssm_dt.bias", blk+"ssm_dt"), valueHeads))    // the latter in older files
			gamma := b.MulWeight("gamma", b.Unary("dt_plus", "softplus", dt), b.Weight(blk+"ssm_a", valueHeads)) // D7
			u := b.ShortConv("conv", c, b.Weight(blk+"ssm_conv1d.weight", taps, channels),                       // D2, D3
				b.Convolution("history", (taps-1)*channels), "silu")
			q := b.L2Norm("q", b.Slice("q_conv", u, 0, 0, keys), 1e-6, dim, "add") // D4, D5
			k := b.L2Norm("k", b.Slice("k_conv", u, 0, keys, keys), 1e-6, dim, "add")
			o := b.GatedDeltaNet("delta", recipe.DeltaNet{Q: b.Scale("q_scaled", q, 1/math.Sqrt(float64(dim))), K: k, // D8 to D13
				V: b.Slice("v", u, 0, 2*keys, inner), Beta: beta, Gamma: gamma, Memory: b.Recurrent("memory", inner*dim),
				KeyHeads: keyHeads, ValueHeads: valueHeads, HeadDim: dim, Map: "grouped"})
			o = b.RMSNorm("delta_norm", o, b.Weight(blk+"ssm_norm.weight", dim), eps, dim)                     // D14
			y = linear("mixed", b.GLU("gated", z, o, recipe.GLU{Activation: "silu"}), "ssm_out", inner, width) // D15, D16
		} else {
			qg := linear("q_gate", a, "attn_q", width, 2*heads*headDim) // A1
			k, v := linear("k", a, "attn_k", width, kvHeads*headDim), linear("v", a, "attn_v", width, kvHeads*headDim)
			q := b.RMSNorm("q_norm", b.Slice("q", qg, 2*headDim, 0, headDim), // A2, A3
				b.Weight(blk+"attn_q_norm.weight", headDim), eps, headDim)
			k = b.RMSNorm("k_norm", k, b.Weight(blk+"attn_k_norm.weight", headDim), eps, headDim)
			o := b.Attention("attn", recipe.Attention{Q: b.Rope("q_rope", q, rope), K: b.Rope("k_rope", k, rope), V: v, // A5, A6
				Cache: b.KV("kv", kvHeads*headDim, kvHeads*headDim, 0),
				Heads: heads, KVHeads: kvHeads, HeadDim: headDim, Scale: scale})
			gate := b.Unary("gate_weight", "sigmoid", b.Slice("gate", qg, 2*headDim, headDim, headDim))
			y = linear("mixed", b.Mul("gated", o, gate), "attn_output", heads*headDim, width) // A7, A8
		}
		h = b.Add("h_mixed", h, y) // T4

		x := b.RMSNorm("ffn_norm", h, b.Weight(blk+"post_attention_norm.weight", width), eps, 0) // T5
		router := b.WeightOf(recipe.TypeF32, blk+"ffn_gate_inp.weight", width, experts)
		ids, weights := b.Route("ids", "weights", recipe.Route{Logits: b.LinearExact("router", x, router, ""), // M1
			TopK: used, Gating: "softmax", Normalize: true, NormFloor: 6.103515625e-5, Scale: factor})
		// The shared expert comes first: it computes while the routed ones are read.
		s := b.GLU("shared_hidden", linear("shared_gate", x, "ffn_gate_shexp", width, shared),
			linear("shared_up", x, "ffn_up_shexp", width, shared), recipe.GLU{Activation: "silu"})
		s = linear("shared_down", s, "ffn_down_shexp", shared, width) // M3
		g := b.LinearExact("shared_logit", x, b.WeightOf(recipe.TypeF32, blk+"ffn_gate_inp_shexp.weight", width, 1), "")
		s = b.Mul("shared", s, b.Unary("shared_weight", "sigmoid", g))
		m := b.Experts("routed", recipe.Experts{X: x, IDs: ids, Weights: weights, Bank: b.StackedBank(i, experts, width, hidden)}) // M2
		h = b.Add("h", h, b.Add("moe", m, s))                                                                                      // M4, T7
	}
	b.Head()
	b.Linear(recipe.Logits, b.RMSNorm("norm", h, b.Weight("output_norm.weight", width), eps, 0), head, "") // T8
}

// projections declares the matrices that a delta net applies to its input (5.5). Their rows lie by key head: beta and alpha
// always, the rest in files that have one matrix for all of it, ssm_in. The convolution wants all queries, then all keys,
// then all values.
func projections(b *recipe.Builder, blk string, width, keyHeads, valueHeads, dim int) (qkv, z, beta, alpha recipe.Weight) {
	shared := valueHeads / keyHeads // value heads of a key head
	// gather joins, for every key head, rows of a group of that many; runs are first rows and counts.
	gather := func(name, tensor string, group int, runs ...[2]int) recipe.Weight {
		var sources []recipe.Source
		rows := 0
		for _, run := range runs {
			for g := range keyHeads {
				sources = append(sources, recipe.Source{Tensor: blk + tensor, FirstRow: g*group + run[0], Rows: run[1]})
			}
			rows += keyHeads * run[1]
		}
		return b.Join(blk+name, []int{width, rows}, sources...)
	}
	beta = gather("ssm_ba.beta", "ssm_ba.weight", 2*shared, [2]int{0, shared})
	alpha = gather("ssm_ba.alpha", "ssm_ba.weight", 2*shared, [2]int{shared, shared})
	if b.HasTensor(blk + "ssm_in.weight") {
		group, values := 2*dim+2*shared*dim, shared*dim
		qkv = gather("ssm_in.qkv", "ssm_in.weight", group, [2]int{0, dim}, [2]int{dim, dim}, [2]int{2 * dim, values})
		z = gather("ssm_in.z", "ssm_in.weight", group, [2]int{2*dim + values, values})
	} else {
		qkv = b.Weight(blk+"attn_qkv.weight", width, 2*keyHeads*dim+valueHeads*dim)
		z = b.Weight(blk+"attn_gate.weight", width, valueHeads*dim)
	}
	return qkv, z, beta, alpha
}
