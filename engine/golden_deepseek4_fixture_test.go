package engine_test

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/engine/gguf/gguftest"
	"github.com/bigmoe/bigmoe/sdk/dtype"
)

// The fixture of specs/deepseek4.md section 5: a model that its description generates, with results of the vendor's code.

const (
	fixtureVocabulary = 96
	fixtureTokens     = 264
	fixtureHead       = 96
	fixtureIndexHead  = 64
)

// fixtureBits is element i of the random numbers called name, the high 24 bits of a splitmix (5.2).
func fixtureBits(name string, i int) uint64 {
	h := fnv.New64a()
	h.Write([]byte("k40:" + name))
	z := h.Sum64() + uint64(i+1)*0x9E3779B97F4A7C15
	z = (z ^ z>>30) * 0xBF58476D1CE4E5B9
	z = (z ^ z>>27) * 0x94D049BB133111EB
	return (z ^ z>>31) >> 40
}

func fixturePrompt() (tokens []int32) {
	for t := range fixtureTokens {
		tokens = append(tokens, int32(fixtureBits("tokens", t)%fixtureVocabulary))
	}
	return tokens
}

func fixtureValues(name string, dims []uint64) []float32 {
	off, amp := 0.0, 2/math.Sqrt(float64(dims[0]))
	base := strings.TrimSuffix(name, ".weight")
	switch {
	case strings.HasSuffix(base, "_norm"):
		off, amp = 1, 0.3
	case strings.Contains(base, "hc_") && strings.HasSuffix(base, "_scale"):
		off, amp = 0.75, 0.25
	case strings.Contains(base, "hc_") && strings.HasSuffix(base, "_base"), strings.HasSuffix(base, "attn_sinks"):
		amp = 0.8
	case strings.HasSuffix(base, "exp_probs_b.bias"):
		amp = 0.3
	case strings.HasSuffix(base, "_ape"), base == "token_embd":
		amp = 1
	}
	n := uint64(1)
	for _, d := range dims {
		n *= d
	}
	out := make([]float32, n)
	for i := range out {
		out[i] = float32(off + amp*(float64(fixtureBits(name, i))/(1<<23)-1))
	}
	return out
}

// fixture writes the model.
func fixture(t *testing.T) (path string) {
	t.Helper()
	b := gguftest.NewBuilder()
	b.Set("general.architecture", "deepseek4")
	ratios := []int32{0, 0, 4, 128, 4, 128, 0}
	for key, v := range map[string]any{
		"block_count": uint32(6), "context_length": uint32(4096), "embedding_length": uint32(64), "attention.head_count": uint32(4),
		"attention.key_length": uint32(fixtureHead), "attention.value_length": uint32(fixtureHead), "attention.layer_norm_rms_epsilon": float32(1e-6),
		"attention.q_lora_rank": uint32(32), "attention.output_lora_rank": uint32(32), "attention.output_group_count": uint32(2),
		"attention.sliding_window": uint32(8), "attention.compress_ratios": ratios, "attention.compress_rope_freq_base": float32(160000),
		"attention.indexer.head_count": uint32(32), "attention.indexer.key_length": uint32(fixtureIndexHead), "attention.indexer.top_k": uint32(6),
		"rope.dimension_count": uint32(32), "rope.scaling.type": "yarn", "rope.scaling.factor": float32(16),
		"rope.scaling.original_context_length": uint32(64), "expert_count": uint32(8), "expert_used_count": uint32(2),
		"expert_feed_forward_length": uint32(64), "expert_weights_scale": float32(1.5), "swiglu_clamp_exp": []float32{0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5},
	} {
		b.Set("deepseek4."+key, v)
	}
	tokens, types := make([]string, fixtureVocabulary), make([]int32, fixtureVocabulary)
	for i := range tokens {
		tokens[i], types[i] = string(rune('!'+i)), 1
	}
	b.Set("tokenizer.ggml.model", "gpt2").Set("tokenizer.ggml.pre", "joyai-llm").Set("tokenizer.ggml.tokens", tokens)
	b.Set("tokenizer.ggml.token_type", types).Set("tokenizer.ggml.merges", []string{"! #"}).Set("tokenizer.ggml.eos_token_id", uint32(1))

	tensor := func(name string, dims ...uint64) {
		b.Tensor(name, dtype.F32, dims, gguftest.Float32s(fixtureValues(name, dims)...))
	}
	tensor("token_embd.weight", 64, fixtureVocabulary)
	tensor("output_norm.weight", 64)
	tensor("output.weight", 64, fixtureVocabulary)
	tensor("output_hc_fn.weight", 256, 4)
	tensor("output_hc_base.weight", 4)
	tensor("output_hc_scale.weight", 1)
	for i := range 6 {
		in := func(name string, dims ...uint64) { tensor(fmt.Sprintf("blk.%d.%s.weight", i, name), dims...) }
		for _, s := range []string{"attn", "ffn"} {
			in(s+"_norm", 64)
			in("hc_"+s+"_fn", 256, 24)
			in("hc_"+s+"_base", 24)
			in("hc_"+s+"_scale", 3)
		}
		in("attn_q_a", 64, 32)
		in("attn_q_a_norm", 32)
		in("attn_q_b", 32, 4*fixtureHead)
		in("attn_kv", 64, fixtureHead)
		in("attn_kv_a_norm", fixtureHead)
		in("attn_sinks", 4)
		in("attn_output_a", 2*fixtureHead, 2*32)
		in("attn_output_b", 2*32, 64)
		compressor := func(name string, dim, ratio, c uint64) {
			in(name+"_kv", 64, c*dim)
			in(name+"_gate", 64, c*dim)
			in(name+"_ape", c*dim, ratio)
			in(name+"_norm", dim)
		}
		switch ratios[i] {
		case 4:
			compressor("attn_compressor", fixtureHead, 4, 2)
			compressor("indexer_compressor", fixtureIndexHead, 4, 2)
			in("indexer.attn_q_b", 32, 32*fixtureIndexHead)
			in("indexer.proj", 64, 32)
		case 128:
			compressor("attn_compressor", fixtureHead, 128, 1)
		}
		in("ffn_gate_inp", 64, 8)
		for _, e := range []string{"exps", "shexp"} {
			var n []uint64
			if e == "exps" {
				n = []uint64{8}
			}
			for _, part := range []string{"gate", "up", "down"} {
				in("ffn_"+part+"_"+e, append([]uint64{64, 64}, n...)...)
			}
		}
		if i >= 3 {
			tensor(fmt.Sprintf("blk.%d.exp_probs_b.bias", i), 8)
			continue
		}
		var ids []byte
		for token := range fixtureVocabulary {
			for j := range 2 {
				ids = binary.LittleEndian.AppendUint32(ids, uint32(5*token+3*i+3*j)%8)
			}
		}
		b.Tensor(fmt.Sprintf("blk.%d.ffn_gate_tid2eid.weight", i), dtype.I32, []uint64{2, fixtureVocabulary}, ids)
	}
	path = filepath.Join(t.TempDir(), "fixture.gguf")
	require.NoError(t, b.Write(path))
	return path
}

func runFixture(t *testing.T, path string, tokens int) *observed {
	cfg := config(path, backends()["in process"])
	cfg.Context = 512
	return observe(t, cfg, fixturePrompt()[:tokens], 50, 0)
}

// TestDeepseek4Generator is the check of 5.2.
func TestDeepseek4Generator(t *testing.T) {
	arithmetic(t)
	for _, c := range []struct {
		name string
		dims []uint64
		want []float64
	}{
		{"token_embd.weight", []uint64{64, 96}, []float64{0.398855}},
		{"blk.0.attn_q_a.weight", []uint64{64, 32}, []float64{0.238791, -0.030135, -0.151500}},
		{"blk.4.hc_ffn_base.weight", []uint64{24}, []float64{-0.479174, 0.645398}},
		{"blk.2.attn_norm.weight", []uint64{64}, []float64{0.815240, 1.267577}},
		{"blk.3.hc_attn_scale.weight", []uint64{3}, []float64{0.559691, 0.620101, 0.655303}},
		{"blk.2.attn_compressor_ape.weight", []uint64{192, 4}, []float64{-0.988302, -0.795021}},
	} {
		for i, got := range fixtureValues(c.name, c.dims)[:len(c.want)] {
			require.InDelta(t, c.want[i], got, 1e-6, "%s[%d]", c.name, i)
		}
	}
	require.Equal(t, []int32{86, 72, 16, 59, 93, 48, 55, 44, 49, 15, 79, 92, 31, 7, 16, 60}, fixturePrompt()[:16])
}

// TestDeepseek4Fixture compares with the values of 5.3.
func TestDeepseek4Fixture(t *testing.T) {
	arithmetic(t)
	o := runFixture(t, fixture(t), fixtureTokens)
	const tol = 1e-3
	for _, row := range []struct {
		p, token, argmax int
		max, norm        float64
		first            [4]float64
	}{
		{0, 86, 79, 2.81863, 11.39485, [4]float64{1.29211, 0.39096, -0.80886, 0.18388}},
		{1, 72, 92, 2.86960, 12.66314, [4]float64{1.95412, 1.01123, 0.43993, 0.00631}},
		{3, 59, 62, 3.71451, 11.96748, [4]float64{0.70224, 0.21172, -0.48816, -0.48307}},
		{4, 93, 62, 2.71695, 11.73577, [4]float64{0.47257, -0.22945, 0.66238, 0.16703}},
		{7, 44, 38, 3.17736, 12.64389, [4]float64{0.35584, 1.95386, 0.57586, 0.78498}},
		{8, 49, 62, 3.12538, 11.86733, [4]float64{-0.59985, 0.43543, -0.40516, -0.17690}},
		{23, 56, 19, 2.73996, 11.69459, [4]float64{-0.36071, 0.09376, 1.95471, -0.12225}},
		{27, 82, 40, 3.00154, 12.03221, [4]float64{0.31962, 0.03044, -0.31621, 0.18774}},
		{28, 6, 40, 3.47466, 11.42343, [4]float64{-0.33180, -0.21443, -0.87054, 0.05485}},
		{127, 2, 85, 2.75585, 11.27060, [4]float64{-2.85958, -0.21178, -3.17949, -0.85964}},
		{128, 43, 40, 2.57742, 11.41956, [4]float64{-1.12699, 0.78001, -0.11663, 0.28013}},
		{131, 89, 40, 2.54059, 12.06205, [4]float64{-1.75042, 0.23192, -2.93056, -1.37006}},
		{255, 1, 87, 2.40927, 10.49798, [4]float64{-0.60424, -0.22884, -1.62790, -1.24052}},
		{256, 55, 84, 2.99404, 11.06560, [4]float64{0.21331, -0.59041, -1.45524, -1.16452}},
		{263, 95, 8, 2.65206, 10.55613, [4]float64{1.03376, 0.35719, -0.52141, 0.40844}},
	} {
		l := o.logits[row.p]
		require.EqualValues(t, row.token, fixturePrompt()[row.p])
		require.EqualValues(t, row.argmax, argmax(l), "position %d", row.p)
		require.InDelta(t, row.max, l[row.argmax], tol, "position %d", row.p)
		for i, want := range row.first {
			require.InDelta(t, want, l[i], tol, "position %d", row.p)
		}
		var norm float64
		for _, v := range l {
			norm += float64(v) * float64(v)
		}
		require.InDelta(t, row.norm, math.Sqrt(norm), tol, "position %d", row.p)
	}
	var sum, abs float64
	for _, l := range o.logits {
		for _, v := range l {
			sum, abs = sum+float64(v), abs+math.Abs(float64(v))
		}
	}
	require.InDelta(t, 720.210, sum, 0.05)
	require.InDelta(t, 23993.09, abs, 0.05)
	for _, r := range []struct {
		layer, p int
		ids      []int32
		weights  []float64
	}{{0, 0, []int32{6, 1}, []float64{1.214292, 0.285708}}, {4, 200, []int32{2, 4}, []float64{0.72161, 0.77839}}} {
		got := o.experts[r.layer][r.p]
		require.ElementsMatch(t, r.ids, got)
		for i, id := range r.ids {
			require.InDelta(t, r.weights[i], o.weights[r.layer][r.p][slices.Index(got, id)], 1e-4)
		}
	}
}
