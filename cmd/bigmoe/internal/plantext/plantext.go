// Package plantext prints plans for people and compares them.
//
//	fmt.Print(plantext.Text(p))
//	fmt.Print(plantext.Diff("a", p, "b", q)) // "" if they say the same
//
// Names are shortened: in layer 3 the value l3.q is q, the weight blk.3.attn_q.weight is attn_q.weight, and a value of the
// block before has a ^ in front. So layers that do the same print the same, and are printed once. The same plan gives the
// same text. The package has no state.
package plantext

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/rogpeppe/go-internal/diff"

	"github.com/bigmoe/bigmoe/sdk/dtype"
	"github.com/bigmoe/bigmoe/sdk/plan"
)

// Text returns the plan as text. It must have passed [plan.Validate].
func Text(p *plan.Plan) string {
	w := &writer{weights: map[string]*plan.Weight{}, banks: map[string]*plan.Bank{}, states: map[string]*plan.State{}}
	for _, x := range p.Weights {
		w.weights[x.Name] = x
	}
	for _, x := range p.Banks {
		w.banks[x.Name] = x
	}
	for _, x := range p.States {
		w.states[x.Name] = x
	}
	m := p.Model
	w.printf("%s: %d layers, embedding %d, vocabulary %d, context %d, %d of %d experts\n",
		p.Architecture, m.Layers, m.Embedding, m.Vocabulary, m.ContextLength, m.ExpertsUsed, m.Experts)
	var groups []group
	for i, b := range p.Blocks {
		var before string
		if i > 0 {
			before = prefix(p.Blocks[i-1])
		}
		text := w.block(b, before)
		at := slices.IndexFunc(groups, func(g group) bool { return g.kind == b.Kind && g.text == text })
		if at < 0 {
			at = len(groups)
			groups = append(groups, group{kind: b.Kind, text: text})
		}
		groups[at].layers = append(groups[at].layers, int(b.Layer))
	}
	for _, g := range groups {
		w.printf("\n%s\n%s", g.title(), g.text)
	}
	if len(p.Unused) > 0 {
		w.printf("\nunused\n")
		for _, u := range p.Unused {
			w.printf("  %s: %s\n", u.Tensor, u.Reason)
		}
	}
	return w.out.String()
}

// Diff returns the differences of two plans in the unified form, "" if there are none.
func Diff(aName string, a *plan.Plan, bName string, b *plan.Plan) string {
	return string(diff.Diff(aName, []byte(Text(a)), bName, []byte(Text(b))))
}

// group is the blocks that do the same.
type group struct {
	kind   plan.BlockKind
	layers []int
	text   string
}

func (g group) title() string {
	switch {
	case g.kind == plan.BlockKind_EMBEDDING:
		return "embedding"
	case g.kind == plan.BlockKind_HEAD:
		return "head"
	case len(g.layers) == 1:
		return "layer " + strconv.Itoa(g.layers[0])
	}
	var runs []string
	for i := 0; i < len(g.layers); {
		end := i
		for end+1 < len(g.layers) && g.layers[end+1] == g.layers[end]+1 {
			end++
		}
		run := strconv.Itoa(g.layers[i])
		if end > i {
			run += "-" + strconv.Itoa(g.layers[end])
		}
		runs = append(runs, run)
		i = end + 1
	}
	return "layers " + strings.Join(runs, ", ")
}

type writer struct {
	out     strings.Builder
	weights map[string]*plan.Weight
	banks   map[string]*plan.Bank
	states  map[string]*plan.State
}

func (w *writer) printf(format string, args ...any) { fmt.Fprintf(&w.out, format, args...) }

// prefix is what recipes put before the names of a block's values.
func prefix(b *plan.Block) string {
	if b.Kind == plan.BlockKind_LAYER {
		return fmt.Sprintf("l%d.", b.Layer)
	}
	return ""
}

// names shortens names as seen from one block.
type names struct {
	own, before, tensors string          // prefixes: of its values, of those of the block before, of its tensors
	defined              map[string]bool // its values so far
}

// value marks names of the block before. The embedding and the head have no prefix: there, what is not of another
// block's is what was defined so far.
func (n names) value(name string) string {
	if n.defined[name] || n.own != "" && strings.HasPrefix(name, n.own) {
		return strings.TrimPrefix(name, n.own)
	}
	if short, ok := strings.CutPrefix(name, n.before); ok && (n.before != "" || !strings.Contains(name, ".")) {
		return "^" + short
	}
	return name
}

func (n names) tensor(name string) string { return strings.TrimPrefix(name, n.tensors) }

func (w *writer) block(b *plan.Block, before string) string {
	n := names{own: prefix(b), before: before, defined: map[string]bool{}}
	if b.Kind == plan.BlockKind_LAYER {
		n.tensors = fmt.Sprintf("blk.%d.", b.Layer)
	}
	var out strings.Builder
	for _, op := range b.Ops {
		operands := w.operands(op, n)
		var results []string
		for _, o := range op.Out {
			n.defined[o] = true
			results = append(results, n.value(o))
		}
		out.WriteString("  " + strings.Join(results, ", "))
		if len(results) > 0 {
			out.WriteString(" = ")
		}
		out.WriteString(op.Kind + "(" + strings.Join(operands, ", ") + ")")
		for _, a := range op.Attrs {
			fmt.Fprintf(&out, " %s=%s", a.Name, attr(a))
		}
		out.WriteByte('\n')
	}
	return out.String()
}

// operands lists what an op works on; those that may be left out are preceded by their name.
func (w *writer) operands(op *plan.Op, n names) (out []string) {
	spec, _ := plan.Lookup(op.Kind)
	add := func(name string, optional bool, text string) {
		if optional {
			text = name + "=" + text
		}
		out = append(out, text)
	}
	for i, name := range op.In {
		if name != "" {
			add(spec.In[i].Name, spec.In[i].Optional, n.value(name))
		}
	}
	for i, name := range op.Weights {
		if name != "" {
			add(spec.Weights[i].Name, spec.Weights[i].Optional, weight(w.weights[name], n))
		}
	}
	for i, name := range op.States {
		if name != "" {
			add(spec.States[i].Name, spec.States[i].Optional, state(w.states[name], n))
		}
	}
	if op.Bank != "" {
		out = append(out, bank(w.banks[op.Bank], n))
	}
	return out
}

func weight(x *plan.Weight, n names) string {
	var parts []string
	for _, s := range x.Sources {
		part := n.tensor(s.Tensor)
		if s.Rows != 0 || s.FirstRow != 0 {
			part += fmt.Sprintf(" rows %d+%d", s.FirstRow, s.Rows)
		}
		parts = append(parts, part)
	}
	text := fmt.Sprintf("%s%v", strings.Join(parts, " + "), x.Shape)
	if x.Residency == plan.Residency_ROWS {
		text += " by row"
	}
	var types []string
	for _, t := range x.Types {
		types = append(types, dtype.Type(t).String())
	}
	if len(types) > 0 {
		text += " of " + strings.Join(types, " or ")
	}
	return text
}

func state(s *plan.State, n names) string {
	text := n.value(s.Name) + ": " + strings.ToLower(s.Kind.String())
	switch s.Kind {
	case plan.StateKind_KV:
		text += fmt.Sprintf(" %d+%d", s.KeyWidth, s.ValueWidth)
		if s.Window > 0 {
			text += fmt.Sprintf(" window %d", s.Window)
		}
	case plan.StateKind_COMPRESSED:
		text += fmt.Sprintf(" %d of %d positions", s.KeyWidth, s.Ratio)
	default:
		text += fmt.Sprintf(" %d", s.Elements)
	}
	return text
}

func bank(b *plan.Bank, n names) string {
	var parts []string
	for _, p := range b.Parts {
		tensors := n.tensor(p.Tensors[0])
		if len(p.Tensors) > 1 {
			tensors += fmt.Sprintf(" and %d more", len(p.Tensors)-1)
		}
		parts = append(parts, fmt.Sprintf("%s %s[%d %d]", strings.ToLower(p.Role.String()), tensors, p.In, p.Out))
	}
	return fmt.Sprintf("%d experts of %s", b.Experts, strings.Join(parts, ", "))
}

func attr(a *plan.Attr) string {
	switch v := a.Value.(type) {
	case *plan.Attr_I:
		return strconv.FormatInt(v.I, 10)
	case *plan.Attr_F:
		if float64(float32(v.F)) == v.F { // from a file, most likely: 1e-05, not 9.99999974e-06
			return strconv.FormatFloat(v.F, 'g', -1, 32)
		}
		return strconv.FormatFloat(v.F, 'g', 9, 64)
	case *plan.Attr_S:
		return v.S
	case *plan.Attr_B:
		return strconv.FormatBool(v.B)
	}
	return "nothing"
}
