package main

import (
	"strconv"

	"github.com/bigmoe/bigmoe/sdk/recipe"
)

// model is what the keys say (specs/deepseek4.md 1).
type model struct {
	layers, width, vocabulary int
	eps                       float64

	heads, headDim, rotated, window int
	qRank, outRank, groups          int
	plain, scaled                   recipe.Rope // of layers that keep every position, and of those that compress
	ratios                          []int       // positions in a compressed row: 0 (none), 4 or 128
	index                           struct{ heads, dim, topK int }

	experts, used, hidden, shared int // shared: width of the shared expert
	weightScale                   float64
	normalize                     bool
	limits, sharedLimits          []float64
	hyper                         recipe.HyperConnection
}

func readKeys(b *recipe.Builder) *model {
	m := &model{width: b.Uint("embedding_length", 1, recipe.MaxWidth), vocabulary: b.Vocabulary(),
		eps: b.Float("attention.layer_norm_rms_epsilon", 1e-20, 1)}
	blocks := b.Uint("block_count", 1, recipe.MaxLayers)
	m.layers = b.Trunk(blocks) // the rest draft tokens (1.2)
	context := b.Uint("context_length", 1, recipe.MaxContext)

	m.heads = b.Uint("attention.head_count", 1, recipe.MaxCount)
	m.headDim = b.Uint("attention.key_length", 1, recipe.MaxCount)
	b.RequireOnly("attention.value_length", m.headDim)
	b.RequireOnly("attention.head_count_kv", 1)
	m.window = b.Uint("attention.sliding_window", 1, recipe.MaxContext)
	m.qRank = b.Uint("attention.q_lora_rank", 1, recipe.MaxWidth)
	const a, o, fn = "blk.0.attn_output_a.weight", "blk.0.attn_output_b.weight", "blk.0.hc_attn_fn.weight" // say what keys leave out
	m.groups = b.UintOr("attention.output_group_count", m.heads*m.headDim/b.Dim(a, 0, recipe.MaxWidth), 1, recipe.MaxCount)
	b.RequireMultiple("attention.head_count", m.heads, "attention.output_group_count", m.groups)
	m.outRank = b.UintOr("attention.output_lora_rank", b.Dim(o, 0, recipe.MaxWidth)/m.groups, 1, recipe.MaxWidth)
	m.index.heads = b.Uint("attention.indexer.head_count", 1, recipe.MaxCount)
	m.index.dim = b.Uint("attention.indexer.key_length", 1, recipe.MaxCount)
	m.index.topK = b.Uint("attention.indexer.top_k", 1, recipe.MaxCount)
	m.rotated = b.Uint("rope.dimension_count", 2, min(m.headDim, m.index.dim))
	if m.rotated%2 != 0 {
		b.RefuseKeys(recipe.Corrupt, "must be even", "rope.dimension_count")
	}
	m.plain = recipe.Rope{Rotated: m.rotated, Layout: "interleaved", Base: b.FloatOr("rope.freq_base", 10000, 1e-3, 1e12)} // (14)
	m.scaled = b.RopeScaling(m.rotated, context)                                                                           // (15)
	m.scaled.Layout, m.scaled.Magnitude = "interleaved", 1
	m.scaled.Base = b.FloatOr("attention.compress_rope_freq_base", b.FloatOr("rope.freq_base_swa", 160000, 1e-3, 1e12), 1e-3, 1e12)
	m.scaled.BetaFast = b.FloatOr("rope.scaling.yarn_beta_fast", 32, 1e-6, 1e6)
	m.scaled.BetaSlow = b.FloatOr("rope.scaling.yarn_beta_slow", 1, 1e-6, 1e6)
	m.ratios = compressRatios(b, m.layers)

	m.experts = b.Uint("expert_count", 1, recipe.MaxCount)
	m.used = b.Uint("expert_used_count", 1, m.experts)
	m.hidden = b.Uint("expert_feed_forward_length", 1, recipe.MaxWidth)
	m.shared = m.hidden * b.UintOr("expert_shared_count", 1, 1, recipe.MaxCount)
	m.weightScale = b.Float("expert_weights_scale", 1e-6, 1e6)
	m.normalize = b.BoolOr("expert_weights_norm", true)
	b.RequireOnly("expert_gating_func", 4) // the root of softplus
	b.RequireOnly("expert_group_count", 0)
	b.RequireOnly("leading_dense_block_count", 0)
	m.limits = b.LeadingFloatsOr("swiglu_clamp_exp", 10, m.layers, 0, 1e9)
	m.sharedLimits = m.limits
	if b.Has("swiglu_clamp_shexp") {
		m.sharedLimits = b.LeadingFloatsOr("swiglu_clamp_shexp", 0, m.layers, 0, 1e9)
	}
	m.hyper = recipe.HyperConnection{Streams: b.UintOr("hyper_connection.count", b.Dim(fn, 0, recipe.MaxWidth)/m.width, 1, 64), Eps: m.eps,
		HCEps:      b.FloatOr("hyper_connection.epsilon", m.eps, 1e-20, 1),
		Iterations: b.UintOr("hyper_connection.sinkhorn_iterations", 20, 1, 1000)}
	b.Describe(recipe.Model{Layers: m.layers, Embedding: m.width, Vocabulary: m.vocabulary, ContextLength: context,
		Experts: m.experts, ExpertsUsed: m.used})
	return m
}

// compressRatios reads the key, or tells from the tensors (specs/deepseek4.md 1.1).
func compressRatios(b *recipe.Builder, layers int) []int {
	const key = "attention.compress_ratios"
	if b.Has(key) {
		ratios := b.LeadingUints(key, layers, 0, 128)
		for _, r := range ratios {
			if r != 0 && r != 4 && r != 128 {
				b.Refuse(recipe.Unsupported, "key \"deepseek4."+key+"\": expected 0, 4 or 128, found "+strconv.Itoa(r))
			}
		}
		return ratios
	}
	ratios := make([]int, layers)
	for i := range ratios {
		blk := "blk." + strconv.Itoa(i) + "."
		switch {
		case b.HasTensor(blk + "indexer_compressor_kv.weight"):
			ratios[i] = 4
		case b.HasTensor(blk + "attn_compressor_kv.weight"):
			ratios[i] = 128
		}
	}
	return ratios
}
