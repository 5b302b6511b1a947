package plantext_test

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/cmd/bigmoe/internal/plantext"
	"github.com/bigmoe/bigmoe/engine/gguf"
	"github.com/bigmoe/bigmoe/engine/recipehost"
	"github.com/bigmoe/bigmoe/recipes"
	"github.com/bigmoe/bigmoe/sdk/plan"
)

func planOf(t *testing.T, arch, model string) *plan.Plan {
	f, err := gguf.Open(filepath.Join("../../../../testdata/golden", arch, model+".gguf"))
	require.NoError(t, err)
	defer f.Close()
	module, ok := recipes.Lookup(arch)
	require.True(t, ok)
	p, _, err := recipehost.New(recipehost.Options{}).Plan(context.Background(), arch, module, recipehost.File(f))
	require.NoError(t, err)
	return p
}

// TestText shows what each kind of line looks like.
func TestText(t *testing.T) {
	for _, c := range []struct {
		arch, model string
		lines       []string
	}{
		{"qwen3moe", "qwen3moe-f32", []string{
			"qwen3moe: 4 layers, embedding 96, vocabulary 384, context 512, 4 of 16 experts",
			"", "embedding", "  h = embed(token_embd.weight[96 384] by row)",
			"", "layers 0-3", "  attn_norm = rms_norm(^h, weight=attn_norm.weight[96]) eps=1e-06",
			"  q_norm = rms_norm(q, weight=attn_q_norm.weight[32]) eps=1e-06 group=32",
			"  attn = attention(q_rope, k=k_rope, v=v, kv: kv 64+64) heads=4 kv_heads=2 head_dim=32 scale=0.176776695",
			"  router = linear(ffn_norm, ffn_gate_inp.weight[96 16] of F32) exact=true",
			"  ids, weights = route(router) top_k=4 gating=softmax normalize=true",
			"  moe = experts(ffn_norm, ids, weights, 16 experts of gate ffn_gate_exps.weight[96 32], up ffn_up_exps.weight[96 32], down ffn_down_exps.weight[32 96])",
			"", "head", "  norm = rms_norm(^h, weight=output_norm.weight[96]) eps=1e-06",
			"  logits = linear(norm, output.weight[96 384])"}},
		{"qwen35moe", "qwen35moe-mtp", []string{"\nlayers 0-2\n", "\nlayer 3\n", "memory: recurrent 4096)", "unused", "  blk."}},
		{"gpt-oss", "gpt-oss-mxfp4", []string{"window ", "sinks=attn_sinks", "gate_bias="}},
		{"deepseek4", "deepseek4-f32", []string{"compressed ", "^h", "rows="}},
	} {
		t.Run(c.model, func(t *testing.T) {
			p := planOf(t, c.arch, c.model)
			text := plantext.Text(p)
			rest := text
			if c.arch == "qwen3moe" { // in this order
				for _, line := range c.lines {
					_, after, ok := strings.Cut(rest, line+"\n")
					require.True(t, ok, "no line %q in\n%s", line, rest)
					rest = after
				}
				require.Empty(t, rest)
			}
			for _, part := range c.lines {
				require.Contains(t, text, part)
			}
			require.Equal(t, text, plantext.Text(planOf(t, c.arch, c.model)))
			require.Empty(t, plantext.Diff("a", p, "b", p))
		})
	}
}

func TestDiff(t *testing.T) {
	p, q := planOf(t, "qwen3moe", "qwen3moe-f32"), planOf(t, "qwen3moe", "qwen3moe-f32")
	for _, op := range q.Blocks[2].Ops { // of one layer
		if op.Kind == "route" {
			op.Attrs = op.Attrs[:2]
		}
	}
	text := plantext.Diff("a", p, "b", q)
	require.Contains(t, text, "--- a\n+++ b\n")
	require.Contains(t, text, "-layers 0-3\n+layers 0, 2-3\n")
	require.Contains(t, text, "+layer 1\n")
	require.Contains(t, text, "+  ids, weights = route(router) top_k=4 gating=softmax\n")
}
