package engine_test

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/engine"
	"github.com/bigmoe/bigmoe/engine/gguf/gguftest"
	"github.com/bigmoe/bigmoe/sdk/dtype"
)

// realModel writes the head of a file with the sizes of a real model and a hole for its weights.
type realModel struct {
	*gguftest.Builder
	arch string
}

func newRealModel(arch string, vocabulary int, keys map[string]any) *realModel {
	m := &realModel{gguftest.NewBuilder(), arch}
	m.Set("general.architecture", arch)
	for key, v := range keys {
		if n, ok := v.(int); ok {
			v = uint32(n)
		}
		m.Set(arch+"."+key, v)
	}
	tokens := make([]string, vocabulary)
	for i := range tokens {
		tokens[i] = fmt.Sprint("t", i)
	}
	m.Set("tokenizer.ggml.model", "gpt2").Set("tokenizer.ggml.pre", "qwen2").Set("tokenizer.ggml.tokens", tokens)
	m.Set("tokenizer.ggml.merges", []string{"t 0"})
	return m
}

// tensor adds a tensor, named as in the specification's table of the architecture.
func (m *realModel) tensor(typ dtype.Type, name string, dims ...uint64) {
	m.Tensor(name, typ, dims, nil)
}

// norms adds vectors.
func (m *realModel) norms(n uint64, names ...string) {
	for _, name := range names {
		m.tensor(dtype.F32, name, n)
	}
}

// moreBits is the rule of llama-quantize for what gets Q6_K (Q8_0 where rows do not allow that) in a Q4_K_M file, layer i of n.
func moreBits(i, n int) bool { return i < n/8 || i >= 7*n/8 || (i-n/8)%3 == 2 }

func q4or(better dtype.Type, more bool) dtype.Type {
	if more {
		return better
	}
	return dtype.Q4_K
}

func qwen3Real() *realModel {
	m := newRealModel("qwen3moe", 151936, map[string]any{"block_count": 48, "context_length": 40960, "embedding_length": 2048, "attention.head_count": 32,
		"attention.head_count_kv": 4, "attention.key_length": 128, "attention.value_length": 128, "attention.layer_norm_rms_epsilon": float32(1e-6),
		"rope.freq_base": float32(1e6), "expert_count": 128, "expert_used_count": 8, "expert_feed_forward_length": 768})
	m.tensor(dtype.Q4_K, "token_embd.weight", 2048, 151936)
	m.tensor(dtype.Q6_K, "output.weight", 2048, 151936)
	m.norms(2048, "output_norm.weight")
	for i := range 48 {
		blk, better := fmt.Sprintf("blk.%d.", i), q4or(dtype.Q6_K, moreBits(i, 48))
		m.norms(2048, blk+"attn_norm.weight", blk+"ffn_norm.weight")
		m.norms(128, blk+"attn_q_norm.weight", blk+"attn_k_norm.weight")
		m.tensor(dtype.Q4_K, blk+"attn_q.weight", 2048, 4096)
		m.tensor(dtype.Q4_K, blk+"attn_k.weight", 2048, 512)
		m.tensor(better, blk+"attn_v.weight", 2048, 512)
		m.tensor(dtype.Q4_K, blk+"attn_output.weight", 4096, 2048)
		m.tensor(dtype.F32, blk+"ffn_gate_inp.weight", 2048, 128)
		m.tensor(dtype.Q4_K, blk+"ffn_gate_exps.weight", 2048, 768, 128)
		m.tensor(dtype.Q4_K, blk+"ffn_up_exps.weight", 2048, 768, 128)
		m.tensor(better, blk+"ffn_down_exps.weight", 768, 2048, 128)
	}
	return m
}

func qwen35Real() *realModel {
	m := newRealModel("qwen35moe", 248320, map[string]any{"block_count": 40, "context_length": 262144, "embedding_length": 2048, "attention.head_count": 16,
		"attention.head_count_kv": 2, "attention.key_length": 256, "attention.value_length": 256, "attention.layer_norm_rms_epsilon": float32(1e-6),
		"rope.dimension_count": 64, "rope.dimension_sections": []int32{11, 11, 10, 0}, "rope.freq_base": float32(1e7), "expert_count": 256,
		"expert_used_count": 8, "expert_feed_forward_length": 512, "expert_shared_feed_forward_length": 512, "ssm.conv_kernel": 4,
		"ssm.state_size": 128, "ssm.group_count": 16, "ssm.time_step_rank": 32, "ssm.inner_size": 4096, "full_attention_interval": 4})
	m.tensor(dtype.Q4_K, "token_embd.weight", 2048, 248320)
	m.tensor(dtype.Q6_K, "output.weight", 2048, 248320)
	m.norms(2048, "output_norm.weight")
	for i := range 40 {
		blk, better := fmt.Sprintf("blk.%d.", i), q4or(dtype.Q6_K, moreBits(i, 40))
		m.norms(2048, blk+"attn_norm.weight", blk+"post_attention_norm.weight", blk+"ffn_gate_inp_shexp.weight")
		if i%4 == 3 {
			m.tensor(dtype.Q4_K, blk+"attn_q.weight", 2048, 8192)
			m.tensor(dtype.Q4_K, blk+"attn_k.weight", 2048, 512)
			m.tensor(better, blk+"attn_v.weight", 2048, 512)
			m.tensor(dtype.Q4_K, blk+"attn_output.weight", 4096, 2048)
			m.norms(256, blk+"attn_q_norm.weight", blk+"attn_k_norm.weight")
		} else {
			m.tensor(better, blk+"attn_qkv.weight", 2048, 8192)
			m.tensor(dtype.Q4_K, blk+"attn_gate.weight", 2048, 4096)
			m.tensor(dtype.F32, blk+"ssm_conv1d.weight", 4, 8192)
			m.tensor(dtype.Q4_K, blk+"ssm_alpha.weight", 2048, 32)
			m.tensor(dtype.Q4_K, blk+"ssm_beta.weight", 2048, 32)
			m.norms(32, blk+"ssm_dt.bias", blk+"ssm_a")
			m.norms(128, blk+"ssm_norm.weight")
			m.tensor(dtype.Q4_K, blk+"ssm_out.weight", 4096, 2048)
		}
		m.tensor(dtype.F32, blk+"ffn_gate_inp.weight", 2048, 256)
		m.tensor(dtype.Q4_K, blk+"ffn_gate_exps.weight", 2048, 512, 256)
		m.tensor(dtype.Q4_K, blk+"ffn_up_exps.weight", 2048, 512, 256)
		m.tensor(better, blk+"ffn_down_exps.weight", 512, 2048, 256)
		m.tensor(dtype.Q4_K, blk+"ffn_gate_shexp.weight", 2048, 512)
		m.tensor(dtype.Q4_K, blk+"ffn_up_shexp.weight", 2048, 512)
		m.tensor(better, blk+"ffn_down_shexp.weight", 512, 2048)
	}
	return m
}

func gptOSSReal() *realModel {
	m := newRealModel("gpt-oss", 201088, map[string]any{"block_count": 24, "context_length": 131072, "embedding_length": 2880, "attention.head_count": 64,
		"attention.head_count_kv": 8, "attention.key_length": 64, "attention.value_length": 64, "attention.layer_norm_rms_epsilon": float32(1e-5),
		"attention.sliding_window": 128, "rope.freq_base": float32(150000), "rope.scaling.type": "yarn", "rope.scaling.factor": float32(32),
		"rope.scaling.original_context_length": 4096, "expert_count": 32, "expert_used_count": 4, "expert_feed_forward_length": 2880})
	m.tensor(dtype.Q8_0, "token_embd.weight", 2880, 201088)
	m.tensor(dtype.Q8_0, "output.weight", 2880, 201088)
	m.norms(2880, "output_norm.weight")
	for i := range 24 {
		blk := fmt.Sprintf("blk.%d.", i)
		m.norms(2880, blk+"attn_norm.weight", blk+"post_attention_norm.weight", blk+"attn_output.bias")
		m.norms(64, blk+"attn_sinks.weight")
		m.norms(32, blk+"ffn_gate_inp.bias")
		for name, rows := range map[string]uint64{"attn_q": 4096, "attn_k": 512, "attn_v": 512} {
			m.tensor(dtype.Q8_0, blk+name+".weight", 2880, rows)
			m.norms(rows, blk+name+".bias")
		}
		m.tensor(dtype.Q8_0, blk+"attn_output.weight", 4096, 2880)
		m.tensor(dtype.F32, blk+"ffn_gate_inp.weight", 2880, 32)
		for _, name := range []string{"gate", "up", "down"} {
			m.tensor(dtype.MXFP4, blk+"ffn_"+name+"_exps.weight", 2880, 2880, 32)
			m.tensor(dtype.F32, blk+"ffn_"+name+"_exps.bias", 2880, 32)
		}
	}
	return m
}

func gemma4Real() *realModel {
	slides, kvHeads := make([]bool, 30), make([]int32, 30)
	for i := range slides {
		slides[i], kvHeads[i] = i%6 != 5, 8
		if !slides[i] {
			kvHeads[i] = 2
		}
	}
	m := newRealModel("gemma4", 262144, map[string]any{"block_count": 30, "context_length": 262144, "embedding_length": 2816, "feed_forward_length": 2112,
		"attention.head_count": 16, "attention.head_count_kv": kvHeads, "attention.key_length": 512, "attention.value_length": 512,
		"attention.key_length_swa": 256, "attention.value_length_swa": 256, "attention.layer_norm_rms_epsilon": float32(1e-6),
		"attention.sliding_window": 1024, "attention.sliding_window_pattern": slides, "expert_count": 128, "expert_used_count": 8,
		"expert_feed_forward_length": 704})
	m.tensor(dtype.Q6_K, "token_embd.weight", 2816, 262144)
	m.norms(2816, "output_norm.weight")
	m.norms(256, "rope_freqs.weight")
	values := 0 // matrices of values so far
	for i := range 30 {
		blk, dim, down := fmt.Sprintf("blk.%d.", i), uint64(256), dtype.Q5_0
		if moreBits(i, 30) {
			down = dtype.Q8_0
		}
		if slides[i] {
			m.tensor(q4or(dtype.Q6_K, moreBits(values, 25)), blk+"attn_v.weight", 2816, 2048)
			values++
		} else {
			dim = 512
		}
		m.norms(2816, blk+"attn_norm.weight", blk+"post_attention_norm.weight", blk+"ffn_norm.weight", blk+"post_ffw_norm.weight",
			blk+"ffn_gate_inp.scale", blk+"pre_ffw_norm_2.weight", blk+"post_ffw_norm_1.weight", blk+"post_ffw_norm_2.weight")
		m.norms(dim, blk+"attn_q_norm.weight", blk+"attn_k_norm.weight")
		m.norms(1, blk+"layer_output_scale.weight")
		m.norms(128, blk+"ffn_down_exps.scale")
		m.tensor(dtype.Q4_K, blk+"attn_q.weight", 2816, 16*dim)
		m.tensor(dtype.Q4_K, blk+"attn_k.weight", 2816, uint64(kvHeads[i])*dim)
		m.tensor(dtype.Q4_K, blk+"attn_output.weight", 16*dim, 2816)
		m.tensor(dtype.Q4_K, blk+"ffn_gate.weight", 2816, 2112)
		m.tensor(dtype.Q4_K, blk+"ffn_up.weight", 2816, 2112)
		m.tensor(down, blk+"ffn_down.weight", 2112, 2816)
		m.tensor(dtype.F32, blk+"ffn_gate_inp.weight", 2816, 128)
		m.tensor(dtype.Q4_K, blk+"ffn_gate_up_exps.weight", 2816, 1408, 128)
		m.tensor(down, blk+"ffn_down_exps.weight", 704, 2816, 128)
	}
	return m
}

func lfm2Real() *realModel {
	kvHeads := make([]int32, 24)
	for _, i := range []int{2, 6, 10, 14, 18, 21} {
		kvHeads[i] = 8
	}
	m := newRealModel("lfm2moe", 65536, map[string]any{"block_count": 24, "context_length": 128000, "embedding_length": 2048, "feed_forward_length": 7168,
		"attention.head_count": 32, "attention.head_count_kv": kvHeads, "attention.layer_norm_rms_epsilon": float32(1e-5), "rope.freq_base": float32(1e6),
		"expert_count": 32, "expert_used_count": 4, "expert_feed_forward_length": 1792, "leading_dense_block_count": 2, "shortconv.l_cache": 3})
	m.tensor(dtype.Q6_K, "token_embd.weight", 2048, 65536)
	m.norms(2048, "token_embd_norm.weight")
	values := 0
	for i := range 24 {
		blk, better := fmt.Sprintf("blk.%d.", i), q4or(dtype.Q6_K, moreBits(i, 24))
		m.norms(2048, blk+"attn_norm.weight", blk+"ffn_norm.weight")
		if kvHeads[i] > 0 {
			m.tensor(dtype.Q4_K, blk+"attn_q.weight", 2048, 2048)
			m.tensor(dtype.Q4_K, blk+"attn_k.weight", 2048, 512)
			m.tensor(q4or(dtype.Q6_K, moreBits(values, 6)), blk+"attn_v.weight", 2048, 512)
			values++
			m.tensor(dtype.Q4_K, blk+"attn_output.weight", 2048, 2048)
			m.norms(64, blk+"attn_q_norm.weight", blk+"attn_k_norm.weight")
		} else {
			m.tensor(dtype.Q4_K, blk+"shortconv.in_proj.weight", 2048, 6144)
			m.tensor(dtype.F32, blk+"shortconv.conv.weight", 3, 2048)
			m.tensor(dtype.Q4_K, blk+"shortconv.out_proj.weight", 2048, 2048)
		}
		if i < 2 {
			m.tensor(dtype.Q4_K, blk+"ffn_gate.weight", 2048, 7168)
			m.tensor(dtype.Q4_K, blk+"ffn_up.weight", 2048, 7168)
			m.tensor(better, blk+"ffn_down.weight", 7168, 2048)
			continue
		}
		m.tensor(dtype.F32, blk+"ffn_gate_inp.weight", 2048, 32)
		m.norms(32, blk+"exp_probs_b.bias")
		m.tensor(dtype.Q4_K, blk+"ffn_gate_exps.weight", 2048, 1792, 32)
		m.tensor(dtype.Q4_K, blk+"ffn_up_exps.weight", 2048, 1792, 32)
		m.tensor(better, blk+"ffn_down_exps.weight", 1792, 2048, 32)
	}
	return m
}

// TestRealSizes holds what inspect says of models of real sizes to the byte budgets of their specifications. [TestFlashSizes]
// does it for deepseek4.
func TestRealSizes(t *testing.T) {
	arithmetic(t)
	skipWithoutHoles(t)
	for _, test := range []struct {
		model                 *realModel
		expert                [2]int64 // in layers with few bits, and with more
		token, experts        int64
		resident, rows        int64
		perPosition, constant int64 // states, F16
	}{
		// The first three leave the norm before the head out of their sums.
		// specs/qwen3moe.md 8.2 and 5; all experts are 24 layers of each kind.
		{qwen3Real(), [2]int64{2_654_208, 3_059_712}, 1_097_072_640, 24 * 128 * (2_654_208 + 3_059_712),
			567_263_232 + 255_252_480 + 4*2048, 175_030_272, 98_304, 0},
		// specs/qwen35moe.md 12 and 10.
		{qwen35Real(), [2]int64{1_769_472, 2_039_808}, 609_484_800, 20 * 256 * (1_769_472 + 2_039_808),
			76_185_600 + 872_819_200 + 417_177_600 + 4*2048, 286_064_640, 20_480, 65_863_680},
		// specs/gpt-oss.md 8, where biases count as part of an expert, and 5: sliding layers keep 128 positions.
		{gptOSSReal(), [2]int64{3 * 4_406_400, 3 * 4_406_400}, 1_272_360_960 - 24*4*3*11_520, 24 * 32 * 3 * 4_406_400,
			687_000_576 + 615_329_280 + 4*2880 + 24*32*3*11_520, 615_329_280, 24_576, 12 * 262_144},
		// specs/gemma4.md 5, the plain recipe, and 4.8: sliding layers keep 1024 positions.
		{gemma4Real(), [2]int64{3_593_216, 4_336_640}, 945_635_328, 15_130_165_248, 1_650_027_640, 0, 20_480, 204_800 * 1024},
		// specs/lfm2moe.md 4 and 3.5.
		{lfm2Real(), [2]int64{6_193_152, 7_139_328}, 582_844_416, 4_662_755_328, 379_631_360, 0, 12_288, 294_912},
	} {
		t.Run(test.model.arch, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "model.gguf")
			require.NoError(t, test.model.WriteHead(path))
			o, err := engine.Inspect(t.Context(), engine.Config{Model: path, Recipes: builtin{}})
			require.NoError(t, err)
			defer o.File.Close()
			m := o.Model
			require.Empty(t, o.Plan.Unused)
			sizes := map[int64]bool{}
			for i := range m.Banks {
				sizes[m.Banks[i].ExpertBytes()] = true
			}
			require.Equal(t, map[int64]bool{test.expert[0]: true, test.expert[1]: true}, sizes)
			require.Equal(t, test.token, m.TokenBytes())
			require.Equal(t, test.experts, m.ExpertBytes())
			var resident, rows int64
			for i := range m.Weights {
				if w := &m.Weights[i]; w.Resident() {
					resident += w.Bytes()
				} else {
					rows += w.Bytes()
				}
			}
			require.Equal(t, test.rows, rows)
			require.Equal(t, test.resident, resident)
			for _, context := range []int64{4096, 32768} {
				require.Equal(t, test.constant+context*test.perPosition, m.StateBytes(context, 2), "context of %d", context)
			}
		})
	}
}
