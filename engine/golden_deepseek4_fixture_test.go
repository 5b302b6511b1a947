package engine_test

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/bigmoe/bigmoe/engine/gguf/gguftest"
	"github.com/bigmoe/bigmoe/sdk/compute"
	"github.com/bigmoe/bigmoe/sdk/dtype"
	"github.com/bigmoe/bigmoe/sdk/plan"
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

// fixture writes the model; change may alter the values of a tensor.
func fixture(t *testing.T, change func(name string, values []float32)) (path string) {
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
		values := fixtureValues(name, dims)
		if change != nil {
			change(name, values)
		}
		b.Tensor(name, dtype.F32, dims, gguftest.Float32s(values...))
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

func runFixture(t *testing.T, path string, tokens int, b compute.Backend) *observed {
	cfg := config(path, backends()["in process"])
	cfg.Context = 512
	if b != nil {
		cfg.Backend.InProcess = b
	}
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
	o := runFixture(t, fixture(t, nil), fixtureTokens, nil)
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

// misled is a backend that runs another plan than the one it is given.
type misled struct {
	compute.Backend
	change func(p *plan.Plan, v plan.Values)
}

func (m misled) bound(b *compute.Bound) *compute.Bound {
	out := *b
	out.Plan, out.Values = proto.Clone(b.Plan).(*plan.Plan), maps.Clone(b.Values)
	m.change(out.Plan, out.Values)
	return &out
}

func (m misled) Prepare(b *compute.Bound) (*compute.Needs, error) {
	return m.Backend.Prepare(m.bound(b))
}

func (m misled) Load(b *compute.Bound, r *compute.Region) (compute.Sequence, error) {
	return m.Backend.Load(m.bound(b), r)
}

// eachOp rewrites every op of some layers (nil: all blocks) as the ops that f returns.
func eachOp(layers []int, f func(op *plan.Op, v plan.Values) []*plan.Op) func(*plan.Plan, plan.Values) {
	return func(p *plan.Plan, v plan.Values) {
		for _, b := range p.Blocks {
			if layers != nil && (b.Kind != plan.BlockKind_LAYER || !slices.Contains(layers, int(b.Layer))) {
				continue
			}
			var ops []*plan.Op
			for _, op := range b.Ops {
				ops = append(ops, f(op, v)...)
			}
			b.Ops = ops
		}
	}
}

// setting changes attributes of all ops of some kinds.
func setting(layers []int, kinds string, attrs map[string]any) func(*plan.Plan, plan.Values) {
	return eachOp(layers, func(op *plan.Op, _ plan.Values) []*plan.Op {
		if slices.Contains(strings.Fields(kinds), op.Kind) {
			for name, v := range attrs {
				setAttr(op, name, v)
			}
		}
		return []*plan.Op{op}
	})
}

func setAttr(op *plan.Op, name string, value any) {
	a := &plan.Attr{Name: name}
	switch v := value.(type) {
	case int:
		a.Value = &plan.Attr_I{I: int64(v)}
	case float64:
		a.Value = &plan.Attr_F{F: v}
	case string:
		a.Value = &plan.Attr_S{S: v}
	}
	op.Attrs = append(slices.DeleteFunc(op.Attrs, func(a *plan.Attr) bool { return a.Name == name }), a)
}

// prepared puts ops before an op, the last of which replaces its input i.
func prepared(op *plan.Op, v plan.Values, i int, kinds ...*plan.Op) []*plan.Op {
	last := kinds[len(kinds)-1].Out[0]
	op.In[i] = last
	return append(kinds, op)
}

// made makes an op whose output has a width.
func made(v plan.Values, kind, out string, width int64, attrs map[string]any, in ...string) *plan.Op {
	op := &plan.Op{Kind: kind, In: in, Out: []string{out}}
	for name, value := range attrs {
		setAttr(op, name, value)
	}
	v[out] = plan.Value{Width: width}
	return op
}

func hasOut(op *plan.Op, suffix string) bool {
	return len(op.Out) > 0 && strings.HasSuffix(op.Out[0], suffix)
}

// TestDeepseek4Mistakes is the table of 5.4 as far as plans and weights can make the mistakes: each first shows at the
// position, and by as much, as it says there. What it leaves out are mistakes inside one op: the clamp behind the
// activation, weights from biased scores, compressed rows turned by another position (two), zero entries before the first
// block. Those ops have cases of their own.
func TestDeepseek4Mistakes(t *testing.T) {
	arithmetic(t)
	plain, compressing := []int{0, 1}, []int{2, 3, 4, 5}
	replaced := func(suffix string) func(*plan.Plan, plan.Values) { // an op that does nothing instead
		return eachOp(nil, func(op *plan.Op, v plan.Values) []*plan.Op {
			if !hasOut(op, suffix) {
				return []*plan.Op{op}
			}
			return []*plan.Op{made(v, "scale", op.Out[0], v[op.Out[0]].Width, map[string]any{"factor": 1.0}, op.In[0])}
		})
	}
	before := func(kind string, i int, f func(in string, width int64, v plan.Values) []*plan.Op) func(*plan.Plan, plan.Values) {
		return eachOp(nil, func(op *plan.Op, v plan.Values) []*plan.Op {
			if op.Kind != kind {
				return []*plan.Op{op}
			}
			return prepared(op, v, i, f(op.In[i], v[op.In[i]].Width, v)...)
		})
	}
	yarn := map[string]any{"base": 160000.0, "scaling": "yarn", "factor": 16.0, "original_context": 64}
	halves := func(f func(first, second []float32)) func(string, []float32) {
		return func(name string, values []float32) {
			for dim, prefix := range map[int]string{fixtureHead: ".attn_compressor_", fixtureIndexHead: ".indexer_compressor_"} {
				if strings.HasPrefix(name, "blk.3") || strings.HasPrefix(name, "blk.5") || !strings.Contains(name, prefix) {
					continue
				}
				size := dim // of a half: elements of a row of ape, rows of a matrix
				switch {
				case strings.HasSuffix(name, "_norm.weight"):
					return
				case !strings.HasSuffix(name, "_ape.weight"):
					size *= 64
				}
				for at := 0; at < len(values); at += 2 * size {
					f(values[at:at+size], values[at+size:at+2*size])
				}
			}
		}
	}
	path := fixture(t, nil)
	const tokens = 32 // all of them show before
	right := runFixture(t, path, tokens, nil)
	for _, mistake := range []struct {
		name    string
		first   int
		delta   float64
		plan    func(*plan.Plan, plan.Values)
		weights func(name string, values []float32)
	}{
		{"C used transposed", 0, 0.25, before("hc_expand", 3, func(in string, n int64, v plan.Values) []*plan.Op {
			var ops []*plan.Op
			for i := range 4 {
				column := made(v, "slice", fmt.Sprint(in, ".column", i), 4, map[string]any{"group": 4, "start": i, "width": 1}, in)
				ops = append(ops, column)
				if i > 0 {
					ops = append(ops, made(v, "concat", fmt.Sprint(in, ".columns", i), int64(4*i+4), nil, ops[len(ops)-2].Out[0], column.Out[0]))
				}
			}
			return ops
		}), nil},
		{"post without factor 2", 0, 1.34, before("hc_expand", 2, func(in string, n int64, v plan.Values) []*plan.Op {
			return []*plan.Op{made(v, "scale", in+".half", n, map[string]any{"factor": 0.5}, in)}
		}), nil},
		{"3 Sinkhorn iterations", 0, 0.023, setting(nil, "hc_mix", map[string]any{"iterations": 3}), nil},
		{"no per-head q norm", 0, 0.14, replaced(".q_norm"), nil},
		{"sink left out", 0, 1.70, eachOp(nil, func(op *plan.Op, _ plan.Values) []*plan.Op {
			if op.Kind == "attention" {
				op.Weights = nil
			}
			return []*plan.Op{op}
		}), nil},
		{"router: selection without bias", 0, 0.29, eachOp(nil, func(op *plan.Op, _ plan.Values) []*plan.Op {
			if op.Kind == "route" {
				op.Weights = nil
			}
			return []*plan.Op{op}
		}), nil},
		{"router: weights by sigmoid", 0, 0.11, eachOp(nil, func(op *plan.Op, v plan.Values) []*plan.Op {
			if op.Kind != "route" {
				return []*plan.Op{op}
			}
			weigh := proto.Clone(op).(*plan.Op)
			setAttr(weigh, "gating", "sigmoid")
			weigh.In, weigh.Weights = []string{op.In[0], op.Out[0]}, nil
			weigh.Out[0], op.Out[1] = op.Out[0]+".again", op.Out[1]+".right"
			v[weigh.Out[0]], v[op.Out[1]] = v[op.Out[0]], v[weigh.Out[1]]
			return []*plan.Op{op, weigh}
		}), nil},
		{"no inverse rotation", 1, 0.80, replaced(".o"), nil},
		{"half-split pairs", 1, 1.05, setting(nil, "rope compress", map[string]any{"layout": "neox"}), nil},
		{"compressing layers with base 10000, no yarn", 1, 0.073, setting(compressing, "rope compress", map[string]any{"base": 10000.0, "scaling": "none"}), nil},
		{"plain layers rotated as the others", 1, 0.063, setting(plain, "rope", yarn), nil},
		{"no yarn", 1, 0.037, setting(compressing, "rope compress", map[string]any{"scaling": "none"}), nil},
		{"halves swapped", 3, 1.53, nil, halves(func(first, second []float32) {
			for i := range first {
				first[i], second[i] = second[i], first[i]
			}
		})},
		{"no overlap", 7, 0.36, nil, func(name string, values []float32) {
			if strings.HasSuffix(name, "_ape.weight") { // scores so low that nothing of the block before counts
				halves(func(first, _ []float32) {
					for i := range first {
						first[i] = -1e30
					}
				})(name, values)
			}
		}},
		{"window of one more", 8, 0.76, setting(nil, "attention", map[string]any{"window": 9}), nil},
		{"indexer without relu", 27, 0.47, eachOp(nil, func(op *plan.Op, v plan.Values) []*plan.Op {
			if op.Kind != "index_top" { // x = relu(x) - relu(-x)
				return []*plan.Op{op}
			}
			setAttr(op, "heads", 64)
			var ops []*plan.Op
			for i, in := range op.In {
				n := v[in].Width
				ops = append(ops, made(v, "scale", in+".negative", n, map[string]any{"factor": -1.0}, in), made(v, "concat", in+".both", 2*n, nil, in, in+".negative"))
				op.In[i] = in + ".both"
			}
			return append(ops, op)
		}), nil},
		{"indexer with absolute weights", 27, 0.41, before("index_top", 1, func(in string, n int64, v plan.Values) []*plan.Op {
			relu := map[string]any{"fn": "relu"}
			return []*plan.Op{made(v, "scale", in+".negative", n, map[string]any{"factor": -1.0}, in), made(v, "unary", in+".plus", n, relu, in),
				made(v, "unary", in+".minus", n, relu, in+".negative"), made(v, "add", in+".absolute", n, nil, in+".plus", in+".minus")}
		}), nil},
	} {
		t.Run(mistake.name, func(t *testing.T) {
			var wrong *observed
			if mistake.weights != nil {
				wrong = runFixture(t, fixture(t, mistake.weights), tokens, nil)
			} else {
				wrong = runFixture(t, path, tokens, misled{newCPU(""), mistake.plan})
			}
			for p := range right.logits {
				var worst float64
				for i, v := range right.logits[p] {
					worst = max(worst, math.Abs(float64(v-wrong.logits[p][i])))
				}
				if worst > 1e-5 {
					require.Equal(t, mistake.first, p, "first position that differs, by %v", worst)
					require.InEpsilon(t, mistake.delta, worst, 0.05)
					return
				}
			}
			require.Fail(t, "no logit differs")
		})
	}
}
