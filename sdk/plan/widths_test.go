package plan

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// opCase is one op among operands of the given sizes, and what the rules make of it.
type opCase struct {
	kind    string
	in      []int64    // widths; 0 leaves the operand out
	weights [][]uint64 // shapes; nil leaves the operand out
	states  []*State   // nil leaves the operand out
	bank    *Bank
	attrs   []any // name, value, name, value …
	out     []int64
	bad     string // part of the error, if the op is to be refused
}

func kv(key, value, window uint64) *State {
	return &State{Kind: StateKind_KV, KeyWidth: key, ValueWidth: value, Window: window}
}
func compressed(width, ratio uint64) *State {
	return &State{Kind: StateKind_COMPRESSED, KeyWidth: width, Ratio: ratio}
}
func history(kind StateKind, elements uint64) *State {
	return &State{Kind: kind, Elements: elements, Rewind: Rewind_SNAPSHOT}
}
func experts(embedding, hidden uint64) *Bank {
	return &Bank{Experts: 4, Parts: []*Part{
		{Role: Role_GATE_UP, Tensors: []string{"gu"}, In: embedding, Out: 2 * hidden},
		{Role: Role_DOWN, Tensors: []string{"d"}, In: hidden, Out: embedding}}}
}

type shapes = [][]uint64

var opCases = []opCase{
	{kind: "embed", weights: shapes{{8, 10}}, attrs: []any{"scale", 2.0}, out: []int64{8}},
	{kind: "embed", weights: shapes{{8}}, bad: "needs 2 dimensions"},
	{kind: "token_row", weights: shapes{{6, 10}}, out: []int64{6}},
	{kind: "rms_norm", in: []int64{8}, weights: shapes{{8}}, attrs: []any{"eps", 1e-6}, out: []int64{8}},
	{kind: "rms_norm", in: []int64{8}, weights: shapes{nil}, attrs: []any{"eps", 1e-6, "group", 4}, out: []int64{8}},
	{kind: "rms_norm", in: []int64{8}, weights: shapes{{4}}, attrs: []any{"eps", 1e-6, "group", 4}, out: []int64{8}},
	{kind: "rms_norm", in: []int64{8}, attrs: []any{"eps", 1e-6, "group", 3}, bad: "not a multiple of the group 3"},
	{kind: "l2_norm", in: []int64{8}, attrs: []any{"eps", 1e-6, "group", 2, "mode", "max"}, out: []int64{8}},
	{kind: "l2_norm", in: []int64{8}, attrs: []any{"eps", 1e-6, "group", 5}, bad: "group 5"},
	{kind: "linear", in: []int64{8}, weights: shapes{{8, 5}, {5}}, out: []int64{5}},
	{kind: "linear", in: []int64{8}, weights: shapes{{2, 12}}, attrs: []any{"groups", 4}, out: []int64{12}},
	{kind: "linear", in: []int64{8}, weights: shapes{{2, 10}}, attrs: []any{"groups", 4}, bad: "4 group(s)"},
	{kind: "linear", in: []int64{8}, weights: shapes{{8, 5}, {6}}, bad: "needs [5]"},
	{kind: "linear", in: []int64{8}, weights: shapes{{8}}, bad: "needs 2 dimensions"},
	{kind: "rope", in: []int64{16}, weights: shapes{{2}}, attrs: []any{"head_dim", 8, "n_rot", 4, "offset", 4}, out: []int64{16}},
	{kind: "rope", in: []int64{16}, attrs: []any{"head_dim", 8, "n_rot", 4, "offset", 5}, bad: "do not fit together"},
	{kind: "rope", in: []int64{16}, attrs: []any{"head_dim", 8, "n_rot", 3}, bad: "do not fit together"},
	{kind: "rope", in: []int64{16}, attrs: []any{"head_dim", 5, "n_rot", 4}, bad: "do not fit together"},
	{kind: "rope", in: []int64{16}, weights: shapes{{3}}, attrs: []any{"head_dim", 8, "n_rot", 4}, bad: "needs [2]"},
	{kind: "attention", in: []int64{16, 8, 6}, weights: shapes{{4}}, states: []*State{kv(8, 6, 0)},
		attrs: []any{"heads", 4, "kv_heads", 2, "head_dim", 4, "value_dim", 3, "scale", 0.5}, out: []int64{12}},
	{kind: "attention", in: []int64{16}, states: []*State{kv(8, 6, 0)},
		attrs: []any{"heads", 4, "kv_heads", 2, "head_dim", 4, "value_dim", 3, "scale", 0.5}, out: []int64{12}},
	{kind: "attention", in: []int64{16}, states: []*State{kv(8, 6, 0)},
		attrs: []any{"heads", 4, "kv_heads", 2, "head_dim", 4, "value_dim", 4, "scale", 0.5}, bad: "value width 6, needs 8"},
	{kind: "attention", in: []int64{16, 8}, states: []*State{kv(8, 0, 16), compressed(8, 4)},
		attrs: []any{"heads", 4, "kv_heads", 2, "head_dim", 4, "scale", 0.5, "window", 16}, out: []int64{16}},
	{kind: "attention", in: []int64{16, 8, 0, -5}, states: []*State{kv(8, 0, 0), compressed(8, 4)},
		attrs: []any{"heads", 4, "kv_heads", 2, "head_dim", 4, "scale", 0.5}, out: []int64{16}},
	{kind: "attention", in: []int64{16, 8, 0, -5}, states: []*State{kv(8, 0, 0)},
		attrs: []any{"heads", 4, "kv_heads", 2, "head_dim", 4, "scale", 0.5}, bad: "rows without a state"},
	{kind: "attention", in: []int64{16, 8}, states: []*State{kv(8, 0, 0)},
		attrs: []any{"heads", 4, "kv_heads", 2, "head_dim", 4, "value_dim", 2, "scale", 0.5}, bad: "keys of cache"},
	{kind: "attention", in: []int64{16, 8}, states: []*State{kv(8, 8, 0)},
		attrs: []any{"heads", 4, "kv_heads", 2, "head_dim", 4, "scale", 0.5}, bad: "v is to be given exactly"},
	{kind: "attention", in: []int64{16, 8}, states: []*State{kv(8, 0, 0), compressed(4, 4)},
		attrs: []any{"heads", 4, "kv_heads", 2, "head_dim", 4, "scale", 0.5}, bad: "compressed rows of 4"},
	{kind: "attention", in: []int64{16, 8}, states: []*State{kv(8, 0, 8)},
		attrs: []any{"heads", 4, "kv_heads", 2, "head_dim", 4, "scale", 0.5, "window", 9}, bad: "keeps 8 positions, attention sees 9"},
	{kind: "attention", in: []int64{12, 8, 8}, states: []*State{kv(8, 8, 0)},
		attrs: []any{"heads", 3, "kv_heads", 2, "head_dim", 4, "scale", 0.5}, bad: "not a multiple of 2 kv heads"},
	{kind: "attention", in: []int64{15, 8, 8}, states: []*State{kv(8, 8, 0)},
		attrs: []any{"heads", 4, "kv_heads", 2, "head_dim", 4, "scale", 0.5}, bad: "q has width 15"},
	{kind: "attention", in: []int64{16, 8, 8}, weights: shapes{{5}}, states: []*State{kv(8, 8, 0)},
		attrs: []any{"heads", 4, "kv_heads", 2, "head_dim", 4, "scale", 0.5}, bad: "needs [4]"},
	{kind: "compress", in: []int64{8, 8}, weights: shapes{{8, 4}, {4}}, states: []*State{history(StateKind_RECURRENT, 128), compressed(4, 4)},
		attrs: []any{"ratio", 4, "dim", 4, "overlap", true, "eps", 1e-6, "n_rot", 2}},
	{kind: "compress", in: []int64{4, 4}, weights: shapes{{4, 4}, {4}}, states: []*State{history(StateKind_RECURRENT, 32), compressed(4, 4)},
		attrs: []any{"ratio", 4, "dim", 4, "eps", 1e-6, "n_rot", 2}},
	{kind: "compress", in: []int64{4, 4}, weights: shapes{{4, 4}, {4}}, states: []*State{history(StateKind_RECURRENT, 31), compressed(4, 4)},
		attrs: []any{"ratio", 4, "dim", 4, "eps", 1e-6, "n_rot", 2}, bad: "31 elements, need 32"},
	{kind: "compress", in: []int64{4, 4}, weights: shapes{{4, 4}, {4}}, states: []*State{history(StateKind_RECURRENT, 32), compressed(4, 4)},
		attrs: []any{"ratio", 4, "dim", 4, "eps", 1e-6, "n_rot", 6}, bad: "n_rot 6 of 4"},
	{kind: "compress", in: []int64{4, 8}, weights: shapes{{4, 4}, {4}}, states: []*State{history(StateKind_RECURRENT, 32), compressed(4, 4)},
		attrs: []any{"ratio", 4, "dim", 4, "eps", 1e-6, "n_rot", 2}, bad: "widths 4 and 8, need 4"},
	{kind: "compress", in: []int64{4, 4}, weights: shapes{{4, 3}, {4}}, states: []*State{history(StateKind_RECURRENT, 32), compressed(4, 4)},
		attrs: []any{"ratio", 4, "dim", 4, "eps", 1e-6, "n_rot", 2}, bad: "ape is [4 3]"},
	{kind: "compress", in: []int64{4, 4}, weights: shapes{{4, 4}, {4}}, states: []*State{history(StateKind_RECURRENT, 32), compressed(4, 8)},
		attrs: []any{"ratio", 4, "dim", 4, "eps", 1e-6, "n_rot", 2}, bad: "per 4 positions"},
	{kind: "index_top", in: []int64{8, 2}, states: []*State{compressed(4, 4)}, attrs: []any{"heads", 2, "dim", 4, "top_k", 5, "scale", 0.5}, out: []int64{5}},
	{kind: "index_top", in: []int64{8, 3}, states: []*State{compressed(4, 4)}, attrs: []any{"heads", 2, "dim", 4, "top_k", 5}, bad: "do not fit 2 heads of 4"},
	{kind: "route", in: []int64{8}, weights: shapes{{8}}, attrs: []any{"top_k", 2, "gating", "sigmoid", "normalize", true, "norm_floor", 6e-5, "scale", 1.5}, out: []int64{2, 2}},
	{kind: "route", in: []int64{8, -2}, attrs: []any{"top_k", 2, "gating", "sqrt_softplus"}, out: []int64{2, 2}},
	{kind: "route", in: []int64{8, -3}, attrs: []any{"top_k", 2}, bad: "picks have width 3, top_k is 2"},
	{kind: "route", in: []int64{8}, weights: shapes{{7}}, attrs: []any{"top_k", 2}, bad: "needs [8]"},
	{kind: "route", in: []int64{8}, attrs: []any{"top_k", 9}, bad: "top_k 9 of 8"},
	{kind: "route", in: []int64{8}, attrs: []any{"top_k", 4, "groups", 4, "groups_used", 2}, out: []int64{4, 4}},
	{kind: "route", in: []int64{8}, attrs: []any{"top_k", 8, "groups", 4}, out: []int64{8, 8}},
	{kind: "route", in: []int64{8}, attrs: []any{"top_k", 5, "groups", 4, "groups_used", 2}, bad: "top_k 5 of 2 groups of 2"},
	{kind: "route", in: []int64{8}, attrs: []any{"top_k", 2, "groups", 3}, bad: "3 of 3 groups of 8"},
	{kind: "route", in: []int64{8}, attrs: []any{"top_k", 2, "groups", 4, "groups_used", 5}, bad: "5 of 4 groups"},
	{kind: "route", in: []int64{8, -2}, attrs: []any{"top_k", 2, "groups", 4}, bad: "picks are given"},
	{kind: "experts", in: []int64{8, -2, 2}, bank: experts(8, 6), weights: shapes{{6, 4}, {6, 4}, {8, 4}, {4}},
		attrs: []any{"activation", "swiglu_oai", "limit", 7.0, "alpha", 1.702}, out: []int64{8}},
	{kind: "experts", in: []int64{9, -2, 2}, bank: experts(8, 6), bad: "take 8"},
	{kind: "experts", in: []int64{8, -2, 3}, bank: experts(8, 6), bad: "2 ids, 3 weights"},
	{kind: "experts", in: []int64{8, -2, 2}, bank: experts(8, 6), weights: shapes{{8, 4}}, bad: "needs [6 4]"},
	{kind: "experts", in: []int64{8, -2, 2}, bank: experts(8, 6), weights: shapes{nil, nil, nil, {5}}, bad: "needs [4]"},
	{kind: "glu", in: []int64{6, 6}, out: []int64{6}},
	{kind: "glu", in: []int64{6}, out: []int64{3}},
	{kind: "glu", in: []int64{5}, bad: "odd width 5"},
	{kind: "glu", in: []int64{6, 7}, bad: "widths 6 and 7"},
	{kind: "add", in: []int64{6, 6}, out: []int64{6}},
	{kind: "add", in: []int64{6, 1}, bad: "widths 6 and 1"},
	{kind: "mul", in: []int64{6, 6}, out: []int64{6}},
	{kind: "mul", in: []int64{6, 1}, out: []int64{6}},
	{kind: "mul", in: []int64{6, 2}, out: []int64{6}},
	{kind: "mul", in: []int64{6, 4}, bad: "widths 6 and 4"},
	{kind: "mul", in: []int64{6, 12}, bad: "widths 6 and 12"},
	{kind: "add_weight", in: []int64{6}, weights: shapes{{3}}, out: []int64{6}},
	{kind: "add_weight", in: []int64{6}, weights: shapes{{4}}, bad: "does not repeat"},
	{kind: "mul_weight", in: []int64{6}, weights: shapes{{1}}, out: []int64{6}},
	{kind: "mul_weight", in: []int64{6}, weights: shapes{{6, 1}}, bad: "does not repeat"},
	{kind: "mul_weight", in: []int64{12}, weights: shapes{{3}}, attrs: []any{"run", 2}, out: []int64{12}},
	{kind: "mul_weight", in: []int64{12}, weights: shapes{{3}}, attrs: []any{"run", 3}, bad: "each number for 3 elements"},
	{kind: "mul_weight", in: []int64{12}, weights: shapes{{3}}, attrs: []any{"run", 5}, bad: "does not repeat"},
	{kind: "scale", in: []int64{6}, attrs: []any{"factor", -2.0}, out: []int64{6}},
	{kind: "unary", in: []int64{6}, attrs: []any{"fn", "softplus"}, out: []int64{6}},
	{kind: "softcap", in: []int64{6}, attrs: []any{"cap", 30.0}, out: []int64{6}},
	{kind: "slice", in: []int64{12}, attrs: []any{"group", 4, "start", 1, "width", 3}, out: []int64{9}},
	{kind: "slice", in: []int64{12}, attrs: []any{"start", 10, "width", 2}, out: []int64{2}},
	{kind: "slice", in: []int64{12}, attrs: []any{"start", 10, "width", 3}, bad: "10+3 of a group of 12"},
	{kind: "concat", in: []int64{2, 3}, out: []int64{5}},
	{kind: "concat", in: []int64{4, 6}, attrs: []any{"groups", 2}, out: []int64{10}},
	{kind: "concat", in: []int64{4, 5}, attrs: []any{"groups", 2}, bad: "are not 2 groups"},
	{kind: "repeat", in: []int64{4}, attrs: []any{"times", 3}, out: []int64{12}},
	{kind: "repeat", in: []int64{4096}, attrs: []any{"times", 1 << 20}, bad: "has width 4294967296"},
	{kind: "short_conv", in: []int64{4}, weights: shapes{{3, 4}}, states: []*State{history(StateKind_CONVOLUTION, 8)}, attrs: []any{"activation", "silu"}, out: []int64{4}},
	{kind: "short_conv", in: []int64{4}, weights: shapes{{1, 4}}, states: []*State{history(StateKind_CONVOLUTION, 8)}, bad: "at least 2 taps"},
	{kind: "short_conv", in: []int64{4}, weights: shapes{{3, 4}}, states: []*State{history(StateKind_CONVOLUTION, 9)}, bad: "9 elements, need 8"},
	{kind: "gated_delta_net", in: []int64{6, 6, 12, 4, 4}, states: []*State{history(StateKind_RECURRENT, 36)},
		attrs: []any{"key_heads", 2, "value_heads", 4, "head_dim", 3, "map", "grouped"}, out: []int64{12}},
	{kind: "gated_delta_net", in: []int64{6, 6, 12, 4, 3}, states: []*State{history(StateKind_RECURRENT, 36)},
		attrs: []any{"key_heads", 2, "value_heads", 4, "head_dim", 3}, bad: "operand 4 has width 3, need 4"},
	{kind: "gated_delta_net", in: []int64{6, 6, 12, 4, 12}, states: []*State{history(StateKind_RECURRENT, 36)},
		attrs: []any{"key_heads", 2, "value_heads", 4, "head_dim", 3}, out: []int64{12}},
	{kind: "gated_delta_net", in: []int64{6, 6, 12, 12, 4}, states: []*State{history(StateKind_RECURRENT, 36)},
		attrs: []any{"key_heads", 2, "value_heads", 4, "head_dim", 3}, bad: "operand 3 has width 12, need 4"},
	{kind: "gated_delta_net", in: []int64{6, 6, 12, 4, 4}, states: []*State{history(StateKind_RECURRENT, 35)},
		attrs: []any{"key_heads", 2, "value_heads", 4, "head_dim", 3}, bad: "need 36"},
	{kind: "hc_mix", in: []int64{8}, weights: shapes{{8, 24}, {3}, {24}}, attrs: []any{"streams", 4, "iterations", 20, "eps", 1e-6, "hc_eps", 1e-5}, out: []int64{4, 4, 16}},
	{kind: "hc_mix", in: []int64{9}, weights: shapes{{9, 24}, {3}, {24}}, attrs: []any{"streams", 4, "iterations", 20, "eps", 1e-6}, bad: "9 is not 4 streams"},
	{kind: "hc_mix", in: []int64{8}, weights: shapes{{8, 24}, {4}, {24}}, attrs: []any{"streams", 4, "iterations", 20, "eps", 1e-6}, bad: "needs [3]"},
	{kind: "hc_head", in: []int64{8}, weights: shapes{{8, 4}, {1}, {4}}, attrs: []any{"streams", 4, "eps", 1e-6}, out: []int64{4}},
	{kind: "hc_head", in: []int64{8}, weights: shapes{{8, 5}, {1}, {4}}, attrs: []any{"streams", 4, "eps", 1e-6}, bad: "needs [8 4]"},
	{kind: "hc_collapse", in: []int64{8, 4}, attrs: []any{"streams", 4}, out: []int64{2}},
	{kind: "hc_collapse", in: []int64{8, 3}, attrs: []any{"streams", 4}, bad: "4 streams with 3 factors"},
	{kind: "hc_expand", in: []int64{8, 2, 4, 16}, attrs: []any{"streams", 4}, out: []int64{8}},
	{kind: "hc_expand", in: []int64{8, 2, 4, 15}, attrs: []any{"streams", 4}, bad: "do not fit 4 streams"},
}

// plan wraps the op: inputs come from tables of their width, a negative width from a table of integers.
func (c opCase) plan() *Plan {
	p := &Plan{Schema: 1, Recipe: "test", Model: &Model{Layers: 1, Vocabulary: 10, ContextLength: 8}}
	weight := func(name string, shape []uint64, r Residency) {
		p.Weights = append(p.Weights, &Weight{Name: name, Sources: []*Source{{Tensor: name}}, Shape: shape, Residency: r})
	}
	weight("logits", []uint64{10, 10}, Residency_ROWS)
	embedding := &Block{Kind: BlockKind_EMBEDDING, Ops: []*Op{{Kind: "embed", Weights: []string{"logits"}, Out: []string{Logits}}}}
	op := &Op{Kind: c.kind}
	for i, width := range c.in {
		if width == 0 {
			op.In = append(op.In, "")
			continue
		}
		name, kind := fmt.Sprintf("in%d", i), "embed"
		if width < 0 {
			kind, width = "token_row", -width
		}
		weight(name, []uint64{uint64(width), 10}, Residency_ROWS)
		embedding.Ops = append(embedding.Ops, &Op{Kind: kind, Weights: []string{name}, Out: []string{name}})
		op.In = append(op.In, name)
	}
	for i, shape := range c.weights {
		name := ""
		if shape != nil {
			name = fmt.Sprintf("w%d", i)
			weight(name, shape, Residency_RESIDENT)
		}
		op.Weights = append(op.Weights, name)
	}
	for i, s := range c.states {
		state := &State{Kind: s.Kind, KeyWidth: s.KeyWidth, ValueWidth: s.ValueWidth, Window: s.Window, Ratio: s.Ratio, Elements: s.Elements, Rewind: s.Rewind}
		state.Name = fmt.Sprintf("s%d", i)
		p.States = append(p.States, state)
		op.States = append(op.States, state.Name)
	}
	if c.bank != nil {
		p.Banks = []*Bank{{Name: "bank", Experts: c.bank.Experts, Parts: c.bank.Parts}}
		op.Bank = "bank"
	}
	for i := 0; i < len(c.attrs); i += 2 {
		a := &Attr{Name: c.attrs[i].(string)}
		switch v := c.attrs[i+1].(type) {
		case int:
			a.Value = &Attr_I{I: int64(v)}
		case float64:
			a.Value = &Attr_F{F: v}
		case string:
			a.Value = &Attr_S{S: v}
		case bool:
			a.Value = &Attr_B{B: v}
		}
		op.Attrs = append(op.Attrs, a)
	}
	spec, _ := Lookup(c.kind)
	for i := range spec.Out {
		op.Out = append(op.Out, fmt.Sprintf("out%d", i))
	}
	p.Blocks = []*Block{embedding, {Kind: BlockKind_LAYER, Ops: []*Op{op}}, {Kind: BlockKind_HEAD}}
	return p
}

func TestWidths(t *testing.T) {
	covered := map[string]bool{}
	for i, c := range opCases {
		t.Run(fmt.Sprint(i, " ", c.kind, " ", strings.ReplaceAll(c.bad, " ", "_")), func(t *testing.T) {
			values, err := Validate(c.plan())
			if c.bad != "" {
				require.ErrorContains(t, err, c.bad)
				require.ErrorContains(t, err, c.kind)
				return
			}
			require.NoError(t, err)
			covered[c.kind] = true
			spec, _ := Lookup(c.kind)
			for k, want := range c.out {
				require.Equal(t, Value{Width: want, Integer: spec.Out[k].Integer}, values[fmt.Sprintf("out%d", k)])
			}
			require.Len(t, c.out, len(spec.Out))
		})
	}
	for _, spec := range Ops() {
		require.True(t, covered[spec.Kind], spec.Kind)
	}
}
