package plan

import (
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/bigmoe/bigmoe/sdk/fault"
)

// small is a plan of one layer: attention and routed experts over rows of 4.
const small = `{
"schema": 1, "architecture": "test", "recipe": "test",
"model": {"layers": 1, "embedding": 4, "vocabulary": 10, "contextLength": 64, "experts": 3, "expertsUsed": 2},
"weights": [
 {"name": "table", "sources": [{"tensor": "table"}], "shape": [4, 10], "residency": "ROWS"},
 {"name": "norm", "sources": [{"tensor": "norm"}], "shape": [4]},
 {"name": "router", "sources": [{"tensor": "router"}], "shape": [4, 3], "types": [0]},
 {"name": "head", "sources": [{"tensor": "head", "firstRow": 2, "rows": 10}], "shape": [4, 10]}],
"banks": [{"name": "b", "layer": 0, "experts": 3, "parts": [
 {"role": "GATE", "tensors": ["g"], "in": 4, "out": 6},
 {"role": "UP", "tensors": ["u0", "u1", "u2"], "in": 4, "out": 6},
 {"role": "DOWN", "tensors": ["d"], "in": 6, "out": 4}]}],
"states": [{"name": "kv", "kind": "KV", "keyWidth": 2, "valueWidth": 2}],
"blocks": [
 {"kind": "EMBEDDING", "ops": [{"kind": "embed", "weights": ["table"], "out": ["h"]}]},
 {"kind": "LAYER", "ops": [
  {"kind": "rms_norm", "in": ["h"], "weights": ["norm"], "out": ["a"], "attrs": [{"name": "eps", "f": 1e-6}]},
  {"kind": "slice", "in": ["a"], "out": ["k"], "attrs": [{"name": "width", "i": 2}]},
  {"kind": "attention", "in": ["a", "k", "k"], "states": ["kv"], "out": ["o"], "attrs": [
   {"name": "heads", "i": 2}, {"name": "kv_heads", "i": 1}, {"name": "head_dim", "i": 2}, {"name": "scale", "f": 0.7}]},
  {"kind": "linear", "in": ["o"], "weights": ["router"], "out": ["logit"], "attrs": [{"name": "exact", "b": true}]},
  {"kind": "route", "in": ["logit"], "out": ["ids", "weights"], "attrs": [{"name": "top_k", "i": 2}, {"name": "gating", "s": "sigmoid"}]},
  {"kind": "experts", "in": ["o", "ids", "weights"], "bank": "b", "out": ["y"]}]},
 {"kind": "HEAD", "ops": [{"kind": "linear", "in": ["y"], "weights": ["head"], "out": ["logits"]}]}]
}`

func decode(t testing.TB, text string) *Plan {
	t.Helper()
	p := &Plan{}
	require.NoError(t, protojson.Unmarshal([]byte(text), p))
	return p
}

func TestValidate(t *testing.T) {
	values, err := Validate(decode(t, small))
	require.NoError(t, err)
	require.Equal(t, Value{Width: 4}, values["h"])
	require.Equal(t, Value{Width: 2}, values["k"])
	require.Equal(t, Value{Width: 2, Integer: true}, values["ids"])
	require.Equal(t, Value{Width: 2}, values["weights"])
	require.Equal(t, Value{Width: 10}, values[Logits])
}

// TestInconsistentPlans replaces one piece of the small plan and expects Validate to say what is wrong.
func TestInconsistentPlans(t *testing.T) {
	for _, test := range []struct{ name, old, new, say string }{
		{"no schema", `"schema": 1`, `"schema": 0`, "schema version 0"},
		{"newer schema", `"schema": 1`, `"schema": 2`, "schema version 2, this build reads 1 to 1"},
		{"no vocabulary", `"vocabulary": 10`, `"vocabulary": 0`, "vocabulary 0"},
		{"huge vocabulary", `"vocabulary": 10`, `"vocabulary": 4000000000`, "vocabulary 4000000000"},
		{"no context", `"contextLength": 64`, `"contextLength": 0`, "context_length 0"},
		{"other vocabulary", `"vocabulary": 10`, `"vocabulary": 11`, `"logits" has width 10, needs the vocabulary of 11`},
		{"weight without name", `{"name": "norm", "so`, `{"name": "", "so`, "weight 1 has no name"},
		{"weight twice", `"name": "router"`, `"name": "norm"`, `weight "norm" is declared twice`},
		{"no shape", `"shape": [4]}`, `"shape": []}`, "0 dimensions"},
		{"five dimensions", `"shape": [4]}`, `"shape": [4,1,1,1,1]}`, "5 dimensions"},
		{"empty dimension", `"shape": [4, 3]`, `"shape": [4, 0]`, `shape [4 0]`},
		{"huge dimension", `"shape": [4, 3]`, `"shape": [4, 18446744073709551615]`, `shape [4 18446744073709551615]`},
		{"no source", `[{"tensor": "norm"}]`, `[]`, `"norm" has 0 sources`},
		{"source without tensor", `{"tensor": "norm"}`, `{"tensor": ""}`, `"norm" has source ""`},
		{"source past all tensors", `"firstRow": 2`, `"firstRow": 18446744073709551615`, `"head" has source "head"`},
		{"rows of a vector", `"shape": [4]}`, `"shape": [4], "residency": "ROWS"}`, `"norm" is read by row`},
		{"unknown residency", `"shape": [4]}`, `"shape": [4], "residency": 7}`, `unknown residency 7`},
		{"rows in a linear", `"shape": [4, 3], "types": [0]`, `"shape": [4, 3], "residency": "ROWS"`, "only embed and token_row"},
		{"bank without name", `"banks": [{"name": "b"`, `"banks": [{"name": ""`, "bank 0 has no name"},
		{"no experts", `"experts": 3, "parts"`, `"experts": 0, "parts"`, `"b" has 0 experts`},
		{"bank beyond all layers", `"layer": 0, "experts"`, `"layer": 1000, "experts"`, `layer 1000`},
		{"bank of another layer", `"layer": 0, "experts"`, `"layer": 1, "experts"`, `belongs to layer 1`},
		{"too few tensors", `["u0", "u1", "u2"]`, `["u0", "u1"]`, "UP has 2 tensors, needs 1 or one per expert (3)"},
		{"up of another width", `"u2"], "in": 4, "out": 6`, `"u2"], "in": 4, "out": 7`, "do not fit a hidden width of 6"},
		{"no down", `"role": "DOWN"`, `"role": "GATE_UP"`, `no DOWN part`},
		{"two gates", `"role": "UP"`, `"role": "GATE"`, "two GATE parts"},
		{"part without role", `"role": "UP"`, `"role": 0`, "do not fit"},
		{"fused and not", `"role": "UP"`, `"role": "GATE_UP"`, "do not fit"},
		{"part without width", `"in": 6, "out": 4`, `"in": 0, "out": 4`, "DOWN is 0 -> 4"},
		{"state without name", `{"name": "kv", "kind"`, `{"name": "", "kind"`, "state 0 has no name"},
		{"state of no kind", `"kind": "KV"`, `"kind": 0`, "unknown kind"},
		{"state of a future kind", `"kind": "KV"`, `"kind": 9`, "unknown kind"},
		{"cache without keys", `"keyWidth": 2, `, ``, "needs a key width"},
		{"recurrent that is trimmed", `"kind": "KV", "keyWidth": 2, "valueWidth": 2`, `"kind": "RECURRENT", "elements": 4`, "rewind must be SNAPSHOT"},
		{"state of another kind", `"kind": "KV", "keyWidth": 2, "valueWidth": 2`, `"kind": "RECURRENT", "elements": 4, "rewind": "SNAPSHOT"`, "needs KV"},
		{"huge state", `"valueWidth": 2`, `"valueWidth": 2000000000`, "implausible size"},
		{"narrow cache", `"keyWidth": 2`, `"keyWidth": 1`, `key width 1, needs 2`},
		{"cache without values", `, "valueWidth": 2`, ``, "v is to be given exactly if"},
		{"cache of other values", `"valueWidth": 2`, `"valueWidth": 4`, "value width 4, needs 2"},
		{"window shorter than what is seen", `"valueWidth": 2`, `"valueWidth": 2, "window": 8`, "keeps 8 positions, attention sees 0 (0 = all)"},
		{"no head", `{"kind": "HEAD"`, `{"kind": "LAYER"`, "block 2 is LAYER, needs to be HEAD"},
		{"no embedding", `{"kind": "EMBEDDING"`, `{"kind": "LAYER"`, "block 0 is LAYER, needs to be EMBEDDING"},
		{"layer beyond all", `{"kind": "LAYER", "ops"`, `{"kind": "LAYER", "layer": 4000000000, "ops"`, "layer 4000000000 of 1, needs at least 0"},
		{"layers beyond all", `"layers": 1`, `"layers": 4000000000`, "4000000000 layers, at most 1000 are possible"},
		{"unknown op", `"kind": "rms_norm"`, `"kind": "rms"`, `unknown op "rms"`},
		{"value before its time", `"in": ["h"]`, `"in": ["y"]`, `value "y" is not defined yet`},
		{"value twice", `"out": ["k"]`, `"out": ["a"]`, `"a" is defined twice`},
		{"value without name", `"out": ["k"]`, `"out": [""]`, "has no name"},
		{"missing output", `"out": ["ids", "weights"]`, `"out": ["ids"]`, "exactly 2"},
		{"missing input", `"in": ["o", "ids", "weights"]`, `"in": ["o", "ids"]`, `input "weights" is missing`},
		{"left out input", `"in": ["h"]`, `"in": [""]`, `input "x" is missing`},
		{"too many inputs", `"in": ["h"]`, `"in": ["h", "h"]`, "at most 1"},
		{"ids as numbers", `"in": ["o", "ids", "weights"]`, `"in": ["o", "weights", "weights"]`, "wrong element type"},
		{"numbers as ids", `"in": ["o", "ids", "weights"]`, `"in": ["ids", "ids", "weights"]`, "wrong element type"},
		{"undeclared weight", `"weights": ["norm"]`, `"weights": ["enorm"]`, `"enorm" is not declared`},
		{"left out weight", `"weights": ["router"]`, `"weights": [""]`, `weight "weight" is missing`},
		{"undeclared state", `"states": ["kv"]`, `"states": ["vk"]`, `"vk" is not declared`},
		{"missing state", `"states": ["kv"]`, `"states": []`, `state "cache" is missing`},
		{"undeclared bank", `"bank": "b"`, `"bank": "c"`, `"c" is not declared`},
		{"missing bank", `"bank": "b"`, `"bank": ""`, "names a bank"},
		{"bank where none belongs", `"weights": ["norm"], "out"`, `"weights": ["norm"], "bank": "b", "out"`, "names a bank"},
		{"norm of another width", `"shape": [4]}`, `"shape": [5]}`, `"norm" has shape [5], needs [4]`},
		{"linear of another width", `"shape": [4, 3]`, `"shape": [5, 3]`, "does not fit an input of width 4"},
		{"more experts than logits", `"name": "top_k", "i": 2`, `"name": "top_k", "i": 4`, "top_k 4 of 3 experts"},
		{"bank of another width", `"in": 6, "out": 4}`, `"in": 6, "out": 5}`, "do not fit"},
		{"unknown attribute", `"name": "exact"`, `"name": "precise"`, `unknown attribute "precise"`},
		{"attribute twice", `{"name": "exact", "b": true}`, `{"name": "exact", "b": true}, {"name": "exact", "b": true}`, "given twice"},
		{"attribute of another type", `"name": "exact", "b": true`, `"name": "exact", "i": 1`, `"exact" is an integer`},
		{"attribute without value", `"name": "exact", "b": true`, `"name": "exact"`, `"exact" has no value`},
		{"missing attribute", `{"name": "eps", "f": 1e-6}`, ``, `"eps" is missing; or it is 0 or empty`},
		{"attribute out of range", `"f": 1e-6`, `"f": 0`, `"eps" is 0`},
		{"attribute is not a number", `"f": 1e-6`, `"f": "NaN"`, "not finite"},
		{"attribute is infinite", `"name": "scale", "f": 0.7`, `"name": "scale", "f": "Infinity"`, "not finite"},
		{"unknown choice", `"s": "sigmoid"`, `"s": "max"`, `"gating" is "max"`},
		{"weight without use", `"weights": ["norm"]`, `"weights": []`, `weight "norm" is declared but no op uses it`},
		{"state outside a layer", `"ops": [{"kind": "linear", "in": ["y"]`,
			`"ops": [{"kind": "attention", "in": ["y"], "states": ["kv"], "out": ["z"], "attrs": [{"name": "heads", "i": 2}, {"name": "kv_heads", "i": 1},
			{"name": "head_dim", "i": 2}, {"name": "scale", "f": 0.7}]}, {"kind": "linear", "in": ["y"]`, "outside a layer"},
		{"logits elsewhere", `"out": ["logits"]`, `"out": ["loglts"]`, `"logits" has width 0`},
	} {
		t.Run(test.name, func(t *testing.T) {
			require.Equal(t, 1, strings.Count(small, test.old), "%q is to occur once", test.old)
			_, err := Validate(decode(t, strings.Replace(small, test.old, test.new, 1)))
			require.ErrorContains(t, err, test.say)
			require.ErrorContains(t, err, `recipe "test": plan: `)
			require.NotEqual(t, fault.Unknown, fault.KindOf(err))
		})
	}
	for _, p := range []*Plan{{}, {Schema: 1}, {Schema: 1, Model: &Model{Vocabulary: 1, ContextLength: 1}}} {
		_, err := Validate(p)
		require.Error(t, err)
	}
}

func TestAttributes(t *testing.T) {
	spec, ok := Lookup("rope")
	require.True(t, ok)
	a, err := spec.Attributes(&Op{Kind: "rope", Attrs: []*Attr{
		{Name: "head_dim", Value: &Attr_I{I: 8}}, {Name: "n_rot", Value: &Attr_I{I: 4}}, {Name: "inverse", Value: &Attr_B{B: true}},
		{Name: "scaling", Value: &Attr_S{S: "linear"}}, {Name: "factor", Value: &Attr_F{F: 2}},
	}})
	require.NoError(t, err)
	require.Equal(t, int64(8), a.Int("head_dim"))
	require.Equal(t, 2.0, a.Float("factor"))
	require.Equal(t, "linear", a.Text("scaling"))
	require.True(t, a.Flag("inverse"))
	require.Equal(t, "neox", a.Text("layout"), "a default")
	require.Equal(t, 10000.0, a.Float("base"), "a default")
	_, ok = Lookup("ropes")
	require.False(t, ok)
}

func TestSpecsAreComplete(t *testing.T) {
	for _, spec := range Ops() {
		require.NotNil(t, spec.widths, spec.Kind)
		for _, a := range spec.Attrs {
			if a.Required {
				require.Nil(t, a.Default, "%s %s", spec.Kind, a.Name)
				continue
			}
			value := &Attr{Name: a.Name}
			switch d := a.Default.(type) {
			case int64:
				value.Value = &Attr_I{I: d}
			case float64:
				value.Value = &Attr_F{F: d}
			case string:
				value.Value = &Attr_S{S: d}
			case bool:
				value.Value = &Attr_B{B: d}
			}
			alone := OpSpec{Attrs: []AttrSpec{a}}
			_, err := alone.Attributes(&Op{Attrs: []*Attr{value}})
			require.NoError(t, err, "the default of %s %s is a value it may have", spec.Kind, a.Name)
		}
	}
}

// FuzzValidate: whatever bytes a recipe returns, Validate answers and does not panic, and what it accepts has the
// value that the engine reads.
func FuzzValidate(f *testing.F) {
	p := decode(f, small)
	raw, err := proto.Marshal(p)
	require.NoError(f, err)
	f.Add(raw)
	for _, c := range opCases {
		raw, err := proto.Marshal(c.plan())
		require.NoError(f, err)
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		p := &Plan{}
		if proto.Unmarshal(raw, p) != nil {
			return
		}
		values, err := Validate(p)
		if err != nil {
			require.Nil(t, values)
			return
		}
		require.Equal(t, int64(p.Model.Vocabulary), values[Logits].Width)
		for name, v := range values {
			require.Positive(t, v.Width, name)
			require.LessOrEqual(t, v.Width, int64(math.MaxInt32), name)
		}
	})
}
