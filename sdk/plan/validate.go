package plan

import (
	"fmt"
	"math"

	"github.com/bigmoe/bigmoe/sdk/fault"
)

// SchemaVersion is the newest plan schema this package reads. Older ones keep working.
const SchemaVersion = 1

// Limits keep a hostile plan from costing more than the checks themselves.
const (
	maxItems  = 1 << 17 // weights, states, ops: each
	maxLayers = 1000
	maxDim    = 1 << 40
)

// Values holds what validation learned: the width of every value, in elements per token. Integer values are int32,
// all others float32.
type Values map[string]Value

// Value is the shape of one value.
type Value struct {
	Width   int64
	Integer bool
}

// Logits is the name of the value that a plan must define last: one row of vocabulary width per wanted token.
const Logits = "logits"

// Validate checks that p is complete and consistent in itself: known ops, defined operands, fitting widths, finite
// attributes, every weight, bank and state used. It does not look at a model file. The error names the recipe and
// the op; a plan that fails is the recipe's mistake ([fault.Unsupported] for a newer schema or unknown op).
func Validate(p *Plan) (Values, error) {
	v := &validator{plan: p, values: Values{}, weights: map[string]*Weight{}, banks: map[string]*Bank{}, states: map[string]*State{},
		used: map[string]bool{}}
	if err := v.run(); err != nil {
		return nil, fmt.Errorf("recipe %q: plan: %w", p.GetRecipe(), err)
	}
	return v.values, nil
}

type validator struct {
	plan    *Plan
	values  Values
	weights map[string]*Weight
	banks   map[string]*Bank
	states  map[string]*State
	used    map[string]bool // "weight NAME", "bank NAME", "state NAME"
}

func (v *validator) run() error {
	p := v.plan
	switch {
	case p.Schema == 0 || p.Schema > SchemaVersion:
		return fault.Unsupportedf("schema version %d, this build reads 1 to %d", p.Schema, SchemaVersion)
	case p.Model == nil:
		return fault.Corruptf("no model section")
	case len(p.Blocks) > maxLayers+8 || len(p.Weights) > maxItems || len(p.States) > maxItems || len(p.Banks) > maxLayers:
		return fault.Corruptf("implausible size: %d blocks, %d weights, %d states, %d banks", len(p.Blocks), len(p.Weights), len(p.States), len(p.Banks))
	case p.Model.Vocabulary == 0 || p.Model.Vocabulary > maxWidth || p.Model.ContextLength == 0:
		return fault.Corruptf("model section: vocabulary %d, context_length %d", p.Model.Vocabulary, p.Model.ContextLength)
	case p.Model.Layers > maxLayers:
		return fault.Corruptf("model section: %d layers, at most %d are possible", p.Model.Layers, maxLayers)
	}
	for _, step := range []func() error{v.declareWeights, v.declareBanks, v.declareStates, v.blocks, v.nothingUnused} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

func (v *validator) declareWeights() error {
	for i, w := range v.plan.Weights {
		switch {
		case w.Name == "":
			return fault.Corruptf("weight %d has no name", i)
		case v.weights[w.Name] != nil:
			return fault.Corruptf("weight %q is declared twice", w.Name)
		case len(w.Shape) == 0 || len(w.Shape) > 4:
			return fault.Corruptf("weight %q has %d dimensions, needs 1 to 4", w.Name, len(w.Shape))
		case len(w.Sources) == 0 || len(w.Sources) > maxLayers:
			return fault.Corruptf("weight %q has %d sources", w.Name, len(w.Sources))
		case w.Residency == Residency_ROWS && (len(w.Shape) != 2 || len(w.Sources) != 1):
			return fault.Corruptf("weight %q is read by row: needs two dimensions and one source", w.Name)
		case Residency_name[int32(w.Residency)] == "":
			return fault.Corruptf("weight %q has unknown residency %d", w.Name, w.Residency)
		}
		for _, d := range w.Shape {
			if d == 0 || d > maxDim {
				return fault.Corruptf("weight %q has shape %v", w.Name, w.Shape)
			}
		}
		for _, s := range w.Sources {
			if s.GetTensor() == "" || s.FirstRow > maxDim || s.Rows > maxDim {
				return fault.Corruptf("weight %q has source %q rows %d+%d", w.Name, s.GetTensor(), s.GetFirstRow(), s.GetRows())
			}
		}
		v.weights[w.Name] = w
	}
	return nil
}

func (v *validator) declareBanks() error {
	for i, b := range v.plan.Banks {
		switch {
		case b.Name == "":
			return fault.Corruptf("bank %d has no name", i)
		case v.banks[b.Name] != nil:
			return fault.Corruptf("bank %q is declared twice", b.Name)
		case b.Experts == 0 || b.Experts > 1<<16:
			return fault.Corruptf("bank %q has %d experts", b.Name, b.Experts)
		case b.Layer >= maxLayers:
			return fault.Corruptf("bank %q belongs to layer %d", b.Name, b.Layer)
		case len(b.Parts) == 0 || len(b.Parts) > 3:
			return fault.Corruptf("bank %q has %d parts, needs 1 to 3", b.Name, len(b.Parts))
		}
		for _, part := range b.Parts {
			if n := len(part.Tensors); n != 1 && n != int(b.Experts) {
				return fault.Corruptf("bank %q part %v has %d tensors, needs 1 or one per expert (%d)", b.Name, part.Role, n, b.Experts)
			}
			if part.In == 0 || part.Out == 0 || part.In > maxWidth || part.Out > maxWidth {
				return fault.Corruptf("bank %q part %v is %d -> %d", b.Name, part.Role, part.In, part.Out)
			}
		}
		if _, _, err := BankWidths(b); err != nil {
			return err
		}
		v.banks[b.Name] = b
	}
	return nil
}

// BankWidths returns what an expert of b takes and gives (the embedding width) and its hidden width. It fails unless
// the parts are gate, up, down or fused gate_up, down and fit together.
func BankWidths(b *Bank) (embedding, hidden int64, err error) {
	byRole := map[Role]*Part{}
	for _, p := range b.Parts {
		if byRole[p.Role] != nil {
			return 0, 0, fault.Corruptf("bank %q has two %v parts", b.Name, p.Role)
		}
		byRole[p.Role] = p
	}
	down := byRole[Role_DOWN]
	if down == nil {
		return 0, 0, fault.Corruptf("bank %q has no DOWN part", b.Name)
	}
	e, f := down.Out, down.In
	ok := false
	switch gu, g, u := byRole[Role_GATE_UP], byRole[Role_GATE], byRole[Role_UP]; {
	case gu != nil && len(b.Parts) == 2:
		ok = gu.In == e && gu.Out == 2*f
	case g != nil && u != nil && len(b.Parts) == 3:
		ok = g.In == e && g.Out == f && u.In == e && u.Out == f
	}
	if !ok {
		return 0, 0, fault.Corruptf("bank %q: parts do not fit a hidden width of %d and an embedding width of %d", b.Name, f, e)
	}
	return int64(e), int64(f), nil
}

func (v *validator) declareStates() error {
	for i, s := range v.plan.States {
		bad := ""
		switch {
		case s.Name == "":
			return fault.Corruptf("state %d has no name", i)
		case v.states[s.Name] != nil:
			return fault.Corruptf("state %q is declared twice", s.Name)
		case s.KeyWidth > maxWidth || s.ValueWidth > maxWidth || s.Elements > 1<<32 || s.Window > maxDim || s.Ratio > maxCount:
			bad = "implausible size"
		case s.Kind == StateKind_KV && (s.KeyWidth == 0 || s.Elements != 0 || s.Ratio != 0):
			bad = "KV needs a key width and nothing else but a value width and a window"
		case s.Kind == StateKind_COMPRESSED && (s.KeyWidth == 0 || s.Ratio == 0 || s.Elements != 0):
			bad = "COMPRESSED needs a key width and a ratio"
		case (s.Kind == StateKind_CONVOLUTION || s.Kind == StateKind_RECURRENT) && (s.Elements == 0 || s.KeyWidth != 0 || s.ValueWidth != 0):
			bad = "needs elements and no widths"
		case s.Kind == StateKind_STATE_UNSPECIFIED || StateKind_name[int32(s.Kind)] == "":
			bad = "unknown kind"
		case s.Kind != StateKind_KV && s.Kind != StateKind_COMPRESSED && s.Rewind != Rewind_SNAPSHOT:
			bad = "cannot be trimmed: rewind must be SNAPSHOT"
		}
		if bad != "" {
			return fault.Corruptf("state %q (%v): %s", s.Name, s.Kind, bad)
		}
		v.states[s.Name] = s
	}
	return nil
}

func (v *validator) blocks() error {
	p, nOps, nextLayer := v.plan, 0, uint32(0)
	if len(p.Blocks) < 2 {
		return fault.Corruptf("%d blocks: needs at least an embedding and a head", len(p.Blocks))
	}
	for i, b := range p.Blocks {
		want := BlockKind_LAYER
		switch i {
		case 0:
			want = BlockKind_EMBEDDING
		case len(p.Blocks) - 1:
			want = BlockKind_HEAD
		}
		if b.Kind != want {
			return fault.Corruptf("block %d is %v, needs to be %v", i, b.Kind, want)
		}
		if b.Kind == BlockKind_LAYER {
			if b.Layer < nextLayer || b.Layer >= p.Model.Layers {
				return fault.Corruptf("block %d is layer %d of %d, needs at least %d", i, b.Layer, p.Model.Layers, nextLayer)
			}
			nextLayer = b.Layer + 1
		}
		if nOps += len(b.Ops); nOps > maxItems {
			return fault.Corruptf("more than %d ops", maxItems)
		}
		for j, op := range b.Ops {
			if err := v.op(b, op); err != nil {
				return fmt.Errorf("block %d (%v layer %d), op %d: %w", i, b.Kind, b.Layer, j, err)
			}
		}
	}
	if out, ok := v.values[Logits]; !ok || out.Integer || out.Width != int64(p.Model.Vocabulary) {
		return fault.Corruptf("value %q has width %d, needs the vocabulary of %d", Logits, out.Width, p.Model.Vocabulary)
	}
	return nil
}

func (v *validator) op(b *Block, op *Op) error {
	spec, ok := Lookup(op.Kind)
	if !ok {
		return fault.Unsupportedf("unknown op %q", op.Kind)
	}
	o := &operands{spec: &spec, op: op}
	if len(op.In) > len(spec.In) || len(op.Weights) > len(spec.Weights) || len(op.States) > len(spec.States) || len(op.Out) != len(spec.Out) {
		return o.errf("%d inputs, %d weights, %d states, %d outputs: at most %d, %d, %d and exactly %d are possible",
			len(op.In), len(op.Weights), len(op.States), len(op.Out), len(spec.In), len(spec.Weights), len(spec.States), len(spec.Out))
	}
	for i, want := range spec.In {
		name := at(op.In, i)
		val, ok := v.values[name]
		switch {
		case name == "" && want.Optional:
		case name == "":
			return o.errf("input %q is missing", want.Name)
		case !ok:
			return o.errf("input %q: value %q is not defined yet", want.Name, name)
		case val.Integer != want.Integer:
			return o.errf("input %q: value %q has the wrong element type", want.Name, name)
		}
		o.in = append(o.in, val)
	}
	for i, want := range spec.Weights {
		name := at(op.Weights, i)
		w := v.weights[name]
		switch {
		case name == "" && want.Optional:
		case name == "":
			return o.errf("weight %q is missing", want.Name)
		case w == nil:
			return o.errf("weight %q: %q is not declared", want.Name, name)
		case (w.Residency == Residency_ROWS) && op.Kind != "embed" && op.Kind != "token_row":
			return o.errf("weight %q is read by row, only embed and token_row can use it", name)
		default:
			v.used["weight "+name] = true
		}
		o.weights = append(o.weights, w)
	}
	for i, want := range spec.States {
		name := at(op.States, i)
		s := v.states[name]
		switch {
		case name == "" && want.Optional:
		case name == "":
			return o.errf("state %q is missing", want.Name)
		case s == nil:
			return o.errf("state %q: %q is not declared", want.Name, name)
		case s.Kind != want.Kind:
			return o.errf("state %q is %v, needs %v", name, s.Kind, want.Kind)
		case b.Kind != BlockKind_LAYER:
			return o.errf("state %q outside a layer", name)
		default:
			v.used["state "+name] = true
		}
		o.states = append(o.states, s)
	}
	if (op.Bank != "") != spec.Bank {
		return o.errf("bank %q: an experts op, and only that, names a bank", op.Bank)
	}
	if spec.Bank {
		if o.bank = v.banks[op.Bank]; o.bank == nil {
			return o.errf("bank %q is not declared", op.Bank)
		}
		if v.used["bank "+op.Bank] {
			return o.errf("bank %q is used twice", op.Bank)
		}
		if b.Kind != BlockKind_LAYER || o.bank.Layer != b.Layer {
			return o.errf("bank %q belongs to layer %d", op.Bank, o.bank.Layer)
		}
		v.used["bank "+op.Bank] = true
	}
	attrs, err := spec.Attributes(op)
	if err != nil {
		return err
	}
	o.attrs = attrs
	widths, err := spec.widths(o)
	if err != nil {
		return err
	}
	for i, name := range op.Out {
		if _, dup := v.values[name]; dup || name == "" {
			return o.errf("output %q is defined twice or has no name", name)
		}
		if widths[i] <= 0 || widths[i] > maxWidth {
			return o.errf("output %q has width %d", name, widths[i])
		}
		v.values[name] = Value{Width: widths[i], Integer: spec.Out[i].Integer}
	}
	return nil
}

func (v *validator) nothingUnused() error {
	for _, w := range v.plan.Weights {
		if !v.used["weight "+w.Name] {
			return fault.Corruptf("weight %q is declared but no op uses it", w.Name)
		}
	}
	for _, b := range v.plan.Banks {
		if !v.used["bank "+b.Name] {
			return fault.Corruptf("bank %q is declared but no op uses it", b.Name)
		}
	}
	for _, s := range v.plan.States {
		if !v.used["state "+s.Name] {
			return fault.Corruptf("state %q is declared but no op uses it", s.Name)
		}
	}
	return nil
}

func at(list []string, i int) string {
	if i < len(list) {
		return list[i]
	}
	return ""
}

// Attrs are the attributes of one op with the defaults filled in: int64, float64, string or bool by name.
type Attrs map[string]any

// Int returns an integer attribute.
func (a Attrs) Int(name string) int64 { v, _ := a[name].(int64); return v }

// Float returns a number.
func (a Attrs) Float(name string) float64 { v, _ := a[name].(float64); return v }

// Text returns a text.
func (a Attrs) Text(name string) string { v, _ := a[name].(string); return v }

// Flag returns a flag.
func (a Attrs) Flag(name string) bool { v, _ := a[name].(bool); return v }

// Attributes checks op's attributes against the spec and fills in the defaults. Numbers must be finite; NaN and
// infinity are refused.
func (s OpSpec) Attributes(op *Op) (Attrs, error) {
	fail := func(format string, args ...any) error {
		return fault.Corruptf("%s %v: %s", op.Kind, op.Out, fmt.Sprintf(format, args...))
	}
	out := Attrs{}
	for _, a := range op.Attrs {
		i := -1
		for j := range s.Attrs {
			if s.Attrs[j].Name == a.Name {
				i = j
			}
		}
		if i < 0 {
			return nil, fail("unknown attribute %q", a.Name)
		}
		if _, dup := out[a.Name]; dup {
			return nil, fail("attribute %q is given twice", a.Name)
		}
		spec := s.Attrs[i]
		var n float64
		switch val := a.Value.(type) {
		case *Attr_I:
			if spec.Type != Int {
				return nil, fail("attribute %q is an integer", a.Name)
			}
			out[a.Name], n = val.I, float64(val.I)
		case *Attr_F:
			if spec.Type != Float {
				return nil, fail("attribute %q is a number", a.Name)
			}
			out[a.Name], n = val.F, val.F
		case *Attr_S:
			if spec.Type != Text {
				return nil, fail("attribute %q is a text", a.Name)
			}
			out[a.Name] = val.S
			if !contains(spec.OneOf, val.S) {
				return nil, fail("attribute %q is %q, needs one of %q", a.Name, val.S, spec.OneOf)
			}
		case *Attr_B:
			if spec.Type != Flag {
				return nil, fail("attribute %q is a flag", a.Name)
			}
			out[a.Name] = val.B
		default:
			return nil, fail("attribute %q has no value", a.Name)
		}
		if math.IsNaN(n) || math.IsInf(n, 0) {
			return nil, fail("attribute %q is not finite", a.Name)
		}
		if (spec.Min != 0 || spec.Max != 0) && (n < spec.Min || n > spec.Max) {
			return nil, fail("attribute %q is %v, needs %v to %v", a.Name, n, spec.Min, spec.Max)
		}
	}
	for _, spec := range s.Attrs {
		if _, ok := out[spec.Name]; ok {
			continue
		}
		if spec.Required {
			return nil, fail("attribute %q is missing; or it is 0 or empty, which package recipe leaves out", spec.Name)
		}
		out[spec.Name] = spec.Default
	}
	return out, nil
}

func contains(list []string, s string) bool {
	for _, x := range list {
		if x == s {
			return true
		}
	}
	return false
}

// operands is what a width rule sees of one op.
type operands struct {
	spec    *OpSpec
	op      *Op
	in      []Value // zero Value where an optional input is left out
	weights []*Weight
	states  []*State
	bank    *Bank
	attrs   Attrs
}

func (o *operands) errf(format string, args ...any) error {
	return fault.Corruptf("%s %v: %s", o.op.Kind, o.op.Out, fmt.Sprintf(format, args...))
}

func (o *operands) has(i int) bool          { return o.in[i].Width != 0 }
func (o *operands) width(i int) int64       { return o.in[i].Width }
func (o *operands) state(i int) *State      { return o.states[i] }
func (o *operands) i(name string) int64     { return o.attrs.Int(name) }
func (o *operands) b(name string) bool      { return o.attrs.Flag(name) }
func (o *operands) shape(i int) []uint64    { return o.weights[i].GetShape() }
func (o *operands) weightName(i int) string { return o.weights[i].GetName() }

// group returns the attribute "group" (0 = the whole width) if it divides the width.
func (o *operands) group(width int64) (int64, error) {
	g := o.i("group")
	if g == 0 {
		g = width
	}
	if g == 0 || width%g != 0 {
		return 0, o.errf("width %d is not a multiple of the group %d", width, g)
	}
	return g, nil
}

func (o *operands) rank(i, rank int) error {
	if len(o.shape(i)) != rank {
		return o.errf("weight %q has shape %v, needs %d dimensions", o.weightName(i), o.shape(i), rank)
	}
	return nil
}

// vector checks that weight i, when given, is one-dimensional with n elements.
func (o *operands) vector(i int, n int64) error {
	if o.weights[i] == nil {
		return nil
	}
	if s := o.shape(i); len(s) != 1 || int64(s[0]) != n {
		return o.errf("weight %q has shape %v, needs [%d]", o.weightName(i), s, n)
	}
	return nil
}

// matrix checks that weight i, when given, has shape [in, out].
func (o *operands) matrix(i int, in, out int64) error {
	if o.weights[i] == nil {
		return nil
	}
	if s := o.shape(i); len(s) != 2 || int64(s[0]) != in || int64(s[1]) != out {
		return o.errf("weight %q has shape %v, needs [%d %d]", o.weightName(i), s, in, out)
	}
	return nil
}

func (o *operands) same(i, j int) error {
	if o.width(i) != o.width(j) {
		return o.errf("operands have widths %d and %d", o.width(i), o.width(j))
	}
	return nil
}

func (o *operands) bankWidths() (embedding, hidden int64, err error) { return BankWidths(o.bank) }
