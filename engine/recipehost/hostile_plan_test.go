package recipehost_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/bigmoe/bigmoe/engine/gguf"
	"github.com/bigmoe/bigmoe/engine/model"
	"github.com/bigmoe/bigmoe/engine/recipehost"
	"github.com/bigmoe/bigmoe/recipes"
	"github.com/bigmoe/bigmoe/sdk/fault"
	"github.com/bigmoe/bigmoe/sdk/plan"
)

// returning is a module that returns the given bytes as its plan, whatever it is asked about.
func returning(result []byte) []byte {
	size := func(n int) []byte { return binary.AppendUvarint(nil, uint64(n)) }
	section := func(id byte, parts ...[]byte) []byte {
		body := bytes.Join(parts, nil)
		return bytes.Join([][]byte{{id}, size(len(body)), body}, nil)
	}
	name := func(s string) []byte { return append(size(len(s)), s...) }
	function := func(code ...[]byte) []byte {
		body := append(append([]byte{0}, bytes.Join(code, nil)...), 0x0b)
		return append(size(len(body)), body...)
	}
	constant := func(n int) []byte { // of 32 bits, in seven bits each and one for the sign
		out := []byte{0x41}
		for ; n >= 0x40; n >>= 7 {
			out = append(out, byte(n)|0x80)
		}
		return append(out, byte(n))
	}
	return bytes.Join([][]byte{
		[]byte("\x00asm\x01\x00\x00\x00"),
		section(1, []byte{3, 0x60, 2, 0x7f, 0x7f, 0, 0x60, 0, 1, 0x7f, 0x60, 0, 0}),
		section(2, []byte{1}, name("bigmoe_v1"), name("plan"), []byte{0, 0}),
		section(3, []byte{2, 1, 2}),
		section(5, []byte{1, 0}, size(len(result)>>16+1)),
		section(7, []byte{3}, name("memory"), []byte{2, 0}, name("bigmoe_abi_version"), []byte{0, 1}, name("bigmoe_plan"), []byte{0, 2}),
		section(10, []byte{2}, function(constant(recipehost.ABIVersion)), function(constant(0), constant(len(result)), []byte{0x10, 0})),
		section(11, []byte{1, 0}, constant(0), []byte{0x0b}, size(len(result)), result),
	}, nil)
}

// hostilePlans are changes of a good plan of testdata/golden/qwen3moe/qwen3moe-f32.gguf, each of which must be refused before
// anything is loaded.
var hostilePlans = []struct {
	name   string
	change func(p *plan.Plan)
	kind   fault.Kind
	say    string
}{
	// Against the file.
	{"tensor-absent", func(p *plan.Plan) { weight(p).Sources[0].Tensor = "blk.9.gone.weight" }, fault.Corrupt, `tensor "blk.9.gone.weight" is missing`},
	{"tensor-other", func(p *plan.Plan) { weight(p).Sources[0].Tensor = "blk.0.attn_k.weight" }, fault.Corrupt, `tensor "blk.0.attn_k.weight": expected shape`},
	{"tensor-type", func(p *plan.Plan) { weight(p).Types = []uint32{8} }, fault.Unsupported, "expected type [Q8_0], found F32"},
	{"rows-outside", func(p *plan.Plan) { weight(p).Sources[0].FirstRow = 1 << 39 }, fault.Corrupt, "expected at least"},
	{"rows-overflow", func(p *plan.Plan) { weight(p).Sources[0].FirstRow = math.MaxUint64 }, fault.Corrupt, "rows 18446744073709551615+0"},
	{"shape-overflow", func(p *plan.Plan) {
		w := weight(p)
		w.Sources = append(w.Sources, w.Sources[0])
		w.Shape = []uint64{w.Shape[0], 1 << 40, 1 << 40}
		block(p, 1).Ops = append(block(p, 1).Ops, &plan.Op{Kind: "linear", In: []string{"h"}, Weights: []string{w.Name}, Out: []string{"x"}})
	}, fault.Corrupt, "shape"},
	{"experts-absent", func(p *plan.Plan) { p.Banks[0].Parts[0].Tensors[0] = "gone" }, fault.Corrupt, `tensor "gone" is missing`},
	{"experts-other", func(p *plan.Plan) { p.Banks[0].Parts[0].Tensors[0] = p.Banks[0].Parts[2].Tensors[0] }, fault.Corrupt, "expected shape"},
	{"experts-shared", func(p *plan.Plan) { p.Banks[0].Parts[0].Tensors[0] = p.Banks[0].Parts[1].Tensors[0] }, fault.Corrupt, "is used as experts and again as experts"},
	{"experts-of-two-layers", func(p *plan.Plan) { p.Banks[1].Parts[0].Tensors[0] = p.Banks[0].Parts[0].Tensors[0] }, fault.Corrupt, "layer 1"},
	{"experts-as-weight", func(p *plan.Plan) { p.Banks[0].Parts[0].Tensors[0] = weight(p).Sources[0].Tensor }, fault.Corrupt, "is used as a weight and again as experts"},
	{"experts-more", func(p *plan.Plan) { p.Banks[0].Experts++ }, fault.Corrupt, "expected shape [96 32 17], found [96 32 16]"},
	{"unused-used", func(p *plan.Plan) { p.Unused = append(p.Unused, &plan.Unused{Tensor: weight(p).Sources[0].Tensor}) }, fault.Corrupt, "lists it as unused"},
	{"tensor-left-out", func(p *plan.Plan) { weight(p).Sources[0].Tensor = "blk.1.attn_q.weight" }, fault.Unsupported, `"blk.0.attn_q.weight": recipe "liar" neither uses it`},

	// In itself.
	{"schema-newer", func(p *plan.Plan) { p.Schema = plan.SchemaVersion + 1 }, fault.Unsupported, "schema version 2"},
	{"op-unknown", func(p *plan.Plan) { block(p, 1).Ops[0].Kind = "system" }, fault.Unsupported, `unknown op "system"`},
	{"attribute-nan", func(p *plan.Plan) { attribute(p, "eps").Value = &plan.Attr_F{F: math.NaN()} }, fault.Corrupt, `attribute "eps" is not finite`},
	{"attribute-infinite", func(p *plan.Plan) { attribute(p, "eps").Value = &plan.Attr_F{F: math.Inf(1)} }, fault.Corrupt, `attribute "eps" is not finite`},
	{"attribute-negative", func(p *plan.Plan) { attribute(p, "head_dim").Value = &plan.Attr_I{I: -32} }, fault.Corrupt, `attribute "head_dim" is -32`},
	{"attribute-huge", func(p *plan.Plan) { attribute(p, "head_dim").Value = &plan.Attr_I{I: math.MaxInt64} }, fault.Corrupt, `attribute "head_dim" is 9.223372036854776e+18`},
	{"attribute-type", func(p *plan.Plan) { attribute(p, "eps").Value = &plan.Attr_S{S: "1e-6"} }, fault.Corrupt, `attribute "eps" is a text`},
	{"cycle", func(p *plan.Plan) { op := block(p, 1).Ops[0]; op.In[0] = op.Out[0] }, fault.Corrupt, "is not defined yet"},
	{"cycle-of-layers", func(p *plan.Plan) { block(p, 1).Ops[0].In[0] = block(p, 2).Ops[0].Out[0] }, fault.Corrupt, "is not defined yet"},
	{"value-twice", func(p *plan.Plan) { block(p, 1).Ops[1].Out[0] = block(p, 1).Ops[0].Out[0] }, fault.Corrupt, "is defined twice"},
	{"weight-twice", func(p *plan.Plan) { p.Weights = append(p.Weights, p.Weights[0]) }, fault.Corrupt, "is declared twice"},
	{"weight-as-rows", func(p *plan.Plan) { weight(p).Residency = plan.Residency_ROWS }, fault.Corrupt, "is read by row"},
	{"bank-twice", func(p *plan.Plan) { p.Banks = append(p.Banks, p.Banks[0]) }, fault.Corrupt, "is declared twice"},
	{"shape-zero", func(p *plan.Plan) { weight(p).Shape[0] = 0 }, fault.Corrupt, "has shape [0 "},
	{"shape-huge", func(p *plan.Plan) { weight(p).Shape[1] = math.MaxUint64 }, fault.Corrupt, "has shape ["},
	{"width-overflow", func(p *plan.Plan) { p.Banks[0].Parts[2].In = 1 << 40 }, fault.Corrupt, `bank "`},
	{"state-huge", func(p *plan.Plan) { p.States[0].KeyWidth = 1 << 40 }, fault.Corrupt, "implausible size"},
	{"layers-huge", func(p *plan.Plan) { p.Model.Layers = math.MaxUint32 }, fault.Corrupt, "4294967295 layers"},
	{"layers-few", func(p *plan.Plan) { p.Model.Layers = 1 }, fault.Corrupt, "is layer 1 of 1"},
	{"vocabulary", func(p *plan.Plan) { p.Model.Vocabulary++ }, fault.Corrupt, "needs the vocabulary"},
	{"weights-many", func(p *plan.Plan) {
		for range 1<<17 + 1 {
			p.Weights = append(p.Weights, &plan.Weight{})
		}
	}, fault.Corrupt, "implausible size"},
	{"ops-many", func(p *plan.Plan) {
		for range 1<<17 + 1 {
			block(p, 1).Ops = append(block(p, 1).Ops, &plan.Op{})
		}
	}, fault.Corrupt, "more than 131072 ops"},
	{"operands-many", func(p *plan.Plan) { block(p, 1).Ops[0].In = make([]string, 1<<16) }, fault.Corrupt, "65536 inputs"},
	{"name-no-text", func(p *plan.Plan) { weight(p).Name = "\xff\xfe" }, fault.Corrupt, "not a plan"},
}

// weight is a dense matrix of the first layer.
func weight(p *plan.Plan) *plan.Weight {
	for _, w := range p.Weights {
		if w.Name == "blk.0.attn_q.weight" {
			return w
		}
	}
	panic("no such weight")
}

func block(p *plan.Plan, i int) *plan.Block { return p.Blocks[i] }

// attribute is the first of that name.
func attribute(p *plan.Plan, name string) *plan.Attr {
	for _, b := range p.Blocks {
		for _, op := range b.Ops {
			for _, a := range op.Attrs {
				if a.Name == name {
					return a
				}
			}
		}
	}
	panic("no such attribute")
}

// good returns the file and its plan.
func good(t testing.TB) (*gguf.File, *plan.Plan) {
	t.Helper()
	f, err := gguf.Open("../../testdata/golden/qwen3moe/qwen3moe-f32.gguf")
	require.NoError(t, err)
	t.Cleanup(func() { f.Close() })
	module, ok := recipes.Lookup("qwen3moe")
	require.True(t, ok)
	p, _, err := recipehost.New(recipehost.Options{}).Plan(context.Background(), "qwen3moe", module, recipehost.File(f))
	require.NoError(t, err)
	return f, p
}

// bind does with the bytes that a recipe returns what the engine does.
func bind(f *gguf.File, result []byte) (*model.Model, error) {
	host := recipehost.New(recipehost.Options{MaxModuleBytes: 32 << 20})
	p, values, err := host.Plan(context.Background(), "liar", returning(result), recipehost.File(f))
	if err != nil {
		return nil, err
	}
	return model.Bind(p, values, f)
}

func TestHostilePlans(t *testing.T) {
	f, p := good(t)
	page, err := os.ReadFile("../../docs/hostile.md")
	require.NoError(t, err)
	raw, err := proto.Marshal(p)
	require.NoError(t, err)
	_, err = bind(f, raw)
	require.NoError(t, err, "before it was changed")
	refused := func(name string, raw []byte, kind fault.Kind, say string) {
		t.Run(name, func(t *testing.T) {
			_, err := bind(f, raw)
			require.ErrorContains(t, err, `recipe "liar"`)
			require.ErrorContains(t, err, say)
			require.Equal(t, kind, fault.KindOf(err), "%v", err)
			require.Less(t, len(err.Error()), 8<<10)
			require.True(t, bytes.Contains(page, []byte("| `"+name+"` |")), "not in docs/hostile.md")
		})
	}
	for _, test := range hostilePlans {
		changed := proto.CloneOf(p)
		test.change(changed)
		raw, err := proto.MarshalOptions{AllowPartial: true}.Marshal(changed)
		if test.name == "name-no-text" { // what the library does not write
			require.Error(t, err)
			raw = bytes.ReplaceAll(mustMarshal(t, p), []byte("blk.0.attn_q.weight"), []byte("blk.0.attn_q.w\xff\xfeght"))
		} else {
			require.NoError(t, err)
		}
		refused(test.name, raw, test.kind, test.say)
	}
	refused("plan-cut", raw[:len(raw)-3], fault.Corrupt, "not a plan")
	refused("plan-deep", []byte(strings.Repeat("\xa3\x06", 1<<20)), fault.Corrupt, "not a plan")
}

func mustMarshal(t testing.TB, p *plan.Plan) []byte {
	raw, err := proto.Marshal(p)
	require.NoError(t, err)
	return raw
}

// FuzzPlan: whatever bytes a recipe returns, either they are refused or every byte that would be read lies in the file.
func FuzzPlan(f *testing.F) {
	file, p := good(f)
	f.Add(mustMarshal(f, p))
	for _, test := range hostilePlans {
		if strings.HasSuffix(test.name, "-many") { // large
			continue
		}
		changed := proto.CloneOf(p)
		test.change(changed)
		if raw, err := proto.Marshal(changed); err == nil {
			f.Add(raw)
		}
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		p := &plan.Plan{}
		if proto.Unmarshal(raw, p) != nil {
			return
		}
		values, err := plan.Validate(p)
		if err != nil {
			return
		}
		m, err := model.Bind(p, values, file)
		if err != nil {
			require.NotEqual(t, fault.Unknown, fault.KindOf(err), "%v", err)
			return
		}
		inside := func(shard int, offset, bytes int64) {
			require.GreaterOrEqual(t, offset, int64(0))
			require.Positive(t, bytes)
			require.LessOrEqual(t, offset+bytes, file.Shards()[shard].Size)
		}
		for _, w := range m.Weights {
			var total int64
			for _, r := range w.Ranges {
				inside(r.Shard, r.Offset, r.Bytes)
				total += r.Bytes
			}
			require.Equal(t, w.Bytes(), total)
		}
		for _, b := range m.Banks {
			for _, part := range b.Bank.Parts {
				for e := range int64(b.Experts) {
					if part.At != nil {
						inside(part.At[e].File, part.At[e].Offset, part.Bytes)
					} else {
						inside(part.File, part.Offset+e*part.Stride, part.Bytes)
					}
				}
			}
		}
	})
}
