package recipes_test

import (
	"maps"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/engine/gguf"
	"github.com/bigmoe/bigmoe/engine/recipehost"
	"github.com/bigmoe/bigmoe/sdk/dtype"
	"github.com/bigmoe/bigmoe/sdk/fault"
	"github.com/bigmoe/bigmoe/sdk/plan"
)

// edited is a model file as it would be with other keys and tensors.
type edited struct {
	recipehost.Source
	keys    map[string]any // nil removes the key
	tensors []gguf.Tensor
}

func edit(t testing.TB, path string) *edited {
	src := recipehost.File(open(t, golden+path))
	return &edited{Source: src, keys: map[string]any{}, tensors: slices.Clone(src.Tensors())}
}

func (e *edited) Tensors() []gguf.Tensor { return e.tensors }

func (e *edited) Meta(key string) (recipehost.Meta, bool) {
	v, ok := e.keys[key]
	if !ok {
		return e.Source.Meta(key)
	}
	switch v := v.(type) {
	case int:
		return recipehost.Meta{Type: gguf.Int64, Len: 1, Ints: func() ([]int64, error) { return []int64{int64(v)}, nil }}, true
	case []int64:
		return recipehost.Meta{Type: gguf.Int64, Array: true, Len: len(v), Ints: func() ([]int64, error) { return v, nil }}, true
	case float64:
		return recipehost.Meta{Type: gguf.Float64, Len: 1, Floats: func() ([]float64, error) { return []float64{v}, nil }}, true
	case string:
		return recipehost.Meta{Type: gguf.String, Len: 1, Texts: func() ([]string, error) { return []string{v}, nil }}, true
	}
	return recipehost.Meta{}, false
}

func (e *edited) remove(name string) {
	e.tensors = slices.DeleteFunc(e.tensors, func(t gguf.Tensor) bool { return t.Name == name })
}

func (e *edited) add(name string, dims ...uint64) {
	e.tensors = append(e.tensors, gguf.Tensor{Name: name, Type: dtype.F32, Dims: dims})
}

func ropes(p *plan.Plan) []plan.Attrs {
	var out []plan.Attrs
	spec, _ := plan.Lookup("rope")
	for _, b := range p.Blocks {
		for _, op := range b.Ops {
			if op.Kind == "rope" {
				a, err := spec.Attributes(op)
				if err != nil {
					panic(err)
				}
				out = append(out, a)
			}
		}
	}
	return out
}

// TestRopeScaling covers the keys of specs/qwen3moe.md section 1.
func TestRopeScaling(t *testing.T) {
	const s = "qwen3moe.rope.scaling."
	for _, test := range []struct {
		name              string
		keys              map[string]any
		scaling           string
		factor, magnitude float64
		original          int64
	}{
		{"none by default", nil, "none", 1, 1, 0},
		{"a factor without a type is linear", map[string]any{s + "factor": 4.0}, "linear", 4, 1, 0},
		{"old name", map[string]any{"qwen3moe.rope.scale_linear": 3.0}, "linear", 3, 1, 0},
		{"the new name wins", map[string]any{s + "factor": 4.0, "qwen3moe.rope.scale_linear": 3.0}, "linear", 4, 1, 0},
		{"none ignores the factor", map[string]any{s + "type": "none", s + "factor": 4.0}, "none", 1, 1, 0},
		{"magnitude without scaling", map[string]any{s + "attn_factor": 1.5}, "none", 1, 1.5, 0},
		{"yarn", map[string]any{s + "type": "yarn", s + "factor": 4.0, s + "attn_factor": 1.5, s + "original_context_length": 128},
			"yarn", 4, 1.5 * (1 + 0.1*math.Log(4)), 128},
		{"yarn over the trained context", map[string]any{s + "type": "yarn", s + "factor": 4.0}, "yarn", 4, 1 + 0.1*math.Log(4), 512},
		{"yarn tuning keys are not read", map[string]any{s + "type": "yarn", s + "factor": 4.0, s + "yarn_beta_fast": 8.0,
			s + "yarn_attn_factor": 2.0, s + "yarn_ext_factor": 0.5, s + "yarn_log_multiplier": 3.0}, "yarn", 4, 1 + 0.1*math.Log(4), 512},
	} {
		t.Run(test.name, func(t *testing.T) {
			e := edit(t, "qwen3moe/qwen3moe-f32.gguf")
			maps.Copy(e.keys, test.keys)
			e.keys["qwen3moe.context_length"] = 512
			p, err := run(t, "qwen3moe", e)
			require.NoError(t, err)
			all := ropes(p)
			require.Len(t, all, 2*int(p.Model.Layers))
			for _, a := range all {
				require.Equal(t, test.scaling, a.Text("scaling"))
				require.Equal(t, test.factor, a.Float("factor"))
				require.InDelta(t, test.magnitude, a.Float("magnitude"), 1e-12)
				require.Equal(t, test.original, a.Int("original_context"))
				require.Equal(t, 32.0, a.Float("beta_fast"))
				require.Equal(t, 1.0, a.Float("beta_slow"))
				require.Equal(t, "neox", a.Text("layout"))
			}
		})
	}
}

func weight(t testing.TB, p *plan.Plan, name string) *plan.Weight {
	i := slices.IndexFunc(p.Weights, func(w *plan.Weight) bool { return w.Name == name })
	require.GreaterOrEqual(t, i, 0, "no weight %q", name)
	return p.Weights[i]
}

func TestFusedTensors(t *testing.T) {
	for _, arch := range []string{"qwen3moe", "qwen2moe"} {
		t.Run(arch, func(t *testing.T) {
			e := edit(t, arch+"/"+arch+"-f32.gguf")
			at := func(name string) gguf.Tensor {
				i := slices.IndexFunc(e.tensors, func(t gguf.Tensor) bool { return t.Name == name })
				require.GreaterOrEqual(t, i, 0)
				return e.tensors[i]
			}
			q, k, gate := at("blk.1.attn_q.weight").Dims, at("blk.1.attn_k.weight").Dims, at("blk.1.ffn_gate_exps.weight").Dims
			for _, n := range []string{"attn_q", "attn_k", "attn_v"} {
				e.remove("blk.1." + n + ".weight")
				e.remove("blk.1." + n + ".bias")
			}
			e.remove("blk.1.ffn_gate_exps.weight")
			e.remove("blk.1.ffn_up_exps.weight")
			e.add("blk.1.attn_qkv.weight", q[0], q[1]+2*k[1])
			e.add("blk.1.attn_qkv.bias", q[1]+2*k[1])
			e.add("blk.1.ffn_gate_up_exps.weight", gate[0], 2*gate[1], gate[2])
			p, err := run(t, arch, e)
			require.NoError(t, err)
			require.Empty(t, leftOver(p, e.tensors))
			var first uint64
			ops := p.Blocks[2].Ops
			for i, want := range []uint64{q[1], k[1], k[1]} {
				op := ops[slices.IndexFunc(ops, func(op *plan.Op) bool { return op.Out[0] == "l1."+"qkv"[i:i+1] })]
				require.Equal(t, "linear", op.Kind)
				require.Len(t, op.Weights, 2)
				w := weight(t, p, op.Weights[0])
				require.Equal(t, []uint64{q[0], want}, w.Shape)
				for _, name := range op.Weights {
					s := weight(t, p, name).Sources[0]
					require.Equal(t, first, s.FirstRow)
					require.Equal(t, want, s.Rows)
				}
				first += want
			}
			require.Equal(t, []plan.Role{plan.Role_GATE_UP, plan.Role_DOWN}, []plan.Role{p.Banks[1].Parts[0].Role, p.Banks[1].Parts[1].Role})
			require.Equal(t, 2*gate[1], p.Banks[1].Parts[0].Out)
			require.Len(t, p.Banks[0].Parts, 3)
		})
	}
}

func TestTiedHead(t *testing.T) {
	e := edit(t, "qwen3moe/qwen3moe-f32.gguf")
	p, err := run(t, "qwen3moe", e)
	require.NoError(t, err)
	require.Equal(t, plan.Residency_ROWS, weight(t, p, "token_embd.weight").Residency)

	e.remove("output.weight")
	p, err = run(t, "qwen3moe", e)
	require.NoError(t, err)
	require.Equal(t, plan.Residency_RESIDENT, weight(t, p, "token_embd.weight").Residency)
	head := p.Blocks[len(p.Blocks)-1].Ops
	require.Equal(t, []string{"token_embd.weight"}, head[len(head)-1].Weights)

	e = edit(t, "qwen2moe/qwen2moe-f32.gguf")
	e.remove("output.weight")
	_, err = run(t, "qwen2moe", e)
	require.ErrorContains(t, err, `tensor "output.weight" is missing`)
}

func TestBiasesAreOptional(t *testing.T) {
	e := edit(t, "qwen3moe/qwen3moe-f32.gguf")
	k := uint64(64)
	e.add("blk.0.attn_k.bias", k)
	p, err := run(t, "qwen3moe", e)
	require.NoError(t, err)
	require.Empty(t, leftOver(p, e.tensors))
	require.Equal(t, []uint64{k}, weight(t, p, "blk.0.attn_k.bias").Shape)

	e.add("blk.0.attn_output.bias", 96)
	p, err = run(t, "qwen3moe", e)
	require.NoError(t, err)
	require.Equal(t, []string{"blk.0.attn_output.bias"}, leftOver(p, e.tensors), "for the engine to refuse")

	e = edit(t, "qwen2moe/qwen2moe-f32.gguf")
	e.tensors = slices.DeleteFunc(e.tensors, func(t gguf.Tensor) bool {
		return slices.Contains([]string{"blk.0.attn_q.bias", "blk.0.attn_v.bias"}, t.Name)
	})
	_, err = run(t, "qwen2moe", e)
	require.NoError(t, err)
}

// TestSharedGateShape: the weight of the shared expert's gate may be stored as a vector or as a matrix of one row.
func TestSharedGateShape(t *testing.T) {
	e := edit(t, "qwen2moe/qwen2moe-f32.gguf")
	const name = "blk.0.ffn_gate_inp_shexp.weight"
	i := slices.IndexFunc(e.tensors, func(t gguf.Tensor) bool { return t.Name == name })
	width := e.tensors[i].Dims[0]
	for _, dims := range [][]uint64{{width}, {width, 1}} {
		e.tensors[i].Dims = dims
		p, err := run(t, "qwen2moe", e)
		require.NoError(t, err)
		require.Equal(t, []uint64{width, 1}, weight(t, p, name).Shape)
	}
}

func TestPerLayerExperts(t *testing.T) {
	e := edit(t, "qwen3moe/qwen3moe-f32.gguf")
	e.keys["qwen3moe.expert_used_count"] = []int64{4, 1, 16, 2}
	p, err := run(t, "qwen3moe", e)
	require.NoError(t, err)
	var got []int64
	spec, _ := plan.Lookup("route")
	for _, b := range p.Blocks {
		for _, op := range b.Ops {
			if op.Kind == "route" {
				a, err := spec.Attributes(op)
				require.NoError(t, err)
				require.True(t, a.Flag("normalize"))
				got = append(got, a.Int("top_k"))
			}
		}
	}
	require.Equal(t, []int64{4, 1, 16, 2}, got)

	// A lossy option arrives as another value of the key.
	p, err = run(t, "qwen3moe", recipehost.Override(e, map[string]uint64{"qwen3moe.expert_used_count": 2}))
	require.NoError(t, err)
	require.EqualValues(t, 2, p.Model.ExpertsUsed)
}

func TestRefusedModels(t *testing.T) {
	for _, test := range []struct {
		name string
		arch string
		edit func(*edited)
		kind fault.Kind
		say  []string
	}{
		{"scale beside a tensor", "qwen3moe", func(e *edited) { e.add("blk.0.ffn_gate_exps.scale", 16) }, fault.Unsupported,
			[]string{"blk.0.ffn_gate_exps.scale"}},
		{"input scale beside a tensor", "qwen2moe", func(e *edited) { e.add("blk.0.attn_q.input_scale", 1) }, fault.Unsupported,
			[]string{"blk.0.attn_q.input_scale"}},
		{"partial rotation", "qwen3moe", func(e *edited) { e.keys["qwen3moe.rope.dimension_count"] = 16 }, fault.Unsupported,
			[]string{"rope.dimension_count 16"}},
		{"other value length", "qwen3moe", func(e *edited) { e.keys["qwen3moe.attention.value_length"] = 16 }, fault.Unsupported,
			[]string{"attention.value_length 16"}},
		{"other key length", "qwen2moe", func(e *edited) { e.keys["qwen2moe.attention.key_length"] = 8 }, fault.Unsupported,
			[]string{"attention.key_length 8"}},
		{"unknown scaling", "qwen3moe", func(e *edited) { e.keys["qwen3moe.rope.scaling.type"] = "longrope" }, fault.Unsupported,
			[]string{"rope.scaling.type", "longrope", "yarn"}},
		{"two layers' worth of four", "qwen3moe", func(e *edited) { e.keys["qwen3moe.expert_used_count"] = []int64{4, 4} }, fault.Corrupt,
			[]string{"qwen3moe.expert_used_count", "4 layers", "array of 2"}},
		{"no experts used", "qwen3moe", func(e *edited) { e.keys["qwen3moe.expert_used_count"] = 0 }, fault.Corrupt,
			[]string{"qwen3moe.expert_used_count", "1 to 16", "found 0"}},
		{"epsilon is not a number", "qwen3moe", func(e *edited) { e.keys["qwen3moe.attention.layer_norm_rms_epsilon"] = math.NaN() }, fault.Corrupt,
			[]string{"layer_norm_rms_epsilon", "NaN"}},
		{"epsilon is a text", "qwen3moe", func(e *edited) { e.keys["qwen3moe.attention.layer_norm_rms_epsilon"] = "small" }, fault.Corrupt,
			[]string{"layer_norm_rms_epsilon", "a number", "string"}},
		{"no context length", "qwen3moe", func(e *edited) { e.keys["qwen3moe.context_length"] = nil }, fault.Corrupt,
			[]string{`"qwen3moe.context_length" is missing`}},
		{"no expert width at all", "qwen3moe", func(e *edited) {
			e.keys["qwen3moe.expert_feed_forward_length"] = nil
			e.keys["qwen3moe.feed_forward_length"] = nil
		}, fault.Corrupt, []string{"ffn_"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			e := edit(t, test.arch+"/"+test.arch+"-f32.gguf")
			test.edit(e)
			_, err := run(t, test.arch, e)
			require.Error(t, err)
			for _, say := range test.say {
				require.ErrorContains(t, err, say)
			}
			require.Equal(t, test.kind, fault.KindOf(err), "%v", err)
		})
	}
}
