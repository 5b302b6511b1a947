// Package model binds a plan to the tensors of a file: where each weight's bytes are, which types they have, and
// what can be streamed.
//
//	m, err := model.Bind(p, values, file)
//	m.DenseBytes() // memory for the resident weights
//
// Binding is where a plan and a file must agree: a shape or type mismatch, a missing tensor and a tensor that nobody
// uses are errors that name the tensor, what was expected and what was found. A Model is read-only and safe for
// concurrent use as long as its file stays open.
package model

import (
	"fmt"
	"math"
	"slices"

	"github.com/bigmoe/bigmoe/engine/expert"
	"github.com/bigmoe/bigmoe/engine/gguf"
	"github.com/bigmoe/bigmoe/sdk/dtype"
	"github.com/bigmoe/bigmoe/sdk/fault"
	"github.com/bigmoe/bigmoe/sdk/plan"
)

// Model is a plan whose every tensor has been found in the file.
type Model struct {
	Plan    *plan.Plan
	Values  plan.Values
	File    *gguf.File
	Weights []Weight // in plan order
	Banks   []Bank   // in plan order
}

// Weight is a dense weight of the plan and the file ranges it is made of.
type Weight struct {
	*plan.Weight
	Type     dtype.Type
	RowBytes int64
	Rows     int64
	Ranges   []Range // the weight is their concatenation
}

// Bytes is the size of the whole weight.
func (w *Weight) Bytes() int64 { return w.RowBytes * w.Rows }

// Resident reports whether the weight is kept in memory; otherwise it is read row by row.
func (w *Weight) Resident() bool { return w.Residency == plan.Residency_RESIDENT }

// Range is a run of bytes of one shard.
type Range struct {
	Tensor string
	Shard  int
	Offset int64
	Bytes  int64
}

// Bank is the experts of one layer.
type Bank struct {
	expert.Bank
	Plan  *plan.Bank
	Parts []Part // in plan order
	TopK  int    // experts that one token uses
}

// Part is one matrix of every expert of a bank.
type Part struct {
	Type     dtype.Type
	RowBytes int64
}

// Bind finds every tensor of p in f. The plan must have passed [plan.Validate], which also gave values.
func Bind(p *plan.Plan, values plan.Values, f *gguf.File) (*Model, error) {
	m := &Model{Plan: p, Values: values, File: f}
	used := make(roles, len(f.Tensors()))
	for _, w := range p.Weights {
		bound, err := bindWeight(f, w, used)
		if err != nil {
			return nil, fmt.Errorf("%s: recipe %q: weight %q: %w", f.Path(), p.Recipe, w.Name, err)
		}
		m.Weights = append(m.Weights, bound)
	}
	topK := map[string]int{} // by bank: the width of the ids that its experts op reads
	for _, b := range p.Blocks {
		for _, op := range b.Ops {
			if op.Kind == "experts" {
				topK[op.Bank] = int(values[op.In[1]].Width)
			}
		}
	}
	for _, b := range p.Banks {
		bound, err := bindBank(f, b, used)
		if err != nil {
			return nil, fmt.Errorf("%s: recipe %q: layer %d: %w", f.Path(), p.Recipe, b.Layer, err)
		}
		bound.TopK = topK[b.Name]
		m.Banks = append(m.Banks, bound)
	}
	for _, u := range p.Unused {
		if role, ok := used[u.Tensor]; ok {
			return nil, fault.Corruptf("%s: tensor %q: recipe %q uses it as %s and lists it as unused", f.Path(), u.Tensor, p.Recipe, role)
		}
	}
	for _, u := range p.Unused {
		used[u.Tensor] = "unused"
	}
	for _, t := range f.Tensors() {
		if used[t.Name] == "" {
			return nil, fault.Unsupportedf("%s: tensor %q: recipe %q neither uses it nor lists it as unused", f.Path(), t.Name, p.Recipe)
		}
	}
	return m, nil
}

// roles says what each tensor is used as. A dense one may be part of several weights; experts belong to one bank alone.
type roles map[string]string

const (
	dense   = "a weight"
	experts = "experts"
)

func (r roles) find(f *gguf.File, name, role string) (gguf.Tensor, error) {
	t, ok := f.Tensor(name)
	if !ok {
		return t, fault.Corruptf("tensor %q is missing", name)
	}
	if had := r[name]; had == experts || had != "" && had != role {
		return t, fault.Corruptf("tensor %q is used as %s and again as %s", name, had, role)
	}
	r[name] = role
	return t, nil
}

// trim drops trailing dimensions of 1: {E} and {E, 1} are the same bytes.
func trim(dims []uint64) []uint64 {
	for len(dims) > 1 && dims[len(dims)-1] == 1 {
		dims = dims[:len(dims)-1]
	}
	return dims
}

func bindWeight(f *gguf.File, w *plan.Weight, used roles) (Weight, error) {
	out := Weight{Weight: w}
	shape := trim(w.Shape)
	rowElems, rows := int64(shape[0]), int64(1)
	for _, d := range shape[1:] {
		if rows > math.MaxInt64/int64(d)/rowElems {
			return out, fault.Corruptf("shape %v has more elements than any file", shape)
		}
		rows *= int64(d)
	}
	var found int64
	for i, src := range w.Sources {
		t, err := used.find(f, src.Tensor, dense)
		if err != nil {
			return out, err
		}
		dims := trim(t.Dims)
		if i == 0 {
			out.Type = t.Type
		} else if t.Type != out.Type {
			return out, fault.Unsupportedf("tensor %q is %v, %q is %v: cannot be joined", t.Name, t.Type, w.Sources[0].Tensor, out.Type)
		}
		if len(w.Types) > 0 && !slices.Contains(w.Types, uint32(t.Type)) {
			return out, fault.Unsupportedf("tensor %q: expected type %v, found %v", t.Name, typeNames(w.Types), t.Type)
		}
		whole := src.Rows == 0 && src.FirstRow == 0
		if whole && len(w.Sources) == 1 && !slices.Equal(dims, shape) {
			return out, fault.Corruptf("tensor %q: expected shape %v, found %v", t.Name, shape, dims)
		}
		// A one-dimensional weight is cut by elements, any other by rows.
		unit, total := int64(dims[0]), int64(1)
		if len(shape) == 1 {
			unit, total = 1, int64(dims[0])
		} else if dims[0] != shape[0] {
			return out, fault.Corruptf("tensor %q: expected rows of %d, found shape %v", t.Name, shape[0], dims)
		}
		for _, d := range dims[1:] {
			total *= int64(d)
		}
		first, n := int64(src.FirstRow), int64(src.Rows)
		if n == 0 {
			n = total - first
		}
		if first < 0 || n <= 0 || first > total-n {
			return out, fault.Corruptf("tensor %q: expected at least %d rows, found shape %v", t.Name, first+n, dims)
		}
		bytes, err := t.Type.RowBytes(unit * n)
		if err != nil {
			return out, fmt.Errorf("tensor %q: %w", t.Name, err)
		}
		var skip int64
		if first > 0 {
			if skip, err = t.Type.RowBytes(unit * first); err != nil {
				return out, fmt.Errorf("tensor %q: %w", t.Name, err)
			}
		}
		found += n * unit
		out.Ranges = append(out.Ranges, Range{t.Name, t.Shard, t.Offset + skip, bytes})
	}
	if found != rowElems*rows {
		return out, fault.Corruptf("tensor %q: expected shape %v, found %d elements", w.Sources[0].Tensor, shape, found)
	}
	var err error
	out.Rows = rows
	if out.RowBytes, err = out.Type.RowBytes(rowElems); err != nil {
		return out, fmt.Errorf("tensor %q: %w", w.Sources[0].Tensor, err)
	}
	return out, nil
}

func typeNames(ids []uint32) []string {
	var names []string
	for _, id := range ids {
		names = append(names, dtype.Type(id).String())
	}
	return names
}

func bindBank(f *gguf.File, b *plan.Bank, used roles) (Bank, error) {
	out := Bank{Plan: b, Bank: expert.Bank{Layer: int(b.Layer), Experts: int(b.Experts)}}
	for _, p := range b.Parts {
		stacked := len(p.Tensors) == 1 && b.Experts > 1
		part := expert.Part{Name: p.Tensors[0]}
		var typ dtype.Type
		for e, name := range p.Tensors {
			t, err := used.find(f, name, experts)
			if err != nil {
				return out, err
			}
			want := []uint64{p.In, p.Out}
			if stacked {
				want = append(want, uint64(b.Experts))
			}
			if !slices.Equal(trim(t.Dims), trim(want)) {
				return out, fault.Corruptf("tensor %q: expected shape %v, found %v", name, want, t.Dims)
			}
			if e == 0 {
				typ = t.Type
				part.File, part.Offset = t.Shard, t.Offset
			} else if t.Type != typ {
				return out, fault.Unsupportedf("tensor %q is %v, %q is %v: the experts of a layer must have one type", name, t.Type, p.Tensors[0], typ)
			}
			if !stacked && b.Experts > 1 {
				part.At = append(part.At, expert.Location{File: t.Shard, Offset: t.Offset})
			}
		}
		rowBytes, err := typ.RowBytes(int64(p.In))
		if err != nil {
			return out, fmt.Errorf("tensor %q: %w", part.Name, err)
		}
		part.Bytes = rowBytes * int64(p.Out)
		part.Stride = part.Bytes
		out.Bank.Parts = append(out.Bank.Parts, part)
		out.Parts = append(out.Parts, Part{Type: typ, RowBytes: rowBytes})
	}
	return out, nil
}

// DenseBytes is the memory that the resident weights take, each rounded up to [Align].
func (m *Model) DenseBytes() int64 {
	var n int64
	for i := range m.Weights {
		if w := &m.Weights[i]; w.Resident() {
			n += AlignUp(w.Bytes())
		}
	}
	return n
}

// Align is the alignment of a resident weight in memory: a cache line, which is also wide enough for every vector
// unit.
const Align = 64

// AlignUp rounds n up to Align.
func AlignUp(n int64) int64 { return (n + Align - 1) &^ (Align - 1) }

// StoreBanks returns the banks as the expert store wants them.
func (m *Model) StoreBanks() []expert.Bank {
	out := make([]expert.Bank, len(m.Banks))
	for i := range m.Banks {
		out[i] = m.Banks[i].Bank
	}
	return out
}

// ExpertBytes is the size of all routed experts.
func (m *Model) ExpertBytes() int64 {
	var n int64
	for i := range m.Banks {
		n += m.Banks[i].ExpertBytes() * int64(m.Banks[i].Experts)
	}
	return n
}

// TokenBytes is what one token needs of the routed experts: its experts in every layer.
func (m *Model) TokenBytes() int64 {
	var n int64
	for i := range m.Banks {
		n += m.Banks[i].ExpertBytes() * int64(m.Banks[i].TopK)
	}
	return n
}

// MaxTopK is the largest TopK of all banks, or 0 for a model without routed experts.
func (m *Model) MaxTopK() int {
	k := 0
	for i := range m.Banks {
		k = max(k, m.Banks[i].TopK)
	}
	return k
}

// Files are the paths of the shards, in shard order.
func (m *Model) Files() []string {
	var paths []string
	for _, s := range m.File.Shards() {
		paths = append(paths, s.Path)
	}
	return paths
}

// StateBytes is what the states take for a context of that many positions, with KV entries of kvElemBytes each. A
// backend may need more; this is for people who plan before a backend is running.
func (m *Model) StateBytes(context, kvElemBytes int64) int64 {
	var n int64
	for _, s := range m.Plan.States {
		switch s.Kind {
		case plan.StateKind_KV:
			positions := context
			if s.Window > 0 {
				positions = min(positions, int64(s.Window))
			}
			n += positions * int64(s.KeyWidth+s.ValueWidth) * kvElemBytes
		case plan.StateKind_COMPRESSED:
			n += context / int64(s.Ratio) * int64(s.KeyWidth) * kvElemBytes
		default:
			n += int64(s.Elements) * 4
		}
	}
	return n
}
