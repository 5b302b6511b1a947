package cpu_test

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/engine/gguf"
	"github.com/bigmoe/bigmoe/sdk/compute"
	"github.com/bigmoe/bigmoe/sdk/compute/optable"
	"github.com/bigmoe/bigmoe/sdk/plan"
)

type attrs = optable.Attrs

// reader makes the plan of a file with the help of its metadata.
type reader struct {
	t    *testing.T
	f    *gguf.File
	plan *plan.Plan
}

func (r *reader) value(key string) (gguf.Value, bool) {
	return r.f.Get(r.plan.Architecture + "." + key)
}

func (r *reader) int(key string) int {
	v, ok := r.value(key)
	require.True(r.t, ok, key)
	n, err := v.Uint()
	require.NoError(r.t, err)
	return int(n)
}

func (r *reader) float(key string, absent float64) float64 {
	v, ok := r.value(key)
	if !ok {
		return absent
	}
	n, err := v.Float()
	require.NoError(r.t, err)
	return n
}

// weight declares the tensor NAME as a weight of the same name, with the shape the file has unless one is given.
func (r *reader) weight(name string, residency plan.Residency, shape ...uint64) {
	if shape == nil {
		tensor, ok := r.f.Tensor(name)
		require.True(r.t, ok, name)
		shape = tensor.Dims
	}
	r.plan.Weights = append(r.plan.Weights, &plan.Weight{Name: name, Sources: []*plan.Source{{Tensor: name}}, Shape: shape, Residency: residency})
}

// planOf describes a qwen3moe or qwen2moe file (specs/qwen3moe.md), as the recipes do.
func planOf(t *testing.T, f *gguf.File) *plan.Plan {
	v, _ := f.Get("general.architecture")
	arch, err := v.String()
	require.NoError(t, err)
	r := &reader{t: t, f: f, plan: &plan.Plan{Schema: plan.SchemaVersion, Architecture: arch, Recipe: arch}}
	qwen2 := arch == "qwen2moe"
	layers, embedding, experts, used := r.int("block_count"), r.int("embedding_length"), r.int("expert_count"), r.int("expert_used_count")
	heads, kvHeads, hidden := r.int("attention.head_count"), r.int("attention.head_count_kv"), r.int("expert_feed_forward_length")
	dim := embedding / heads
	if !qwen2 {
		dim = r.int("attention.key_length")
	}
	eps := r.float("attention.layer_norm_rms_epsilon", 0)
	rope := attrs{"head_dim": dim, "n_rot": dim, "base": r.float("rope.freq_base", 10000)}
	if v, ok := r.value("rope.scaling.type"); ok {
		kind, err := v.String()
		require.NoError(t, err)
		rope["scaling"], rope["factor"] = kind, r.float("rope.scaling.factor", 1)
		rope["original_context"] = r.int("rope.scaling.original_context_length")
		rope["magnitude"] = 1 + 0.1*math.Log(r.float("rope.scaling.factor", 1))
	}
	table, ok := f.Tensor("token_embd.weight")
	require.True(t, ok)
	vocabulary := table.Dims[1]
	p := r.plan
	p.Model = &plan.Model{Layers: uint32(layers), Embedding: uint32(embedding), Vocabulary: uint32(vocabulary), ContextLength: 512,
		Experts: uint32(experts), ExpertsUsed: uint32(used)}
	r.weight("token_embd.weight", plan.Residency_ROWS)
	p.Blocks = append(p.Blocks, &plan.Block{Kind: plan.BlockKind_EMBEDDING, Ops: []*plan.Op{optable.Op("embed", "", "token_embd.weight", "h", nil)}})
	h := "h"
	for i := range layers {
		b := &plan.Block{Kind: plan.BlockKind_LAYER, Layer: uint32(i)}
		add := func(kind, in, weights, out string, a attrs) *plan.Op {
			qualify := func(list, prefix, suffix string) string {
				l := strings.Fields(list)
				for j, s := range l {
					if s == "h" && prefix == "v" {
						l[j] = h
					} else if s != "-" {
						l[j] = fmt.Sprintf("%s%d.%s%s", map[string]string{"v": "", "w": "blk."}[prefix], i, s, suffix)
					}
				}
				return strings.Join(l, " ")
			}
			o := optable.Op(kind, qualify(in, "v", ""), qualify(weights, "w", ""), qualify(out, "v", ""), a)
			for _, w := range o.Weights {
				if w == fmt.Sprintf("blk.%d.ffn_gate_inp_shexp.weight", i) {
					r.weight(w, plan.Residency_RESIDENT, uint64(embedding), 1)
				} else if w != "" {
					r.weight(w, plan.Residency_RESIDENT)
				}
			}
			b.Ops = append(b.Ops, o)
			return o
		}
		add("rms_norm", "h", "attn_norm.weight", "a", attrs{"eps": eps})
		q, k := "q", "k"
		if qwen2 {
			add("linear", "a", "attn_q.weight attn_q.bias", "q", nil)
			add("linear", "a", "attn_k.weight attn_k.bias", "k", nil)
			add("linear", "a", "attn_v.weight attn_v.bias", "v", nil)
		} else {
			add("linear", "a", "attn_q.weight", "q", nil)
			add("linear", "a", "attn_k.weight", "k", nil)
			add("linear", "a", "attn_v.weight", "v", nil)
			add("rms_norm", "q", "attn_q_norm.weight", "qn", attrs{"eps": eps, "group": dim})
			add("rms_norm", "k", "attn_k_norm.weight", "kn", attrs{"eps": eps, "group": dim})
			q, k = "qn", "kn"
		}
		add("rope", q, "", "qr", rope)
		add("rope", k, "", "kr", rope)
		state := fmt.Sprintf("kv.%d", i)
		p.States = append(p.States, &plan.State{Name: state, Kind: plan.StateKind_KV, KeyWidth: uint64(kvHeads * dim), ValueWidth: uint64(kvHeads * dim)})
		add("attention", "qr kr v", "", "o", attrs{"heads": heads, "kv_heads": kvHeads, "head_dim": dim, "scale": 1 / math.Sqrt(float64(dim))}).States = []string{state}
		add("linear", "o", "attn_output.weight", "p", nil)
		add("add", "h p", "", "mid", nil)
		add("rms_norm", "mid", "ffn_norm.weight", "x", attrs{"eps": eps})
		add("linear", "x", "ffn_gate_inp.weight", "router", attrs{"exact": true})
		if qwen2 {
			add("route", "router", "", "ids weights", attrs{"top_k": used})
		} else {
			add("route", "router", "", "ids weights", attrs{"top_k": used, "normalize": true, "norm_floor": 6.103515625e-5})
		}
		bank := &plan.Bank{Name: fmt.Sprintf("bank.%d", i), Layer: uint32(i), Experts: uint32(experts), Parts: []*plan.Part{
			{Role: plan.Role_GATE, In: uint64(embedding), Out: uint64(hidden), Tensors: []string{fmt.Sprintf("blk.%d.ffn_gate_exps.weight", i)}},
			{Role: plan.Role_UP, In: uint64(embedding), Out: uint64(hidden), Tensors: []string{fmt.Sprintf("blk.%d.ffn_up_exps.weight", i)}},
			{Role: plan.Role_DOWN, In: uint64(hidden), Out: uint64(embedding), Tensors: []string{fmt.Sprintf("blk.%d.ffn_down_exps.weight", i)}},
		}}
		p.Banks = append(p.Banks, bank)
		m := "m"
		if qwen2 { // the shared expert stands between route and experts, so that it computes while experts are read
			add("linear", "x", "ffn_gate_shexp.weight", "sg", nil)
			add("linear", "x", "ffn_up_shexp.weight", "su", nil)
			add("glu", "sg su", "", "sh", nil)
			add("linear", "sh", "ffn_down_shexp.weight", "sd", nil)
			add("linear", "x", "ffn_gate_inp_shexp.weight", "sl", attrs{"exact": true})
			add("unary", "sl", "", "sw", attrs{"fn": "sigmoid"})
			add("mul", "sd sw", "", "s", nil)
		}
		add("experts", "x ids weights", "", "m", nil).Bank = bank.Name
		if qwen2 {
			add("add", "m s", "", "ms", nil)
			m = "ms"
		}
		add("add", "mid "+m, "", "out", nil)
		h = fmt.Sprintf("%d.out", i)
		p.Blocks = append(p.Blocks, b)
	}
	r.weight("output_norm.weight", plan.Residency_RESIDENT)
	r.weight("output.weight", plan.Residency_RESIDENT)
	p.Blocks = append(p.Blocks, &plan.Block{Kind: plan.BlockKind_HEAD, Ops: []*plan.Op{
		optable.Op("rms_norm", h, "output_norm.weight", "z", attrs{"eps": eps}),
		optable.Op("linear", "z", "output.weight", "logits", nil),
	}})
	return p
}

// openModel reads a file whole. Its region has room for slots experts.
func openModel(t *testing.T, path string, slots int) *optable.Model {
	f, err := gguf.Open(path)
	require.NoError(t, err)
	defer f.Close()
	tensor := func(name string) (gguf.Tensor, []byte) {
		x, ok := f.Tensor(name)
		require.True(t, ok, name)
		data := make([]byte, x.Bytes)
		_, err := f.Shards()[x.Shard].ReadAt(data, x.Offset)
		require.NoError(t, err)
		return x, data
	}
	p := planOf(t, f)
	values, err := plan.Validate(p)
	require.NoError(t, err)
	m := &optable.Model{Bound: &compute.Bound{Plan: p, Values: values, Options: &compute.Options{Context: 64, Batch: 64, LogitRows: 64, Threads: 1}}}
	for _, w := range p.Weights {
		x, data := tensor(w.Name)
		rowBytes, err := x.Type.RowBytes(int64(w.Shape[0]))
		require.NoError(t, err)
		m.Bound.Weights = append(m.Bound.Weights, &compute.BoundWeight{Type: uint32(x.Type), RowBytes: uint64(rowBytes)})
		if w.Residency == plan.Residency_ROWS {
			m.Table, data = data, nil
		}
		m.Dense = append(m.Dense, data)
	}
	for _, bank := range p.Banks {
		b := &compute.BoundBank{}
		var parts [][]byte
		for _, part := range bank.Parts {
			x, data := tensor(part.Tensors[0])
			rowBytes, err := x.Type.RowBytes(int64(part.In))
			require.NoError(t, err)
			b.Parts = append(b.Parts, &compute.BoundPart{Type: uint32(x.Type), RowBytes: uint64(rowBytes)})
			parts = append(parts, data)
		}
		m.Bound.Banks, m.Banks = append(m.Bound.Banks, b), append(m.Banks, parts)
	}
	place(t, m, slots)
	return m
}

// place gives m a region of its own.
func place(t *testing.T, m *optable.Model, slots int) {
	require.NoError(t, m.Place(slots, func(n uint64) ([]byte, error) { return make([]byte, n), nil }))
}

// build makes a case ready to run.
func build(t *testing.T, c *optable.Case) *optable.Model {
	m, err := c.Build()
	require.NoError(t, err)
	place(t, m, 6)
	return m
}
