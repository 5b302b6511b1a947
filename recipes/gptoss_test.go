package recipes_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/sdk/fault"
	"github.com/bigmoe/bigmoe/sdk/plan"
)

const gptOSS = "gpt-oss/gpt-oss-mxfp4.gguf"

// every returns the attributes of all ops of a kind, in order.
func every(t testing.TB, p *plan.Plan, kind string) (out []plan.Attrs) {
	t.Helper()
	spec, ok := plan.Lookup(kind)
	require.True(t, ok)
	for _, b := range p.Blocks {
		for _, op := range b.Ops {
			if op.Kind == kind {
				a, err := spec.Attributes(op)
				require.NoError(t, err)
				out = append(out, a)
			}
		}
	}
	return out
}

// TestGPTOSSWindows covers the keys of specs/gpt-oss.md section 1 that say which layers slide, and how they rotate.
func TestGPTOSSWindows(t *testing.T) {
	const w = 8 // of the fixture
	for _, test := range []struct {
		name    string
		keys    map[string]any
		windows []int64
		bases   []float64
	}{
		{"every second by default", nil, []int64{w, 0, w, 0}, []float64{150000, 150000, 150000, 150000}},
		{"every third", map[string]any{"gpt-oss.attention.sliding_window_pattern": 3}, []int64{w, w, 0, w}, nil},
		{"all", map[string]any{"gpt-oss.attention.sliding_window_pattern": 0}, []int64{w, w, w, w}, nil},
		{"none", map[string]any{"gpt-oss.attention.sliding_window_pattern": 1}, []int64{0, 0, 0, 0}, nil},
		{"another base", map[string]any{"gpt-oss.rope.freq_base_swa": 1000.0}, []int64{w, 0, w, 0}, []float64{1000, 150000, 1000, 150000}},
	} {
		t.Run(test.name, func(t *testing.T) {
			e := edit(t, gptOSS)
			for k, v := range test.keys {
				e.keys[k] = v
			}
			p, err := run(t, "gpt-oss", e)
			require.NoError(t, err)
			require.Empty(t, leftOver(p, e.tensors))
			attention, rope := every(t, p, "attention"), ropes(p)
			for i, want := range test.windows {
				require.Equal(t, want, attention[i].Int("window"), "layer %d", i)
				require.Equal(t, want, int64(p.States[i].Window), "layer %d", i)
				if test.bases != nil {
					require.Equal(t, test.bases[i], rope[2*i].Float("base"))
					require.Equal(t, test.bases[i], rope[2*i+1].Float("base"))
				}
			}
		})
	}
}

func TestGPTOSSFused(t *testing.T) {
	e := edit(t, gptOSS)
	for _, n := range []string{"attn_q", "attn_k", "attn_v"} {
		e.remove("blk.1." + n + ".weight")
		e.remove("blk.1." + n + ".bias")
	}
	e.remove("blk.2.attn_v.bias")
	e.add("blk.1.attn_qkv.weight", 96, 4*64+2*2*64)
	e.add("blk.1.attn_qkv.bias", 4*64+2*2*64)
	p, err := run(t, "gpt-oss", e)
	require.NoError(t, err)
	require.Empty(t, leftOver(p, e.tensors))
}

func TestGPTOSSRefused(t *testing.T) {
	for _, test := range []struct {
		name string
		edit func(*edited)
		kind fault.Kind
		say  string
	}{
		{"no window", func(e *edited) { e.keys["gpt-oss.attention.sliding_window"] = nil }, fault.Corrupt, `"gpt-oss.attention.sliding_window" is missing`},
		{"no head width", func(e *edited) { e.keys["gpt-oss.attention.key_length"] = nil }, fault.Corrupt, `"gpt-oss.attention.key_length" is missing`},
		{"no expert width", func(e *edited) { e.keys["gpt-oss.expert_feed_forward_length"] = nil }, fault.Corrupt, "expert_feed_forward_length"},
		{"windows by layer", func(e *edited) { e.keys["gpt-oss.attention.sliding_window_pattern"] = []int64{1, 0, 1, 0} }, fault.Corrupt,
			"sliding_window_pattern"},
		{"partial rotation", func(e *edited) { e.keys["gpt-oss.rope.dimension_count"] = 32 }, fault.Unsupported, "rope.dimension_count 32"},
		{"no sinks", func(e *edited) { e.remove("blk.3.attn_sinks.weight") }, fault.Corrupt, `"blk.3.attn_sinks.weight" is missing`},
		{"no router bias", func(e *edited) { e.remove("blk.0.ffn_gate_inp.bias") }, fault.Corrupt, `"blk.0.ffn_gate_inp.bias" is missing`},
		{"no expert bias", func(e *edited) { e.remove("blk.2.ffn_down_exps.bias") }, fault.Corrupt, `"blk.2.ffn_down_exps.bias" is missing`},
		{"no head", func(e *edited) { e.remove("output.weight") }, fault.Corrupt, `"output.weight" is missing`},
		{"more experts used than there are", func(e *edited) { e.keys["gpt-oss.expert_used_count"] = 17 }, fault.Corrupt, "1 to 16, found 17"},
	} {
		t.Run(test.name, func(t *testing.T) {
			e := edit(t, gptOSS)
			test.edit(e)
			_, err := run(t, "gpt-oss", e)
			require.ErrorContains(t, err, test.say)
			require.Equal(t, test.kind, fault.KindOf(err), "%v", err)
		})
	}
}
