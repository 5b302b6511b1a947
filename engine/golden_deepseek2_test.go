package engine_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// deepseekV3 has the traits of V3 at a tiny size: a query of low rank, YaRN, experts by groups with a bias.
var deepseekV3 = latentModel{arch: "deepseek2", layers: 3, width: 48, vocabulary: 70, heads: 4, plain: 12, turned: 16, latent: 20, value: 10, low: 24,
	base: 10000, factor: 40, multiplier: 0.1, original: 64, dense: 1, experts: 16, used: 4, hidden: 24, denseWidth: 40, shared: 1,
	groups: 4, groupsUsed: 2, normalize: true, floor: 1. / (1 << 14), factorOfWeights: 2.5}

// deepseekLite has those of V2-Lite: one matrix for the query, softmax, two shared experts, and the head is tied.
var deepseekLite = latentModel{arch: "deepseek2", layers: 3, width: 48, vocabulary: 70, heads: 3, plain: 12, turned: 8, latent: 20, value: 14,
	base: 10000, dense: 1, experts: 12, used: 5, hidden: 24, denseWidth: 40, shared: 2, softmax: true, factorOfWeights: 1}

func (m latentModel) deepseek2(old bool) *latentModel {
	out := newLatentModel(m)
	if m.factor > 0 {
		out.set("rope.scaling.type", "yarn").set("rope.scaling.factor", float32(m.factor)).
			set("rope.scaling.original_context_length", uint32(m.original)).set("rope.scaling.yarn_log_multiplier", float32(m.multiplier))
	}
	out.set("attention.head_count_kv", uint32(1))
	if old {
		out.set("attention.head_count_kv", uint32(m.heads))
		out.set("attention.key_length", uint32(m.plain+m.turned)).set("attention.value_length", uint32(m.value))
		out.b.Drop("deepseek2.attention.key_length_mla").Drop("deepseek2.attention.value_length_mla")
	}
	if !m.softmax {
		out.set("expert_gating_func", uint32(2))
		out.matrix("output.weight", m.width, m.vocabulary)
	}
	for i := range m.layers {
		blk := fmt.Sprintf("blk.%d.", i)
		out.attention(blk, old)
		out.feedForward(i, blk, !m.softmax)
	}
	return out
}

func (m *latentModel) deepseek2Logits(text []int32) [][]float64 {
	return m.logits(text, func(_ int, blk string, x [][]float64) (y [][]float64) {
		for _, o := range m.heads64(blk, x) {
			y = append(y, m.times(blk+"attn_output.weight", o))
		}
		return y
	})
}

func TestDeepSeek2(t *testing.T) {
	arithmetic(t)
	recipes := t.TempDir()
	for name, m := range map[string]latentModel{"v3": deepseekV3, "lite": deepseekLite} {
		for _, old := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, old layout %v", name, old), func(t *testing.T) {
				m := m.deepseek2(old)
				text := m.text(70)
				m.requireEquations(t, recipes, text, m.deepseek2Logits(text))
			})
		}
	}
	// A block that drafts is left out, and a count without such a block counts nothing.
	t.Run("drafting", func(t *testing.T) {
		text := deepseekV3.text(12)
		m := deepseekV3.deepseek2(false)
		want := m.deepseek2Logits(text)
		m.set("nextn_predict_layers", uint32(1))
		m.requireEquations(t, recipes, text, want)
		m.set("block_count", uint32(4))
		m.matrix("blk.3.nextn.eh_proj.weight", 2*m.width, m.width)
		m.norm("blk.3.attn_norm.weight", m.width)
		m.requireEquations(t, recipes, text, want)
	})
	for name, test := range map[string]struct {
		edit func(*latentModel)
		say  string
	}{
		"no multiplier":     {func(m *latentModel) { m.b.Drop("deepseek2.rope.scaling.yarn_log_multiplier") }, "yarn_log_multiplier"},
		"gating":            {func(m *latentModel) { m.set("expert_gating_func", uint32(4)) }, "expert_gating_func"},
		"groups":            {func(m *latentModel) { m.set("expert_group_count", uint32(3)) }, "expert_group_count 3"},
		"too few groups":    {func(m *latentModel) { m.set("expert_group_used_count", uint32(1)).set("expert_used_count", uint32(5)) }, "expert_used_count 5"},
		"no group count":    {func(m *latentModel) { m.b.Drop("deepseek2.expert_group_used_count") }, "expert_group_used_count"},
		"odd rotation":      {func(m *latentModel) { m.set("rope.dimension_count", uint32(7)) }, "rope.dimension_count 7"},
		"all turns":         {func(m *latentModel) { m.set("rope.dimension_count", uint32(28)) }, "rope.dimension_count 28"},
		"no latent":         {func(m *latentModel) { m.b.Drop("deepseek2.attention.kv_lora_rank") }, "kv_lora_rank"},
		"keys of a head":    {func(m *latentModel) { m.b.Drop("deepseek2.attention.key_length_mla") }, "key_length_mla"},
		"shape of a head":   {func(m *latentModel) { m.matrix("blk.1.attn_k_b.weight", 12, 20, 3) }, "blk.1.attn_k_b.weight"},
		"shape of values":   {func(m *latentModel) { m.matrix("blk.1.attn_v_b.weight", 18, 10, 4) }, "blk.1.attn_v_b.weight"},
		"a tensor too many": {func(m *latentModel) { m.norm("blk.1.attn_q_norm.weight", 28) }, "blk.1.attn_q_norm.weight"},
	} {
		t.Run(name, func(t *testing.T) {
			m := deepseekV3.deepseek2(false)
			test.edit(m)
			m.requireRefused(t, recipes, test.say)
		})
	}
}

// TestDeepSeek2Scale holds the reference above to the numbers of specs/deepseek2.md 3.1.
func TestDeepSeek2Scale(t *testing.T) {
	arithmetic(t)
	m := latentModel{plain: 128, turned: 64, base: 10000, factor: 40, original: 4096, multiplier: 0.1}
	require.InDelta(t, 0.135234, m.scale(), 1e-6)
	for i, turned := range map[int]float64{10: 0, 11: 1. / 13, 23: 1} {
		f := math.Pow(10000, -float64(i)/32)
		require.InDelta(t, f*(1-turned)+f/40*turned, m.frequency(i), 1e-12)
	}
}
