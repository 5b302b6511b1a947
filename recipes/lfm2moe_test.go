package recipes_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/sdk/fault"
	"github.com/bigmoe/bigmoe/sdk/plan"
)

const lfm = "lfm2moe/lfm2moe-f32.gguf"

func TestLFM2MoEPlans(t *testing.T) {
	for _, name := range []string{"lfm2moe-f32", "lfm2moe-alt-f32", "lfm2moe-q8_0", "lfm2moe-wide-q4_k_m", "lfm2moe-split-00001-of-00003"} {
		e := edit(t, "lfm2moe/"+name+".gguf")
		p, err := run(t, "lfm2moe", e)
		require.NoError(t, err)
		require.Empty(t, leftOver(p, e.tensors))
		require.Empty(t, p.Unused)
	}
}

// TestLFM2MoELayers: the number of KV heads says what a block is, the leading blocks have no experts.
func TestLFM2MoELayers(t *testing.T) {
	p, err := run(t, "lfm2moe", edit(t, lfm))
	require.NoError(t, err)
	var kinds []plan.StateKind
	for _, s := range p.States {
		kinds = append(kinds, s.Kind)
		if s.Kind == plan.StateKind_CONVOLUTION {
			require.EqualValues(t, 2*64, s.Elements)
			require.Equal(t, plan.Rewind_SNAPSHOT, s.Rewind)
		}
	}
	conv, kv := plan.StateKind_CONVOLUTION, plan.StateKind_KV
	require.Equal(t, []plan.StateKind{conv, conv, kv, conv, conv, kv, conv, kv}, kinds)
	require.Len(t, p.Banks, 6)
	require.EqualValues(t, 2, p.Banks[0].Layer)
	require.Equal(t, plan.Residency_RESIDENT, weight(t, p, "token_embd.weight").Residency, "the head is tied")
	for _, a := range every(t, p, "route") {
		require.Equal(t, "sigmoid", a.Text("gating"))
		require.True(t, a.Flag("normalize"))
		require.Equal(t, 6.103515625e-5, a.Float("norm_floor"))
		require.Equal(t, 1.0, a.Float("scale"))
	}
}

func TestLFM2MoEVariants(t *testing.T) {
	e := edit(t, lfm)
	e.keys["lfm2moe.expert_weights_scale"] = 2.5
	e.keys["lfm2moe.expert_gating_func"] = nil
	e.keys["lfm2moe.attention.head_count"] = []int64{4, 4, 4, 4, 4, 4, 4, 4}
	e.keys["lfm2moe.expert_feed_forward_length"] = []int64{0, 0, 32, 32, 32, 32, 32, 32}
	e.remove("token_embd_norm.weight")
	e.add("output_norm.weight", 64)
	p, err := run(t, "lfm2moe", e)
	require.NoError(t, err)
	require.Empty(t, leftOver(p, e.tensors))
	require.Equal(t, 2.5, every(t, p, "route")[0].Float("scale"))

	e = edit(t, lfm)
	e.keys["lfm2moe.expert_weights_scale"] = 0.0 // absent, never a factor
	p, err = run(t, "lfm2moe", e)
	require.NoError(t, err)
	require.Equal(t, 1.0, every(t, p, "route")[0].Float("scale"))
}

func TestLFM2MoERefused(t *testing.T) {
	for _, test := range []struct {
		name string
		edit func(*edited)
		kind fault.Kind
		say  string
	}{
		{"no base", func(e *edited) { e.keys["lfm2moe.rope.freq_base"] = nil }, fault.Corrupt, `"lfm2moe.rope.freq_base" is missing`},
		{"softmax", func(e *edited) { e.keys["lfm2moe.expert_gating_func"] = 1 }, fault.Unsupported, "expert_gating_func"},
		{"window", func(e *edited) { e.keys["lfm2moe.attention.sliding_window"] = 8 }, fault.Unsupported, "sliding_window"},
		{"one tap", func(e *edited) { e.keys["lfm2moe.shortconv.l_cache"] = 1 }, fault.Corrupt, "found 1"},
		{"other taps", func(e *edited) { e.keys["lfm2moe.shortconv.l_cache"] = 4 }, fault.Corrupt, "shortconv.conv.weight"},
		{"heads", func(e *edited) { e.keys["lfm2moe.attention.head_count_kv"] = []int64{0, 0, 3, 0, 0, 2, 0, 2} }, fault.Corrupt, "of block 2"},
		{"other heads", func(e *edited) { e.keys["lfm2moe.attention.head_count"] = []int64{4, 4, 4, 4, 8, 4, 4, 4} }, fault.Unsupported, "block 4"},
		{"all attention", func(e *edited) { e.keys["lfm2moe.attention.head_count_kv"] = 2 }, fault.Corrupt, `"blk.0.attn_q.weight" is missing`},
		{"no bias", func(e *edited) { e.remove("blk.3.exp_probs_b.bias") }, fault.Corrupt, `"blk.3.exp_probs_b.bias" is missing`},
		{"no norm", func(e *edited) { e.remove("token_embd_norm.weight") }, fault.Corrupt, `"token_embd_norm.weight" is missing`},
		{"nothing turns", func(e *edited) { e.keys["lfm2moe.rope.dimension_count"] = 0 }, fault.Corrupt, "found 0"},
		{"odd rotation", func(e *edited) { e.keys["lfm2moe.rope.dimension_count"] = 7 }, fault.Unsupported, "rope.dimension_count 7"},
	} {
		t.Run(test.name, func(t *testing.T) {
			e := edit(t, lfm)
			test.edit(e)
			_, err := run(t, "lfm2moe", e)
			require.ErrorContains(t, err, test.say)
			require.Equal(t, test.kind, fault.KindOf(err), "%v", err)
		})
	}
}
