package recipes_test

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/engine/gguf"
	"github.com/bigmoe/bigmoe/sdk/fault"
	"github.com/bigmoe/bigmoe/sdk/plan"
)

// opsOf returns the ops of a layer that are of a kind.
func opsOf(p *plan.Plan, layer int, kind string) (out []*plan.Op) {
	for _, b := range p.Blocks {
		for _, op := range b.Ops {
			if b.Kind == plan.BlockKind_LAYER && int(b.Layer) == layer && op.Kind == kind {
				out = append(out, op)
			}
		}
	}
	return out
}

func attrsOf(t testing.TB, op *plan.Op) plan.Attrs {
	spec, ok := plan.Lookup(op.Kind)
	require.True(t, ok)
	a, err := spec.Attributes(op)
	require.NoError(t, err)
	return a
}

func TestDeepseek4Plan(t *testing.T) {
	for _, name := range []string{"f32", "mtp", "q8_0", "q4_k_m"} {
		f := open(t, golden+"deepseek4/deepseek4-"+name+".gguf")
		p, err := run(t, "deepseek4", edit(t, "deepseek4/deepseek4-"+name+".gguf"))
		require.NoError(t, err)
		require.Empty(t, leftOver(p, f.Tensors()))
		require.Len(t, p.Banks, int(p.Model.Layers))
	}
	p, err := run(t, "deepseek4", edit(t, "deepseek4/deepseek4-f32.gguf"))
	require.NoError(t, err)
	for layer, ratio := range []int64{0, 4, 128, 4, 128, 4} {
		attention, compress, index := opsOf(p, layer, "attention"), opsOf(p, layer, "compress"), opsOf(p, layer, "index_top")
		require.Len(t, attention, 1)
		require.EqualValues(t, 16, attrsOf(t, attention[0]).Int("window"))
		switch ratio {
		case 0:
			require.Empty(t, compress)
			require.Len(t, attention[0].States, 1)
		case 4:
			require.Len(t, compress, 2)
			require.Len(t, index, 1)
			require.Equal(t, index[0].Out[0], attention[0].In[3])
			require.InDelta(t, 1/math.Sqrt(16*64), attrsOf(t, index[0]).Float("scale"), 1e-12)
		case 128:
			require.Len(t, compress, 1)
			require.Empty(t, index)
			require.Len(t, attention[0].In, 2, "all rows")
		}
		for _, op := range compress {
			a := attrsOf(t, op)
			require.Equal(t, ratio, a.Int("ratio"))
			require.Equal(t, ratio == 4, a.Flag("overlap"))
		}
		for _, op := range append(opsOf(p, layer, "rope"), compress...) {
			a := attrsOf(t, op)
			require.Equal(t, "interleaved", a.Text("layout"))
			require.Equal(t, 1.0, a.Float("magnitude"))
			if ratio == 0 {
				require.Equal(t, "none", a.Text("scaling"))
				require.Equal(t, 10000.0, a.Float("base"))
			} else {
				require.Equal(t, "yarn", a.Text("scaling"))
				require.Equal(t, 160000.0, a.Float("base"))
				require.Equal(t, 16.0, a.Float("factor"))
			}
		}
		require.Len(t, opsOf(p, layer, "token_row"), map[bool]int{true: 1}[layer < 2])
	}
	for _, s := range p.States {
		require.Equal(t, s.Kind == plan.StateKind_RECURRENT, s.Rewind == plan.Rewind_SNAPSHOT, s.Name)
	}
}

// TestDeepseek4Variants covers what files may leave out or say otherwise (specs/deepseek4.md 1 and 2).
func TestDeepseek4Variants(t *testing.T) {
	const file, prefix = "deepseek4/deepseek4-f32.gguf", "deepseek4."
	same := func(t *testing.T, change func(e *edited)) {
		t.Helper()
		want, err := run(t, "deepseek4", edit(t, file))
		require.NoError(t, err)
		e := edit(t, file)
		change(e)
		got, err := run(t, "deepseek4", e)
		require.NoError(t, err)
		require.Equal(t, string(printPlan(t, want)), string(printPlan(t, got)))
	}
	t.Run("defaults", func(t *testing.T) {
		same(t, func(e *edited) {
			for _, key := range []string{"attention.compress_ratios", "attention.compress_rope_freq_base", "attention.head_count_kv", "hash_layer_count",
				"rope.freq_base", "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow", "expert_shared_count", "expert_weights_norm",
				"expert_gating_func", "attention.output_group_count", "attention.output_lora_rank", "hyper_connection.count", "hyper_connection.sinkhorn_iterations", "hyper_connection.epsilon"} {
				e.keys[prefix+key] = nil
			}
		})
	})
	t.Run("drafting blocks counted, but absent", func(t *testing.T) {
		same(t, func(e *edited) { e.keys[prefix+"nextn_predict_layers"] = 1 })
	})
	t.Run("base of compressing layers under its old name", func(t *testing.T) {
		same(t, func(e *edited) {
			e.keys[prefix+"attention.compress_rope_freq_base"], e.keys[prefix+"rope.freq_base_swa"] = nil, 160000.0
		})
	})
	t.Run("other tensor names", func(t *testing.T) {
		e := edit(t, file)
		for i, tensor := range e.tensors {
			name := strings.Replace(tensor.Name, "output_hc_", "hc_head_", 1)
			name = strings.Replace(name, "attn_kv.weight", "attn_kv_latent.weight", 1)
			e.tensors[i].Name = strings.Replace(name, "exp_probs_b.bias", "exp_probs_b.weight", 1)
		}
		i := slices.IndexFunc(e.tensors, func(t gguf.Tensor) bool { return t.Name == "blk.3.ffn_gate_exps.weight" })
		gate := e.tensors[i].Dims
		e.remove("blk.3.ffn_gate_exps.weight")
		e.remove("blk.3.ffn_up_exps.weight")
		e.add("blk.3.ffn_gate_up_exps.weight", gate[0], 2*gate[1], gate[2])
		p, err := run(t, "deepseek4", e)
		require.NoError(t, err)
		require.Empty(t, leftOver(p, e.tensors))
		require.Equal(t, plan.Role_GATE_UP, p.Banks[3].Parts[0].Role)
	})
	t.Run("limits by layer", func(t *testing.T) {
		e := edit(t, file)
		e.keys[prefix+"swiglu_clamp_exp"] = []int64{1, 2, 3, 4, 5, 6, 7}
		e.keys[prefix+"swiglu_clamp_shexp"] = 0.0
		p, err := run(t, "deepseek4", e)
		require.NoError(t, err)
		for layer := range 6 {
			require.EqualValues(t, layer+1, attrsOf(t, opsOf(p, layer, "experts")[0]).Float("limit"))
			require.Zero(t, attrsOf(t, opsOf(p, layer, "glu")[0]).Float("limit"))
		}
	})
	for _, bad := range []struct {
		name string
		keys map[string]any
		kind fault.Kind
		say  string
	}{
		{"other ratio", map[string]any{"attention.compress_ratios": []int64{0, 4, 64, 4, 128, 4}}, fault.Unsupported, "expected 0, 4 or 128, found 64"},
		{"few ratios", map[string]any{"attention.compress_ratios": []int64{0, 4, 128}}, fault.Corrupt, "one for each of 6 layers"},
		{"gating", map[string]any{"expert_gating_func": 2}, fault.Unsupported, "expert_gating_func\": expected 4, found 2"},
		{"groups of experts", map[string]any{"expert_group_count": 8}, fault.Unsupported, "expert_group_count\": expected 0, found 8"},
		{"dense layers", map[string]any{"leading_dense_block_count": 1}, fault.Unsupported, "leading_dense_block_count\": expected 0, found 1"},
		{"kv heads", map[string]any{"attention.head_count_kv": 2}, fault.Unsupported, "head_count_kv\": expected 1, found 2"},
		{"values", map[string]any{"attention.value_length": 64}, fault.Unsupported, "value_length\": expected 96, found 64"},
		{"groups", map[string]any{"attention.output_group_count": 3}, fault.Corrupt, "not a multiple of attention.output_group_count 3"},
		{"odd rotation", map[string]any{"rope.dimension_count": 31}, fault.Corrupt, "dimension_count 31: must be even"},
		{"rotation wider than the indexer", map[string]any{"rope.dimension_count": 96}, fault.Corrupt, "expected 2 to 64, found 96"},
		{"one layer by token more", map[string]any{"hash_layer_count": 3}, fault.Corrupt, `"blk.2.ffn_gate_tid2eid.weight" is missing`},
		{"one layer by token less", map[string]any{"hash_layer_count": 1}, fault.Corrupt, `"blk.1.exp_probs_b.bias" is missing`},
		{"no window", map[string]any{"attention.sliding_window": nil}, fault.Corrupt, "attention.sliding_window\" is missing"},
		{"streams", map[string]any{"hyper_connection.count": 3}, fault.Corrupt, `"blk.0.hc_attn_fn.weight": expected [192 15], found [256 24]`},
	} {
		t.Run(bad.name, func(t *testing.T) {
			e := edit(t, file)
			for key, v := range bad.keys {
				e.keys[prefix+key] = v
			}
			_, err := run(t, "deepseek4", e)
			require.ErrorContains(t, err, bad.say)
			require.Equal(t, bad.kind, fault.KindOf(err))
		})
	}
}
