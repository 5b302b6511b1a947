package program

import (
	"fmt"
	"maps"
	"sort"

	"github.com/bigmoe/bigmoe/plugins/compute-cpu/internal/kernel"
	"github.com/bigmoe/bigmoe/plugins/compute-cpu/internal/kv"
	"github.com/bigmoe/bigmoe/sdk/compute"
	"github.com/bigmoe/bigmoe/sdk/dtype"
	"github.com/bigmoe/bigmoe/sdk/fault"
	"github.com/bigmoe/bigmoe/sdk/plan"
)

// Ops returns the op kinds that Compile knows, sorted.
func Ops() []string {
	var out []string
	for kind := range compilers {
		out = append(out, kind)
	}
	sort.Strings(out)
	return out
}

// compiler turns ops into steps. Steps are in the order of the ops.
type compiler struct {
	m       *compute.Bound
	p       *Program
	weights map[string]int
	banks   map[string]int
	caches  map[string]*cache
	states  map[string]*plan.State
	values  map[string]*buffer
	acts    map[actKey]ref
	angles  map[rotation]*angles

	block *plan.Block
	rest  []*plan.Op // of the block, after op
	op    *plan.Op
	attrs plan.Attrs
	head  bool     // only the rows of wanted logits are computed from here on
	last  bool     // op is the last one that has to do with states
	at    int      // index of the step that uses of values are noted for
	early *experts // whose picks are fetched before their own step

	routed []routedLayer
}

// actKey names a value rounded to a format, for some rows.
type actKey struct {
	value *buffer
	act   kernel.Act
	late  bool
}

// Compile refuses, as [fault.Unsupported], what the backend cannot do, and lays the rest out. It allocates no memory
// to speak of.
func Compile(m *compute.Bound) (*Program, error) {
	m = &compute.Bound{Plan: m.Plan, Values: maps.Clone(m.Values), Weights: m.Weights, Banks: m.Banks, Options: m.Options}
	c := &compiler{m: m, p: &Program{options: m.Options, vocab: int(m.Plan.GetModel().GetVocabulary())},
		weights: map[string]int{}, banks: map[string]int{}, caches: map[string]*cache{}, states: map[string]*plan.State{},
		values: map[string]*buffer{}, acts: map[actKey]ref{}, angles: map[rotation]*angles{}}
	if err := c.compile(); err != nil {
		return nil, fmt.Errorf("recipe %q: %w", m.Plan.GetRecipe(), err)
	}
	return c.p, nil
}

func (c *compiler) compile() error {
	o := c.p.options
	switch {
	case o == nil || o.Context == 0 || o.Batch == 0 || o.LogitRows == 0 || o.Threads == 0:
		return fault.Bugf("options: context %d, batch %d, logit rows %d, threads %d: each needs to be at least 1",
			o.GetContext(), o.GetBatch(), o.GetLogitRows(), o.GetThreads())
	case o.Threads > 1024 || o.Batch > 1<<20 || o.LogitRows > o.Batch:
		return fault.Bugf("options: threads %d, batch %d, logit rows %d", o.Threads, o.Batch, o.LogitRows)
	case len(c.m.Weights) != len(c.m.Plan.Weights) || len(c.m.Banks) != len(c.m.Plan.Banks):
		return fault.Bugf("%d weights and %d banks are bound, the plan has %d and %d",
			len(c.m.Weights), len(c.m.Banks), len(c.m.Plan.Weights), len(c.m.Plan.Banks))
	}
	if err := c.declare(); err != nil {
		return err
	}
	c.p.logits = &buffer{rowBytes: 4 * c.p.vocab, head: true}
	last := lastStateful(c.m.Plan)
	c.routed = c.routedLayers()
	for _, b := range c.m.Plan.Blocks {
		c.head = c.head || b.Kind == plan.BlockKind_HEAD
		c.block = b
		for i, op := range b.Ops {
			c.op, c.rest, c.at = op, b.Ops[i+1:], len(c.p.steps)
			c.last = op == last
			if err := c.compileOp(); err != nil {
				return fmt.Errorf("%v %d: op %s %v: %w", b.Kind, b.Layer, op.Kind, op.Out, err)
			}
			if op.Kind == "route" {
				if err := c.predict(op); err != nil {
					return fmt.Errorf("%v %d: guess after op %s %v: %w", b.Kind, b.Layer, op.Kind, op.Out, err)
				}
			}
			c.head = c.head || c.last
		}
	}
	c.p.valueBytes = layout(c.p.buffers, int(o.Batch), int(o.LogitRows))
	return nil
}

// lastStateful returns the last op that writes or reads a state, or nil. What comes after it serves the logits alone, so
// it is computed only for the tokens whose logits are wanted, as the head is (specs/qwen3moe.md section 3).
func lastStateful(p *plan.Plan) (last *plan.Op) {
	for _, b := range p.Blocks {
		for _, op := range b.Ops {
			if len(op.States) > 0 {
				last = op
			}
		}
	}
	return last
}

func (c *compiler) declare() error {
	ids := idTables(c.m.Plan)
	for i, w := range c.m.Plan.Weights {
		bound, t := c.m.Weights[i], dtype.Type(c.m.Weights[i].Type)
		if _, ok := kernel.ActFor(t); !ok && !(ids[w.Name] && t == dtype.I32) {
			return fault.Unsupportedf("weight %q is %v, which the cpu backend has no kernel for", w.Name, t)
		}
		rowBytes, err := t.RowBytes(int64(w.Shape[0]))
		if err != nil {
			return fmt.Errorf("weight %q: %w", w.Name, err)
		}
		if uint64(rowBytes) != bound.RowBytes {
			return fault.Bugf("weight %q: %d bytes per row are bound, %d %v elements take %d", w.Name, bound.RowBytes, w.Shape[0], t, rowBytes)
		}
		rows := uint64(1)
		for _, d := range w.Shape[1:] {
			if rows *= d; rows > 1<<40 {
				return fault.Unsupportedf("weight %q has shape %v", w.Name, w.Shape)
			}
		}
		if rows > (1<<46)/uint64(rowBytes) {
			return fault.Unsupportedf("weight %q has shape %v", w.Name, w.Shape)
		}
		out := &weight{name: w.Name, t: t, n: int(w.Shape[0]), rows: int(rows), rowBytes: int(rowBytes), byRow: -1, offset: bound.Offset}
		if w.Residency == plan.Residency_ROWS {
			out.byRow = len(c.p.byRow)
			c.p.byRow = append(c.p.byRow, out.rowBytes)
		}
		c.weights[w.Name] = i
		c.p.weights = append(c.p.weights, out)
	}
	for i, b := range c.m.Plan.Banks {
		if len(c.m.Banks[i].Parts) != len(b.Parts) {
			return fault.Bugf("bank %q: %d parts are bound, the plan has %d", b.Name, len(c.m.Banks[i].Parts), len(b.Parts))
		}
		c.banks[b.Name] = i
	}
	for _, s := range c.m.Plan.States {
		switch s.Kind {
		case plan.StateKind_KV, plan.StateKind_COMPRESSED:
		case plan.StateKind_CONVOLUTION, plan.StateKind_RECURRENT:
			if s.Elements > 1<<40 {
				return fault.Unsupportedf("state %q has %d elements", s.Name, s.Elements)
			}
		default:
			return fault.Unsupportedf("state %q is %v, which the cpu backend does not have", s.Name, s.Kind)
		}
		c.states[s.Name] = s
	}
	return nil
}

func (c *compiler) compileOp() error {
	compile := compilers[c.op.Kind]
	spec, ok := plan.Lookup(c.op.Kind)
	if compile == nil || !ok {
		return fault.Unsupportedf("the cpu backend does not have op %q", c.op.Kind)
	}
	var err error
	if c.attrs, err = spec.Attributes(c.op); err != nil {
		return err
	}
	return compile(c)
}

// emit appends a step. Values must have been asked for before.
func (c *compiler) emit(s step) {
	c.p.steps = append(c.p.steps, s)
	c.at = len(c.p.steps)
}

// has reports whether optional input i is given.
func (c *compiler) has(i int) bool { return i < len(c.op.In) && c.op.In[i] != "" }

// in returns input i.
func (c *compiler) in(i int) ref { return c.use(c.values[c.op.In[i]]) }

// inWhole returns input i for a step that reads it for every token of the batch.
func (c *compiler) inWhole(i int) ref {
	r := c.in(i)
	r.late = false
	return r
}

// use notes that the step about to be emitted reads b.
func (c *compiler) use(b *buffer) ref {
	b.last = max(b.last, c.at)
	return ref{buffer: b, late: c.head && !b.head}
}

// make returns a new buffer of rows of rowBytes bytes that lives for the step about to be emitted, or longer.
func (c *compiler) make(rowBytes int) ref {
	b := &buffer{rowBytes: rowBytes, head: c.head, first: c.at, last: c.at}
	c.p.buffers = append(c.p.buffers, b)
	return ref{buffer: b}
}

// out returns output i.
func (c *compiler) out(i int) ref {
	name := c.op.Out[i]
	if name == plan.Logits {
		c.values[name] = c.p.logits
		return ref{buffer: c.p.logits}
	}
	r := c.make(4 * int(c.m.Values[name].Width))
	c.values[name] = r.buffer
	return r
}

// outOver is out for a step that may write row i of the output over row i of an input.
func (c *compiler) outOver(i int, in ref) ref {
	r := c.out(i)
	if r.buffer != c.p.logits && in.buffer != c.p.logits && !in.late {
		r.over = in.buffer
	}
	return r
}

// weightAt returns weight i, nil when an optional one is left out.
func (c *compiler) weightAt(i int) *weight {
	if i >= len(c.op.Weights) || c.op.Weights[i] == "" {
		return nil
	}
	return c.p.weights[c.weights[c.op.Weights[i]]]
}

// vector is weightAt for a weight that is used as float32 numbers.
func (c *compiler) vector(i int) *weight {
	w := c.weightAt(i)
	if w != nil {
		w.asVector = true
	}
	return w
}

// rounded returns x in format a, and the step that makes it unless an earlier one has.
func (c *compiler) rounded(x ref, a kernel.Act) (ref, *rounding) {
	if a == kernel.ActF32 {
		return x, nil
	}
	key := actKey{value: x.buffer, act: a, late: x.late}
	if r, ok := c.acts[key]; ok {
		return c.use(r.buffer), nil
	}
	r := c.make(a.RowBytes(x.width()))
	c.acts[key] = r
	return r, newRounding(a, x, r, c.head)
}

// cacheFor returns the cache of state i.
func (c *compiler) cacheFor(i, heads, keyDim, valueDim int) (*cache, error) {
	name := c.op.States[i]
	l := kv.Layout{Positions: c.positions(c.states[name]), Heads: heads, KeyDim: keyDim, ValueDim: valueDim, Half: c.p.options.KvType == compute.KVType_F16}
	if s := c.states[name]; s.ValueWidth == 0 {
		l.ValueDim = 0
	}
	have := c.caches[name]
	if have == nil {
		have = &cache{layout: l, name: name, window: int(c.states[name].Window)}
		c.caches[name] = have
		c.p.caches = append(c.p.caches, have)
	}
	if have.layout != l {
		return nil, fault.Unsupportedf("state %q is shared by attentions of different shapes", name)
	}
	return have, nil
}

// grow raises a scratch size.
func grow(have *int, n int) { *have = max(*have, n) }
