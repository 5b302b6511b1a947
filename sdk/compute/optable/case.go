package optable

import (
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/bigmoe/bigmoe/sdk/compute"
	"github.com/bigmoe/bigmoe/sdk/dtype"
	"github.com/bigmoe/bigmoe/sdk/plan"
)

// Tokens is how many tokens a case runs: the ids 0 to Tokens-1, each once, from position 0 on.
const Tokens = 13

// AllTokens returns them.
func AllTokens() []int32 {
	ids := make([]int32, Tokens)
	for i := range ids {
		ids[i] = int32(i)
	}
	return ids
}

// Matrix is rows of float64: a value (a row per token) or a weight.
type Matrix [][]float64

// Case is one small plan: ops take the value x to the value that the last op defines, in one layer.
type Case struct {
	Name    string
	Width   int      // of x
	Weights []Tensor // those of three dimensions are experts
	States  []*plan.State
	Bank    *plan.Bank // parts of the experts among Weights, GATE_UP of "gate" and "up"
	Ops     []*plan.Op
	Want    func(x Matrix, w map[string]Matrix) Matrix
	Within  float64 // of the largest magnitude in Want; 0: 1e-6
	Half    bool    // the cache is float16
	Head    bool    // the ops are in the head, not in a layer
	Tripled bool    // x is three times the row of a table in memory, otherwise the row that the batch brings
	table   *Tensor // what x is the rows of; random unless given
}

// Tensor is a weight. Values that are not given are random, with the same ones in every run.
type Tensor struct {
	Name  string
	Type  dtype.Type
	Shape []uint64

	data    []byte // given
	decoded Matrix
}

// Cases returns the cases of all ops.
func Cases() []*Case {
	var list []*Case
	for _, c := range slices.Concat(basicCases(), hybridCases(), deepseek4Cases(), latentCases()) {
		list = append(list, &c)
	}
	return append(list, Windowed(5), LongCache(), Layer())
}

// Named returns the case of Cases with that name.
func Named(name string) *Case {
	for _, c := range Cases() {
		if c.Name == name {
			return c
		}
	}
	panic("optable: no case " + name)
}

// Kinds returns the kinds of op that the case uses, each once, the embedding's and the head's included.
func (c *Case) Kinds() []string {
	kinds := []string{"embed", "scale"}
	for _, o := range c.Ops {
		if !slices.Contains(kinds, o.Kind) {
			kinds = append(kinds, o.Kind)
		}
	}
	return kinds
}

// Compare holds logits of all tokens, in one slice, to what is expected, within the tolerance of the case.
func (c *Case) Compare(m *Model, logits []float32) error {
	within, top, width := c.Within, 0.0, len(m.Want[0])
	if within == 0 {
		within = 1e-6
	}
	if len(logits) != len(m.Want)*width {
		return fmt.Errorf("%d logits, expected %d x %d", len(logits), len(m.Want), width)
	}
	for _, row := range m.Want {
		for _, v := range row {
			top = max(top, math.Abs(v))
		}
	}
	for i, row := range m.Want {
		for j, want := range row {
			if got := float64(logits[i*width+j]); !(math.Abs(got-want) <= within*top) {
				return fmt.Errorf("token %d, element %d: %g, expected %g within %.2g", i, j, got, want, within*top)
			}
		}
	}
	return nil
}

// Attrs are attributes by name.
type Attrs map[string]any

// Op builds one op. in, weights and out are lists of names separated by spaces; "-" leaves an operand out.
func Op(kind, in, weights, out string, a Attrs) *plan.Op {
	o := &plan.Op{Kind: kind, In: names(in), Weights: names(weights), Out: names(out)}
	for name, v := range a {
		attr := &plan.Attr{Name: name}
		switch v := v.(type) {
		case int:
			attr.Value = &plan.Attr_I{I: int64(v)}
		case float64:
			attr.Value = &plan.Attr_F{F: v}
		case string:
			attr.Value = &plan.Attr_S{S: v}
		case bool:
			attr.Value = &plan.Attr_B{B: v}
		}
		o.Attrs = append(o.Attrs, attr)
	}
	return o
}

func names(list string) []string {
	out := strings.Fields(list)
	for i := range out {
		if out[i] == "-" {
			out[i] = ""
		}
	}
	return out
}

// Build makes the model of a case. It fails when the case is no valid plan.
func (c *Case) Build() (*Model, error) {
	seed := fnv.New64()
	_, _ = seed.Write([]byte(c.Name))
	rng := rand.New(rand.NewPCG(seed.Sum64(), 0))
	kv := compute.KVType_F32
	if c.Half {
		kv = compute.KVType_F16
	}
	p := &plan.Plan{Schema: plan.SchemaVersion, Recipe: "case", Model: &plan.Model{Layers: 1, ContextLength: 64}, States: c.States}
	m := &Model{Bound: &compute.Bound{Plan: p, Options: &compute.Options{Context: Tokens, Batch: Tokens, LogitRows: Tokens, Threads: 1, KvType: kv}}}
	weights, experts := map[string]Matrix{}, map[string][]byte{}
	table := c.table
	if table == nil {
		table = &Tensor{Name: "table", Type: dtype.F32, Shape: []uint64{uint64(c.Width), Tokens}}
	}
	data, x := table.values(rng)
	factor := 1.0
	if c.Tripled {
		factor = 3
		m.add(table, plan.Residency_RESIDENT, data)
		for _, row := range x {
			for i := range row {
				row[i] *= factor
			}
		}
	} else {
		m.add(table, plan.Residency_ROWS, nil)
		m.Table = data
	}
	for _, w := range c.Weights {
		data, decoded := w.values(rng)
		weights[w.Name] = decoded
		if len(w.Shape) == 3 { // streamed
			experts[w.Name] = data
			continue
		}
		m.add(&w, plan.Residency_RESIDENT, data)
	}
	if c.Bank != nil {
		m.addBank(c.Bank, experts, c.Weights)
	}
	last := c.Ops[len(c.Ops)-1]
	p.Blocks = []*plan.Block{
		{Kind: plan.BlockKind_EMBEDDING, Ops: []*plan.Op{Op("embed", "", "table", "x", Attrs{"scale": factor})}},
		{Kind: plan.BlockKind_LAYER, Ops: c.Ops},
		{Kind: plan.BlockKind_HEAD, Ops: []*plan.Op{Op("scale", last.Out[0], "", plan.Logits, Attrs{"factor": 1.0})}},
	}
	if c.Head {
		p.Blocks[2].Ops = append(c.Ops[:len(c.Ops):len(c.Ops)], p.Blocks[2].Ops...)
		p.Blocks = []*plan.Block{p.Blocks[0], p.Blocks[2]}
	}
	m.Want = c.Want(x, weights)
	p.Model.Vocabulary = uint32(len(m.Want[0]))
	var err error
	if m.Bound.Values, err = plan.Validate(p); err != nil {
		return nil, fmt.Errorf("op table: %s: %w", c.Name, err)
	}
	return m, nil
}
