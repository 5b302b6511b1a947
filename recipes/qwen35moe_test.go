package recipes_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/sdk/fault"
	"github.com/bigmoe/bigmoe/sdk/plan"
)

const qwen35 = "qwen35moe/qwen35moe-f32.gguf"

func TestQwen35MoEPlans(t *testing.T) {
	for _, name := range []string{"qwen35moe-f32", "qwen35moe-q8_0", "qwen35moe-q4_k_m", "qwen35moe-mtp"} {
		e := edit(t, "qwen35moe/"+name+".gguf")
		p, err := run(t, "qwen35moe", e)
		require.NoError(t, err)
		require.Empty(t, leftOver(p, e.tensors))
		require.Equal(t, strings.HasSuffix(name, "mtp"), len(p.Unused) > 0)
		for _, u := range p.Unused {
			require.True(t, strings.HasPrefix(u.Tensor, "blk.4."), u.Tensor)
			require.Contains(t, u.Reason, "drafts")
		}
		for _, a := range every(t, p, "gated_delta_net") {
			require.Equal(t, "tiled", a.Text("map"))
		}
	}
}

// kinds returns what each layer remembers: a for attention, r for a recurrence.
func kinds(p *plan.Plan) (out string) {
	for _, s := range p.States {
		switch s.Kind {
		case plan.StateKind_KV:
			out += "a"
		case plan.StateKind_RECURRENT:
			out += "r"
		}
	}
	return out
}

func TestQwen35MoELayers(t *testing.T) {
	const k = "qwen35moe."
	for _, test := range []struct {
		name string
		keys map[string]any
		want string
	}{
		{"every fourth", nil, "rrrarrra"},
		{"by default", map[string]any{k + "full_attention_interval": nil}, "rrrarrra"},
		{"listed", map[string]any{k + "full_attention_interval": 3, k + "attention.recurrent_layers": []int64{1, 1, 1, 0, 1, 1, 1, 0}}, "rrrarrra"},
		{"kv heads by layer", map[string]any{k + "attention.head_count_kv": []int64{0, 0, 0, 2, 0, 0, 0, 2}}, "rrrarrra"},
	} {
		e := edit(t, qwen35)
		for key, v := range test.keys {
			e.keys[key] = v
		}
		p, err := run(t, "qwen35moe", e)
		require.NoError(t, err, test.name)
		require.Equal(t, test.want, kinds(p), test.name)
		require.EqualValues(t, 2*32, p.States[len(p.States)-1].KeyWidth, test.name)
	}
}

// TestQwen35MoESections: a text turns as without sections if the first three cover every pair (A4).
func TestQwen35MoESections(t *testing.T) {
	for _, test := range []struct {
		sections []int64
		covered  bool
	}{
		{[]int64{3, 3, 2, 0}, true},
		{[]int64{3, 3, 3, 9}, true},  // 18 pairs and more than enough
		{[]int64{1, 1, 1, 0}, true},  // 8 pairs go round and round
		{[]int64{3, 3, 1, 0}, false}, // pair 5 is of the third axis, which ends before it
		{[]int64{2, 3, 3, 0}, false},
		{[]int64{0, 0, 0, 8}, false},
		{[]int64{0, 0, 0, 0}, false},
	} {
		e := edit(t, qwen35)
		e.keys["qwen35moe.rope.dimension_sections"] = test.sections
		_, err := run(t, "qwen35moe", e)
		if test.covered {
			require.NoError(t, err, "%v", test.sections)
			continue
		}
		require.ErrorContains(t, err, "qwen35moe.rope.dimension_sections", "%v", test.sections)
		require.Equal(t, fault.Unsupported, fault.KindOf(err))
	}
}

func TestQwen35MoEVariants(t *testing.T) {
	e := edit(t, qwen35)
	e.remove("output.weight")
	e.keys["qwen35moe.ssm.v_head_reordered"] = 0
	e.keys["qwen35moe.expert_weights_scale"] = 2.5
	e.keys["qwen35moe.attention.scale"] = 0.5
	e.add("mtp.layers.0.x", 3)
	e.add("v.blk.0.attn_q.weight", 3, 3)
	e.add("mm.0.weight", 3)
	e.remove("blk.0.ssm_dt.bias")
	e.add("blk.0.ssm_dt", 4)
	e.remove("blk.2.ffn_gate_exps.weight")
	e.remove("blk.2.ffn_up_exps.weight")
	e.add("blk.2.ffn_gate_up_exps.weight", 96, 64, 16)
	p, err := run(t, "qwen35moe", e)
	require.NoError(t, err)
	require.Empty(t, leftOver(p, e.tensors))
	require.Len(t, p.Unused, 3)
	require.Equal(t, plan.Residency_RESIDENT, weight(t, p, "token_embd.weight").Residency)
	require.Equal(t, "grouped", every(t, p, "gated_delta_net")[0].Text("map"))
	require.Equal(t, 2.5, every(t, p, "route")[0].Float("scale"))
	require.Equal(t, 0.5, every(t, p, "attention")[0].Float("scale"))
	require.Equal(t, plan.Role_GATE_UP, p.Banks[2].Parts[0].Role)
}

func TestQwen35MoERefused(t *testing.T) {
	for _, test := range []struct {
		name string
		edit func(*edited)
		kind fault.Kind
		say  string
	}{
		{"no sections", func(e *edited) { e.keys["qwen35moe.rope.dimension_sections"] = nil }, fault.Corrupt, `"qwen35moe.rope.dimension_sections" is missing`},
		{"three sections", func(e *edited) { e.keys["qwen35moe.rope.dimension_sections"] = []int64{3, 3, 2} }, fault.Corrupt, "array of 3"},
		{"all layers draft", func(e *edited) { e.keys["qwen35moe.nextn_predict_layers"] = 8 }, fault.Corrupt, "0 to 7, found 8"},
		{"inner size", func(e *edited) { e.keys["qwen35moe.ssm.inner_size"] = 64 }, fault.Corrupt, "ssm.inner_size 64"},
		{"value heads", func(e *edited) { e.keys["qwen35moe.ssm.group_count"] = 3 }, fault.Corrupt, "group_count 3"},
		{"one tap", func(e *edited) { e.keys["qwen35moe.ssm.conv_kernel"] = 1 }, fault.Corrupt, "ssm.conv_kernel"},
		{"no kv heads", func(e *edited) { e.keys["qwen35moe.attention.head_count_kv"] = []int64{0, 0, 0, 0, 0, 0, 0, 0} }, fault.Corrupt, "head_count_kv 0"},
		{"other values", func(e *edited) { e.keys["qwen35moe.attention.value_length"] = 16 }, fault.Unsupported, "attention.value_length 16"},
		{"another layer is attention", func(e *edited) { e.keys["qwen35moe.full_attention_interval"] = 2 }, fault.Corrupt, `"blk.1.attn_q.weight" is missing`},
		{"only the drafting block", func(e *edited) {
			e.tensors = e.tensors[:0]
			e.add("token_embd.weight", 96, 384)
			e.add("blk.8.attn_norm.weight", 96)
		}, fault.Corrupt, `"blk.0.attn_norm.weight" is missing`},
		{"nothing turns", func(e *edited) { e.keys["qwen35moe.rope.dimension_count"] = 0 }, fault.Corrupt, "2 to 32, found 0"},
		{"no magnitude", func(e *edited) { e.keys["qwen35moe.rope.scaling.attn_factor"] = 0.0 }, fault.Corrupt, "rope.scaling.attn_factor 0"},
		{"no shared width", func(e *edited) { e.keys["qwen35moe.expert_shared_feed_forward_length"] = nil }, fault.Corrupt, "_shexp.weight"},
	} {
		t.Run(test.name, func(t *testing.T) {
			e := edit(t, qwen35)
			test.edit(e)
			_, err := run(t, "qwen35moe", e)
			require.ErrorContains(t, err, test.say)
			require.Equal(t, test.kind, fault.KindOf(err), "%v", err)
		})
	}
}

// nextTwin is the golden with the keys and tensors of qwen3next.
func nextTwin(t testing.TB) *edited {
	e := edit(t, qwen35)
	e.keys["general.architecture"] = "qwen3next"
	ints := map[string]int{"block_count": 8, "context_length": 4096, "embedding_length": 96, "attention.head_count": 6, "attention.head_count_kv": 2,
		"attention.key_length": 32, "attention.value_length": 32, "rope.dimension_count": 16, "expert_count": 16, "expert_used_count": 4,
		"expert_feed_forward_length": 32, "expert_shared_feed_forward_length": 64, "ssm.conv_kernel": 4, "ssm.state_size": 32,
		"ssm.group_count": 2, "ssm.time_step_rank": 4, "ssm.inner_size": 128}
	for key, n := range ints {
		e.keys["qwen3next."+key] = n
	}
	e.keys["qwen3next.attention.layer_norm_rms_epsilon"] = 1e-6
	for _, blk := range []string{"blk.0.", "blk.1.", "blk.2.", "blk.4.", "blk.5.", "blk.6."} {
		e.remove(blk + "ssm_alpha.weight")
		e.remove(blk + "ssm_beta.weight")
		e.add(blk+"ssm_ba.weight", 96, 8)
	}
	return e
}

// rowsOf returns the first row and the number of rows of every source of a weight.
func rowsOf(w *plan.Weight) (out [][2]uint64) {
	for _, s := range w.Sources {
		out = append(out, [2]uint64{s.FirstRow, s.Rows})
	}
	return out
}

// TestQwen3NextLayouts covers specs/qwen35moe.md 5.5 with 2 key heads of 2 value heads of 32.
func TestQwen3NextLayouts(t *testing.T) {
	e := nextTwin(t)
	e.remove("blk.1.attn_qkv.weight")
	e.remove("blk.1.attn_gate.weight")
	e.add("blk.1.ssm_in.weight", 96, 2*(2*32+2*2*32))
	e.remove("blk.2.ssm_dt.bias") // the name in older files
	e.add("blk.2.ssm_dt", 4)
	p, err := run(t, "qwen3next", e)
	require.NoError(t, err)
	require.Empty(t, leftOver(p, e.tensors))
	require.Equal(t, "rrrarrra", kinds(p))
	require.Equal(t, "grouped", every(t, p, "gated_delta_net")[0].Text("map"))
	require.Equal(t, [][2]uint64{{0, 2}, {4, 2}}, rowsOf(weight(t, p, "blk.1.ssm_ba.beta")))
	require.Equal(t, [][2]uint64{{2, 2}, {6, 2}}, rowsOf(weight(t, p, "blk.1.ssm_ba.alpha")))
	require.Equal(t, [][2]uint64{{0, 32}, {192, 32}, {32, 32}, {224, 32}, {64, 64}, {256, 64}}, rowsOf(weight(t, p, "blk.1.ssm_in.qkv")))
	require.Equal(t, [][2]uint64{{128, 64}, {320, 64}}, rowsOf(weight(t, p, "blk.1.ssm_in.z")))
	require.Equal(t, []uint64{96, 256}, weight(t, p, "blk.0.attn_qkv.weight").Shape)

	e.keys["qwen3next.ssm.v_head_reordered"] = 1
	_, err = run(t, "qwen3next", e)
	require.ErrorContains(t, err, "ssm.v_head_reordered")
	require.Equal(t, fault.Unsupported, fault.KindOf(err))
}
