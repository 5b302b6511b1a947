package recipe

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/bigmoe/bigmoe/sdk/plan"
)

// model is a host over made-up metadata. It ends a recipe that fails by panicking with a failure.
type model struct {
	keys    map[string]any // int, []int, uint64, float64, float32, bool, string, []string
	names   []string
	dims    map[string][]uint64
	handles []any
	result  []byte

	warnings []string
}

type failure struct {
	kind    int32
	message string
}

func (m *model) metaFind(key string) int32 {
	v, ok := m.keys[key]
	if !ok {
		return -1
	}
	m.handles = append(m.handles, v)
	return int32(len(m.handles) - 1)
}

func (m *model) metaType(h int32) int32 {
	const int64Type = 11
	switch m.handles[h].(type) {
	case int:
		return int64Type
	case []int:
		return int64Type | typeArray
	case uint64:
		return typeUint64
	case float64:
		return typeFloat64
	case float32:
		return typeFloat32
	case []float64:
		return typeFloat64 | typeArray
	case bool:
		return typeBool
	case string:
		return typeString
	case []string:
		return typeString | typeArray
	}
	panic("unknown type")
}

func (m *model) metaLen(h int32) int32 {
	switch v := m.handles[h].(type) {
	case []int:
		return int32(len(v))
	case []float64:
		return int32(len(v))
	case []string:
		return int32(len(v))
	}
	return 1
}

func (m *model) metaInt(h, i int32) int64 {
	switch v := m.handles[h].(type) {
	case int:
		return int64(v)
	case []int:
		return int64(v[i])
	case uint64:
		return int64(v)
	case bool:
		if v {
			return 1
		}
		return 0
	}
	panic("not an integer")
}

func (m *model) metaFloat(h, i int32) float64 {
	switch v := m.handles[h].(type) {
	case float32:
		return float64(v)
	case float64:
		return v
	case []float64:
		return v[i]
	}
	panic("not a float")
}

func (m *model) metaText(h, i int32, buf []byte) int32 {
	switch v := m.handles[h].(type) {
	case string:
		copy(buf, v)
		return int32(len(v))
	case []string:
		copy(buf, v[i])
		return int32(len(v[i]))
	}
	panic("not a string")
}

func (m *model) tensorCount() int32 { return int32(len(m.names)) }

func (m *model) tensorFind(name string) int32 {
	for i, n := range m.names {
		if n == name {
			return int32(i)
		}
	}
	return -1
}

func (m *model) tensorName(i int32, buf []byte) int32 {
	copy(buf, m.names[i])
	return int32(len(m.names[i]))
}

func (m *model) tensorDims(i int32) []uint64     { return m.dims[m.names[i]] }
func (m *model) fail(kind int32, message string) { panic(failure{kind, message}) }
func (m *model) warn(message string)             { m.warnings = append(m.warnings, message) }
func (m *model) plan(encoded []byte)             { m.result = append([]byte{}, encoded...) }
func (m *model) tensor(name string, dims ...uint64) {
	m.names, m.dims[name] = append(m.names, name), dims
}

func newModel() *model {
	return &model{keys: map[string]any{"general.architecture": "test"}, dims: map[string][]uint64{}}
}

// runs returns the plan, or how the recipe failed.
func runs(m *model, build func(*Builder)) (bytes []byte, failed *failure) {
	defer func() {
		if f, ok := recover().(failure); ok {
			failed = &f
		}
	}()
	run(m, registration{name: "r", version: "7", build: build})
	return m.result, nil
}

// everyOp writes each op once, with every operand and attribute that it has.
func everyOp(b *Builder) {
	w := func(name string, shape ...int) Weight { return b.Weight(name, shape...) }
	b.Describe(Model{Layers: 1, Embedding: 2, Vocabulary: 3, ContextLength: 4, Experts: 5, ExpertsUsed: 6})
	b.Unused("t", "not needed")
	b.Embedding()
	b.Embed("x", b.Rows("table", 8, 3), 2)
	b.TokenRow("rows", b.Rows("hash", 2, 3))
	b.Layer(3)
	b.RMSNorm("a", "x", w("t", 4), 1e-6, 4)
	b.L2Norm("b", "x", 1e-6, 4, "max")
	b.Linear("c", "x", w("t", 4), "bias")
	b.LinearExact("d", "x", w("t", 4), "")
	b.LinearGroups("e", "x", w("t", 4), "", 2)
	rope := Rope{Rotated: 2, Layout: "interleaved", Base: 5, Scaling: "yarn", Factor: 6, OriginalContext: 7, BetaFast: 8, BetaSlow: 9,
		Untruncated: true, Magnitude: 10, Divisors: "t", HeadDim: 4, Offset: 1, Inverse: true}
	b.Rope("f", "x", rope)
	b.Attention("g", Attention{Q: "x", K: "x", V: "x", Rows: "rows", Sinks: "t", Cache: b.KV("kv", 1, 2, 3), Compressed: b.Compressed("cx", 4, 5),
		Heads: 1, KVHeads: 2, HeadDim: 3, ValueDim: 4, Scale: 5, Window: 6, Softcap: 7})
	b.Compress(Compress{KV: "x", Gate: "x", APE: "t", Norm: "t", Pending: b.Recurrent("pending", 6), Rows: "cx", Ratio: 1, Dim: 2,
		Overlap: true, Eps: 0.3, Rope: rope})
	b.IndexTop("h", "x", "x", "cx", 1, 2, 3, 4)
	b.Route("ids", "weights", Route{Logits: "x", Picks: "rows", Bias: "t", TopK: 1, Gating: "sigmoid", Normalize: true, NormFloor: 0.5, Scale: 2, Groups: 2, GroupsUsed: 1})
	glu := GLU{Activation: "swiglu_oai", Limit: 7, Alpha: 1.7}
	b.Experts("i", Experts{X: "x", IDs: "ids", Weights: "weights", GateBias: "t", UpBias: "t", DownBias: "t", Scale: "t", GLU: glu,
		Bank: b.Bank(3, 2, Stack(GateUp, "stack", 4, 6), Part{Role: Down, Width: 3, Rows: 4, Tensors: []string{"e0", "e1"}})})
	b.GLU("j", "x", "x", glu)
	b.Add("k", "x", "x")
	b.Mul("l", "x", "x")
	b.AddWeight("m", "x", "t")
	b.MulWeight("n", "x", "t")
	b.MulWeightRuns("n2", "x", "t", 2)
	b.Scale("o", "x", -0.5)
	b.Unary("p", "tanh", "x")
	b.Softcap("q", "x", 30)
	b.Slice("r", "x", 4, 1, 2)
	b.Concat("s", "x", "x")
	b.ConcatGroups("s2", "x", "x", 2)
	b.Repeat("t", "x", 3)
	b.ShortConv("u", "x", "t", b.Convolution("cv", 7), "silu")
	b.GatedDeltaNet("v", DeltaNet{Q: "x", K: "x", V: "x", Beta: "x", Gamma: "x", Memory: "pending", KeyHeads: 1, ValueHeads: 2, HeadDim: 3, Map: "grouped"})
	hc := HyperConnection{Fn: "t", Scale: "t", Base: "t", Streams: 4, Iterations: 5, Eps: 0.6, HCEps: 7}
	b.HCMix("w1", "w2", "w3", "x", hc)
	b.HCHead("y", "x", hc)
	b.HCCollapse("z", "x", "y", 4)
	b.HCExpand("A", "x", "x", "y", "w3", 4)
	b.Head()
	b.Linear(Logits, "x", b.WeightOf(TypeF32, "router", 4), "")
}

func everyTensor() *model {
	m := newModel()
	m.tensor("t", 4)
	m.tensor("table", 8, 3)
	m.tensor("hash", 2, 3)
	m.tensor("stack", 4, 6, 2)
	m.tensor("e0", 3, 4)
	m.tensor("e1", 3, 4)
	m.tensor("router", 4)
	return m
}

// TestEveryOp holds the builder against the schema: what it writes by hand decodes, encodes to the same bytes again,
// and knows every op, operand and attribute there is.
func TestEveryOp(t *testing.T) {
	raw, failed := runs(everyTensor(), everyOp)
	require.Nil(t, failed)
	p := &plan.Plan{}
	require.NoError(t, proto.Unmarshal(raw, p))
	again, err := proto.MarshalOptions{Deterministic: true}.Marshal(p)
	require.NoError(t, err)
	require.Equal(t, again, raw)

	require.EqualValues(t, plan.SchemaVersion, p.Schema)
	require.Equal(t, []string{"test", "r", "7"}, []string{p.Architecture, p.Recipe, p.RecipeVersion})
	require.True(t, proto.Equal(&plan.Model{Layers: 1, Embedding: 2, Vocabulary: 3, ContextLength: 4, Experts: 5, ExpertsUsed: 6}, p.Model))
	require.True(t, proto.Equal(&plan.Unused{Tensor: "t", Reason: "not needed"}, p.Unused[0]))
	require.Equal(t, []plan.BlockKind{plan.BlockKind_EMBEDDING, plan.BlockKind_LAYER, plan.BlockKind_HEAD},
		[]plan.BlockKind{p.Blocks[0].Kind, p.Blocks[1].Kind, p.Blocks[2].Kind})
	require.EqualValues(t, 3, p.Blocks[1].Layer)
	require.Equal(t, plan.Residency_ROWS, p.Weights[0].Residency)
	require.Equal(t, []uint32{0}, p.Weights[len(p.Weights)-1].Types)
	require.Equal(t, []plan.StateKind{plan.StateKind_KV, plan.StateKind_COMPRESSED, plan.StateKind_RECURRENT, plan.StateKind_CONVOLUTION},
		[]plan.StateKind{p.States[0].Kind, p.States[1].Kind, p.States[2].Kind, p.States[3].Kind})
	require.True(t, proto.Equal(&plan.State{Name: "l3.kv", Kind: plan.StateKind_KV, KeyWidth: 1, ValueWidth: 2, Window: 3}, p.States[0]))
	require.True(t, proto.Equal(&plan.State{Name: "l3.cv", Kind: plan.StateKind_CONVOLUTION, Elements: 7, Rewind: plan.Rewind_SNAPSHOT}, p.States[3]))
	require.True(t, proto.Equal(&plan.Bank{Name: "l3.experts", Layer: 3, Experts: 2, Parts: []*plan.Part{
		{Role: plan.Role_GATE_UP, Tensors: []string{"stack"}, In: 4, Out: 6},
		{Role: plan.Role_DOWN, Tensors: []string{"e0", "e1"}, In: 3, Out: 4}}}, p.Banks[0]))

	type slot struct{ op, what string }
	written := map[slot]bool{}
	for _, block := range p.Blocks {
		for _, op := range block.Ops {
			spec, ok := plan.Lookup(op.Kind)
			require.True(t, ok, op.Kind)
			_, err := spec.Attributes(op)
			require.NoError(t, err)
			require.LessOrEqual(t, len(op.In), len(spec.In))
			require.LessOrEqual(t, len(op.Weights), len(spec.Weights))
			require.LessOrEqual(t, len(op.States), len(spec.States))
			require.Len(t, op.Out, len(spec.Out), op.Kind)
			for i := range op.In {
				written[slot{op.Kind, "in " + spec.In[i].Name}] = true
			}
			for i := range op.Weights {
				written[slot{op.Kind, "weight " + spec.Weights[i].Name}] = true
			}
			for i := range op.States {
				written[slot{op.Kind, "state " + spec.States[i].Name}] = true
			}
			for _, a := range op.Attrs {
				written[slot{op.Kind, "attribute " + a.Name}] = true
			}
			written[slot{op.Kind, fmt.Sprint("bank ", op.Bank != "")}] = true
		}
	}
	for _, spec := range plan.Ops() {
		want := []string{fmt.Sprint("bank ", spec.Bank)}
		for _, o := range spec.In {
			want = append(want, "in "+o.Name)
		}
		for _, o := range spec.Weights {
			want = append(want, "weight "+o.Name)
		}
		for _, o := range spec.States {
			want = append(want, "state "+o.Name)
		}
		for _, a := range spec.Attrs {
			want = append(want, "attribute "+a.Name)
		}
		for _, what := range want {
			require.True(t, written[slot{spec.Kind, what}], "the builder cannot write the %s of %s", what, spec.Kind)
		}
	}
}

func TestNamesHaveThePrefixOfTheirBlock(t *testing.T) {
	_, failed := runs(newModel(), func(b *Builder) {
		b.Embedding()
		require.Equal(t, Value("h"), b.Add("h", "a", "b"))
		b.Layer(12)
		require.Equal(t, Value("l12.h"), b.Add("h", "a", "b"))
		require.Equal(t, State("l12.kv"), b.KV("kv", 1, 1, 0))
		b.Head()
		require.Equal(t, Value("h2"), b.Add("h2", "a", "b"))
	})
	require.Nil(t, failed)
}

func TestGetters(t *testing.T) {
	m := newModel()
	m.keys = map[string]any{
		"general.architecture": "test", "test.n": 32, "test.negative": -32, "test.huge": uint64(math.MaxUint64), "test.one": []int{2},
		"test.each": []int{1, 2, 3}, "test.x": float32(0.5), "test.nan": math.NaN(), "test.yes": true, "test.flag": 1,
		"test.two": 2, "test.slopes": []float64{0.5, 2, math.NaN()}, "test.bits": []int{1, 0}, "test.s": "abc", "tokenizer.ggml.tokens": []string{"a", "b"},
	}
	good := func(t *testing.T, want any, get func(*Builder) any) {
		t.Helper()
		var got any
		_, failed := runs(m, func(b *Builder) { got = get(b) })
		require.Nil(t, failed)
		require.Equal(t, want, got)
	}
	good(t, "test", func(b *Builder) any { return b.Architecture() })
	good(t, 32, func(b *Builder) any { return b.Uint("n", 1, 100) })
	good(t, -32, func(b *Builder) any { return b.Uint("negative", -50, 0) })
	good(t, 2, func(b *Builder) any { return b.Uint("one", 1, 100) })
	good(t, 5, func(b *Builder) any { return b.UintOr("absent", 5, 6, 7) })
	good(t, []int{1, 2, 3}, func(b *Builder) any { return b.PerLayer("each", 3, 1, 3) })
	good(t, []int{32, 32}, func(b *Builder) any { return b.PerLayer("n", 2, 1, 100) })
	good(t, []int{2, 2}, func(b *Builder) any { return b.PerLayer("one", 2, 1, 100) })
	good(t, []int{9, 9}, func(b *Builder) any { return b.PerLayerOr("absent", 9, 2, 1, 100) })
	good(t, []bool{true, true, true}, func(b *Builder) any { return b.PerLayerBool("each", 3) })
	good(t, []bool{true, true}, func(b *Builder) any { return b.PerLayerBool("yes", 2) })
	good(t, []bool{true, false}, func(b *Builder) any { return b.PerLayerBool("bits", 2) })
	good(t, []int{1, 2}, func(b *Builder) any { return b.LeadingUints("each", 2, 1, 2) })
	good(t, []int{32, 32}, func(b *Builder) any { return b.LeadingUints("n", 2, 1, 100) })
	good(t, []float64{0.5, 2}, func(b *Builder) any { return b.LeadingFloatsOr("slopes", 0, 2, 0, 2) })
	good(t, []float64{0.5, 0.5}, func(b *Builder) any { return b.LeadingFloatsOr("x", 0, 2, 0, 2) })
	good(t, []float64{1, 2}, func(b *Builder) any { return b.LeadingFloatsOr("each", 0, 2, 0, 2) })
	good(t, []float64{7, 7}, func(b *Builder) any { return b.LeadingFloatsOr("absent", 7, 2, 0, 2) })
	good(t, 0.5, func(b *Builder) any { return b.Float("x", 0, 1) })
	good(t, 32.0, func(b *Builder) any { return b.Float("n", 0, 100) })
	good(t, 1.5, func(b *Builder) any { return b.FloatOr("absent", 1.5, 0, 1) })
	good(t, true, func(b *Builder) any { return b.BoolOr("yes", false) })
	good(t, true, func(b *Builder) any { return b.BoolOr("flag", false) })
	good(t, true, func(b *Builder) any { return b.BoolOr("absent", true) })
	good(t, "abc", func(b *Builder) any { return b.Text("s") })
	good(t, "abc", func(b *Builder) any { return b.TextOr("s", "x", "abc") })
	good(t, "x", func(b *Builder) any { return b.TextOr("absent", "x", "abc") })
	good(t, 2, func(b *Builder) any { return b.Vocabulary() })
	good(t, []bool{true, false}, func(b *Builder) any { return []bool{b.Has("general.architecture"), b.Has("absent")} })

	bad := func(t *testing.T, message string, get func(*Builder)) {
		t.Helper()
		_, failed := runs(m, get)
		require.NotNil(t, failed)
		require.Equal(t, message, failed.message)
	}
	bad(t, `key "test.absent" is missing`, func(b *Builder) { b.Uint("absent", 0, 1) })
	bad(t, `key "test.s": expected an integer, found string`, func(b *Builder) { b.Uint("s", 0, 1) })
	bad(t, `key "test.x": expected an integer, found float32`, func(b *Builder) { b.Uint("x", 0, 1) })
	bad(t, `key "test.n": expected 1 to 31, found 32`, func(b *Builder) { b.Uint("n", 1, 31) })
	bad(t, `key "test.negative": expected 1 to 31, found -32`, func(b *Builder) { b.Uint("negative", 1, 31) })
	bad(t, `key "test.huge": expected 1 to 31, found 18446744073709551615`, func(b *Builder) { b.Uint("huge", 1, 31) })
	bad(t, `key "test.each": expected one integer, found array of 3 int64`, func(b *Builder) { b.Uint("each", 1, 31) })
	bad(t, `key "test.each": expected one integer, or one for each of 4 layers, found array of 3 int64`,
		func(b *Builder) { b.PerLayer("each", 4, 1, 31) })
	bad(t, `key "test.each": expected 1 to 2, found 3`, func(b *Builder) { b.PerLayer("each", 3, 1, 2) })
	bad(t, `key "test.each": expected one truth value, or one for each of 4 layers, found array of 3 int64`,
		func(b *Builder) { b.PerLayerBool("each", 4) })
	bad(t, `key "test.x": expected truth values, found float32`, func(b *Builder) { b.PerLayerBool("x", 4) })
	bad(t, `key "test.absent" is missing`, func(b *Builder) { b.PerLayerBool("absent", 4) })
	bad(t, `key "test.each": expected one number, or one for each of 4 layers, found array of 3 int64`,
		func(b *Builder) { b.LeadingUints("each", 4, 1, 31) })
	bad(t, `key "test.each": expected 1 to 2, found 3`, func(b *Builder) { b.LeadingUints("each", 3, 1, 2) })
	bad(t, `key "test.slopes": expected 0 to 2, found NaN`, func(b *Builder) { b.LeadingFloatsOr("slopes", 0, 3, 0, 2) })
	bad(t, `key "test.slopes": expected one number, or one for each of 4 layers, found array of 3 float64`,
		func(b *Builder) { b.LeadingFloatsOr("slopes", 0, 4, 0, 2) })
	bad(t, `key "test.s": expected numbers, found string`, func(b *Builder) { b.LeadingFloatsOr("s", 0, 3, 0, 2) })
	bad(t, `key "test.nan": expected 0 to 1, found NaN`, func(b *Builder) { b.Float("nan", 0, 1) })
	bad(t, `key "test.s": expected a number, found string`, func(b *Builder) { b.Float("s", 0, 1) })
	bad(t, `key "test.n": expected a string, found int64`, func(b *Builder) { b.Text("n") })
	bad(t, `key "test.two": expected 0 to 1, found 2`, func(b *Builder) { b.BoolOr("two", false) })
	bad(t, `key "test.s": expected one of x, y, found "abc"`, func(b *Builder) { b.TextOr("s", "x", "y") })
	m.keys["tokenizer.ggml.tokens"] = []int{1}
	bad(t, `key "tokenizer.ggml.tokens": expected array of strings, found array of 1 int64`, func(b *Builder) { b.Vocabulary() })
}

func TestWeights(t *testing.T) {
	m := newModel()
	m.tensor("q", 32, 16)
	m.tensor("row", 32)
	m.tensor("heads", 32, 2, 8)
	m.tensor("a"+string(make([]byte, 200)), 1)
	bad := func(message string, build func(*Builder)) {
		_, failed := runs(m, build)
		require.NotNil(t, failed)
		require.Equal(t, message, failed.message)
	}
	bad(`tensor "q": expected [32 32], found [32 16]`, func(b *Builder) { b.Weight("q", 32, 32) })
	bad(`tensor "q": expected [32], found [32 16]`, func(b *Builder) { b.Weight("q", 32) })
	bad(`tensor "q": expected [32 2 8], found [32 16]`, func(b *Builder) { b.Reshape("q", []int{32, 2, 8}, 32, 16) })
	bad(`tensor "q": dimension 1: expected 1 to 15, found 16`, func(b *Builder) { b.Dim("q", 1, 15) })
	bad(`tensor "k" is missing`, func(b *Builder) { b.Weight("k", 32) })
	bad(`tensor "k" is missing`, func(b *Builder) { b.Unused("k", "") })
	bad(`tensor "q": expected [32 16 2], found [32 16]`, func(b *Builder) { b.Bank(0, 2, Stack(Down, "q", 32, 16)) })
	bad(`bank l0.experts has 2 tensors for 3 experts`, func(b *Builder) { b.Bank(0, 3, Part{Down, 32, 16, []string{"q", "q"}}) })
	bad(`weight "q" is declared twice, not alike: once read by row (Rows) and once in memory (Weight), or with two shapes; a table that is both `+
		`embedding and head is in memory (TableAndHead)`, func(b *Builder) { b.Weight("q", 32, 16); b.Rows("q", 32, 16) })
	bad(`embedding "h" has the scale 0: 1 is none`, func(b *Builder) { b.Embedding(); b.Embed("h", "q", 0) })
	bad(`op add outside a block`, func(b *Builder) { b.Add("x", "y", "z") })

	raw, failed := runs(m, func(b *Builder) {
		require.Equal(t, b.Weight("q", 32, 16), b.Weight("q", 32, 16))
		require.Equal(t, Weight("row"), b.Weight("row", 32, 1))
		require.Empty(t, b.Optional("k", 1))
		require.Equal(t, Weight("q[4:12]"), b.WeightRows("q", 4, 8, 32, 16))
		require.Equal(t, Weight("both"), b.Join("both", []int{32, 18}, Source{Tensor: "q"}, Source{"q", 1, 2}))
		require.Equal(t, Weight("heads"), b.Reshape("heads", []int{32, 2, 8}, 32, 16))
		require.Equal(t, []int{32, 16, 1}, []int{b.Dim("q", 0, 32), b.Dim("q", 1, 32), b.Dim("q", 2, 32)})
		var names []string
		for name := range b.Tensors() {
			names = append(names, name)
		}
		require.Equal(t, m.names, names)
	})
	require.Nil(t, failed)
	p := &plan.Plan{}
	require.NoError(t, proto.Unmarshal(raw, p))
	require.Len(t, p.Weights, 5)
	require.Equal(t, []uint64{32, 8}, p.Weights[2].Shape)
	require.True(t, proto.Equal(&plan.Source{Tensor: "q", FirstRow: 4, Rows: 8}, p.Weights[2].Sources[0]))
	require.Len(t, p.Weights[3].Sources, 2)
	require.Equal(t, []uint64{32, 16}, p.Weights[4].Shape)
	require.EqualValues(t, 16, p.Weights[4].Sources[0].Rows)
}

func TestWarn(t *testing.T) {
	m := newModel()
	_, failed := runs(m, func(b *Builder) { b.Warn("odd"); b.Warn("") })
	require.Nil(t, failed)
	require.Equal(t, []string{"odd", ""}, m.warnings)
}

func TestNothingRegistered(t *testing.T) {
	_, failed := runs(newModel(), nil)
	require.EqualValues(t, bug, failed.kind)
}

// FuzzWire holds the nested encoding against a plain encoder.
func FuzzWire(f *testing.F) {
	f.Add("a", uint64(1), 3)
	f.Add(string(make([]byte, 127)), uint64(math.MaxUint64), 0)
	f.Add(string(make([]byte, 20000)), uint64(300), 7)
	f.Fuzz(func(t *testing.T, s string, n uint64, depth int) {
		depth = depth & 7
		var w wire
		var starts []int
		for range depth {
			starts = append(starts, w.open(3))
		}
		w.uint(1, n)
		w.text(2, s)
		for i := range starts {
			w.close(starts[depth-1-i])
		}
		var want []byte
		if n != 0 {
			want = protowire.AppendVarint(protowire.AppendTag(want, 1, protowire.VarintType), n)
		}
		if s != "" {
			want = protowire.AppendString(protowire.AppendTag(want, 2, protowire.BytesType), s)
		}
		for range depth {
			want = protowire.AppendBytes(protowire.AppendTag(nil, 3, protowire.BytesType), want)
		}
		require.Equal(t, want, append([]byte(nil), w...))
	})
}
