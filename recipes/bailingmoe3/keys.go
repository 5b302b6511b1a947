package main

import "github.com/bigmoe/bigmoe/sdk/recipe"

// model is what the keys say (specs/bailingmoe3.md section 2).
type model struct {
	width, vocabulary int
	eps               float64

	heads   int
	kvHeads []int // of each layer; 0: a delta net

	dim, taps  int // of delta nets: of a head, of the convolutions
	lowerBound float64

	qRank, kvRank, plainDim, rotated, valueDim int // of attention; qRank 0: not given
	rope                                       recipe.Rope

	dense, denseWidth       int
	experts, hidden, shared int
	limits, sharedLimits    []float64 // of each layer; 0: none
	route                   recipe.Route
}

func readKeys(b *recipe.Builder) *model {
	blocks := b.Uint("block_count", 1, recipe.MaxLayers)
	layers := b.Trunk(blocks) // the rest draft tokens
	context := b.Uint("context_length", 1, recipe.MaxContext)
	m := &model{width: b.Uint("embedding_length", 1, recipe.MaxWidth), vocabulary: b.Vocabulary(),
		eps:   b.Float("attention.layer_norm_rms_epsilon", 1e-20, 1),
		heads: b.Uint("attention.head_count", 1, recipe.MaxCount), kvHeads: b.LeadingUints("attention.head_count_kv", layers, 0, recipe.MaxCount),
		dim: b.Uint("kda.head_dim", 1, recipe.MaxCount), taps: b.Uint("ssm.conv_kernel", 2, recipe.MaxCount),
		lowerBound: b.Float("kda.gate_lower_bound", -1e6, -1e-6),
		qRank:      b.UintOr("attention.q_lora_rank", 0, 0, recipe.MaxWidth), kvRank: b.Uint("attention.kv_lora_rank", 1, recipe.MaxCount),
		rotated: b.Uint("rope.dimension_count", 2, recipe.MaxCount), valueDim: b.Uint("attention.value_length_mla", 1, recipe.MaxCount),
		dense: b.UintOr("leading_dense_block_count", 0, 0, layers), denseWidth: b.Uint("feed_forward_length", 1, recipe.MaxWidth),
		experts: b.Uint("expert_count", 1, recipe.MaxCount), hidden: b.Uint("expert_feed_forward_length", 1, recipe.MaxWidth),
		shared: b.Uint("expert_shared_feed_forward_length", 1, recipe.MaxWidth) * b.Uint("expert_shared_count", 1, recipe.MaxCount),
	}
	keyDim := b.Uint("attention.key_length_mla", 1, recipe.MaxCount)
	m.plainDim = keyDim - m.rotated
	used := b.Uint("expert_used_count", 1, m.experts)
	m.route = recipe.Route{TopK: used, Gating: "sigmoid", Normalize: b.BoolOr("expert_weights_norm", true), NormFloor: 1e-20,
		Scale: b.FloatOr("expert_weights_scale", 1, 0, 1e6), Groups: b.UintOr("expert_group_count", 1, 0, m.experts)}
	if m.route.Groups > 1 {
		m.route.GroupsUsed = b.Uint("expert_group_used_count", 1, m.route.Groups)
	}
	m.rope = b.RopeScaling(m.rotated, context)
	m.rope.Layout, m.rope.HeadDim = "interleaved", m.rotated
	b.Float("rope.freq_base", 1e-3, 1e12)  // no default is known
	b.RequireOnly("expert_gating_func", 2) // sigmoid
	switch {
	case !b.BoolOr("kda.safe_gate", true):
		b.RefuseKeys(recipe.Unsupported, "expected true", "kda.safe_gate")
	case m.rope.Scaling != "" || m.rope.Magnitude != 1:
		b.RefuseKeys(recipe.Unsupported, "expected no scaling, which is all that its specification covers", "rope.scaling.type",
			"rope.scaling.factor", "rope.scaling.attn_factor")
	case m.rotated%2 != 0 || m.plainDim < 1:
		b.RefuseKeys(recipe.Corrupt, "the first must be even and less than the second", "rope.dimension_count", "attention.key_length_mla")
	case m.route.Groups > 1 && (m.experts%m.route.Groups != 0 || used > m.experts/m.route.Groups*m.route.GroupsUsed):
		b.RefuseKeys(recipe.Corrupt, "do not fit together", "expert_count", "expert_used_count", "expert_group_count", "expert_group_used_count")
	}
	m.limits = b.LeadingFloatsOr("swiglu_clamp_exp", 0, layers, 0, 1e9)
	m.sharedLimits = b.LeadingFloatsOr("swiglu_clamp_shexp", 0, layers, 0, 1e9)
	b.Describe(recipe.Model{Layers: layers, Embedding: m.width, Vocabulary: m.vocabulary, ContextLength: context,
		Experts: m.experts, ExpertsUsed: used})
	return m
}
