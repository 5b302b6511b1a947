package recipes_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/sdk/fault"
)

const (
	gemma4    = "gemma4/gemma4-f32.gguf"     // layers 2 and 5 of 6 see everything; experts
	gemma4Own = "gemma4/gemma4-ple-f32.gguf" // layers 3, 5 and 7 of 8 see everything; the last four share caches
)

// TestGemma4Layers covers what differs from layer to layer (specs/gemma4.md 4.4, 4.5 and 4.7).
func TestGemma4Layers(t *testing.T) {
	e := edit(t, gemma4)
	e.keys["gemma4.rope.freq_base"] = nil // the defaults of the family, not those of the other architectures
	e.keys["gemma4.rope.freq_base_swa"] = nil
	e.keys["gemma4.rope.scaling.factor"] = 4.0
	p, err := run(t, "gemma4", e)
	require.NoError(t, err)
	require.Empty(t, leftOver(p, e.tensors))
	require.Len(t, p.Banks, 6)
	attention, rope := every(t, p, "attention"), ropes(p)
	for i := range 6 {
		window, dim, kvHeads, base, factor := int64(8), int64(16), int64(2), 1e4, 1.0
		if i == 2 || i == 5 {
			window, dim, kvHeads, base, factor = 0, 32, 1, 1e6, 4
		}
		require.Equal(t, window, attention[i].Int("window"))
		require.Equal(t, dim, attention[i].Int("head_dim"))
		require.Equal(t, kvHeads, attention[i].Int("kv_heads"))
		require.Equal(t, 1.0, attention[i].Float("scale"))
		require.Equal(t, uint64(window), p.States[i].Window)
		for _, r := range rope[2*i:][:2] {
			require.Equal(t, base, r.Float("base"))
			require.Equal(t, factor, r.Float("factor"))
			require.Equal(t, dim, r.Int("n_rot"))
		}
	}
	for i, op := range p.Blocks[3].Ops { // a layer without attn_v
		require.NotEqual(t, "l2.v", op.Out[0], "op %d", i)
	}
}

// TestGemma4SharedCaches: layers 4 and 6 read the cache of layer 2, layers 5 and 7 that of layer 3.
func TestGemma4SharedCaches(t *testing.T) {
	e := edit(t, gemma4Own)
	p, err := run(t, "gemma4", e)
	require.NoError(t, err)
	require.Len(t, p.States, 4)
	require.NotEmpty(t, p.Unused)
	require.Empty(t, leftOver(p, e.tensors))
	require.Empty(t, p.Banks)
	for i, want := range []string{"l0.kv", "l1.kv", "l2.kv", "l3.kv", "l2.kv", "l3.kv", "l2.kv", "l3.kv"} {
		for _, op := range p.Blocks[i+1].Ops {
			if op.Kind == "attention" {
				require.Equal(t, []string{want}, op.States)
				require.Equal(t, i >= 4, len(op.In) == 1, "layer %d has keys of its own", i)
			}
		}
	}
}

func TestGemma4Accepted(t *testing.T) {
	for name, change := range map[string]func(*edited){
		"optional keys": func(e *edited) {
			for _, key := range []string{"attention.shared_kv_layers", "embedding_length_per_layer_input", "final_logit_softcapping",
				"rope.dimension_count", "rope.dimension_count_swa"} {
				e.keys["gemma4."+key] = nil
			}
		},
		"optional tensors": func(e *edited) {
			e.remove("blk.1.layer_output_scale.weight")
			e.remove("blk.1.ffn_down_exps.scale")
			e.add("output.weight", 64, 448)
		},
		"every layer slides": func(e *edited) { // heads of 16 everywhere
			e.keys["gemma4.attention.sliding_window_pattern"] = 1
			for _, blk := range []string{"blk.2.", "blk.5."} {
				for name, dims := range map[string][]uint64{"attn_q": {64, 64}, "attn_k": {64, 16}, "attn_output": {64, 64}, "attn_q_norm": {16},
					"attn_k_norm": {16}} {
					e.remove(blk + name + ".weight")
					e.add(blk+name+".weight", dims...)
				}
			}
		},
		"a layer by presence of its tensors": func(e *edited) {
			for _, name := range []string{"ffn_gate_inp.weight", "ffn_gate_inp.scale", "pre_ffw_norm_2.weight", "post_ffw_norm_1.weight",
				"post_ffw_norm_2.weight", "ffn_gate_up_exps.weight", "ffn_down_exps.weight", "ffn_down_exps.scale"} {
				e.remove("blk.3." + name)
			}
			e.remove("blk.4.attn_v.weight")
		},
		"other senses": func(e *edited) {
			e.add("v.blk.0.attn_q.weight", 8, 8)
			e.add("a.conv.weight", 8)
			e.add("mm.input_projection.weight", 8, 8)
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := edit(t, gemma4)
			change(e)
			p, err := run(t, "gemma4", e)
			require.NoError(t, err)
			require.Empty(t, leftOver(p, e.tensors))
		})
	}
}

func TestGemma4Refused(t *testing.T) {
	key := func(key string, value any) func(*edited) {
		return func(e *edited) { e.keys["gemma4."+key] = value }
	}
	for _, test := range []struct {
		name, file string
		edit       func(*edited)
		kind       fault.Kind
		say        string
	}{
		{"no head width of sliding layers", gemma4, key("attention.key_length_swa", nil), fault.Corrupt, `"gemma4.attention.key_length_swa" is missing`},
		{"no pattern", gemma4, key("attention.sliding_window_pattern", nil), fault.Corrupt, "sliding_window_pattern"},
		{"pattern of other length", gemma4, key("attention.sliding_window_pattern", []int64{1, 1, 0}), fault.Corrupt, "6 layers, found array of 3"},
		{"no expert count used", gemma4, key("expert_used_count", nil), fault.Corrupt, "expert_used_count"},
		{"router without experts", gemma4, key("expert_count", nil), fault.Corrupt, `"blk.0.ffn_gate_inp.weight", but no gemma4.expert_count`},
		{"other value width", gemma4, key("attention.value_length", 16), fault.Unsupported, "attention.value_length 16"},
		{"odd rotation", gemma4, key("rope.dimension_count_swa", 15), fault.Unsupported, "rope.dimension_count_swa 15"},
		{"heads by layer", gemma4, key("attention.head_count_kv", []int64{2, 2, 1, 3, 2, 1}), fault.Corrupt, "layer 3"},
		{"cap is not a number", gemma4, key("final_logit_softcapping", math.NaN()), fault.Corrupt, "final_logit_softcapping"},
		{"no divisors", gemma4, func(e *edited) { e.remove("rope_freqs.weight") }, fault.Corrupt, `"rope_freqs.weight" is missing`},
		{"no router scale", gemma4, func(e *edited) { e.remove("blk.1.ffn_gate_inp.scale") }, fault.Corrupt, "blk.1.ffn_gate_inp.scale"},
		{"nothing shares, so keys are needed", gemma4Own, key("attention.shared_kv_layers", 0), fault.Corrupt, "blk.6.attn_k.weight"},
		{"owners of one kind only", gemma4Own, key("attention.shared_kv_layers", 5), fault.Unsupported, "layer 3 shares a cache"},
		{"owners in another order", gemma4Own, key("attention.shared_kv_layers", 3), fault.Unsupported, "layer 5 shares a cache"},
		{"owner of other heads", gemma4Own, key("attention.head_count_kv", []int64{1, 1, 1, 1, 2, 1, 1, 1}), fault.Unsupported, "layer 4 shares a cache"},
		{"no table of inputs", gemma4Own, func(e *edited) { e.remove("per_layer_token_embd.weight") }, fault.Corrupt, "per_layer_token_embd"},
	} {
		t.Run(test.name, func(t *testing.T) {
			e := edit(t, test.file)
			test.edit(e)
			_, err := run(t, "gemma4", e)
			require.ErrorContains(t, err, test.say)
			require.Equal(t, test.kind, fault.KindOf(err), "%v", err)
		})
	}
}
