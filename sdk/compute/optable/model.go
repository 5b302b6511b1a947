package optable

import (
	"github.com/bigmoe/bigmoe/sdk/compute"
	"github.com/bigmoe/bigmoe/sdk/plan"
)

// Model is a bound plan with its bytes. After [Model.Place] it lies in a region, with room for experts.
type Model struct {
	Bound *compute.Bound
	Dense [][]byte   // by weight; nil for the one by rows
	Table []byte     // all rows of the weight by rows; nil if there is none
	Banks [][][]byte // [bank][part]: all experts, one after another
	Want  Matrix     // what the logits of all tokens must be

	Layout *compute.Layout
	Region *compute.Region
	slots  []uint64 // region offset of each
	gens   []uint32
}

func (m *Model) add(t *Tensor, residency plan.Residency, data []byte) {
	p := m.Bound.Plan
	rowBytes, err := t.Type.RowBytes(int64(t.Shape[0]))
	if err != nil {
		panic(err) // the table's own tensors
	}
	p.Weights = append(p.Weights, &plan.Weight{Name: t.Name, Shape: t.Shape, Residency: residency, Sources: []*plan.Source{{Tensor: t.Name}}})
	m.Bound.Weights = append(m.Bound.Weights, &compute.BoundWeight{Type: uint32(t.Type), RowBytes: uint64(rowBytes)})
	m.Dense = append(m.Dense, data)
}

func (m *Model) addBank(bank *plan.Bank, experts map[string][]byte, tensors []Tensor) {
	m.Bound.Plan.Banks = []*plan.Bank{bank}
	b := &compute.BoundBank{}
	var parts [][]byte
	for _, part := range bank.Parts {
		name := part.Tensors[0]
		if part.Role == plan.Role_GATE_UP {
			name = "gate"
		}
		for _, t := range tensors {
			if t.Name == name {
				rowBytes := len(experts[name]) / t.rows()
				b.Parts = append(b.Parts, &compute.BoundPart{Type: uint32(t.Type), RowBytes: uint64(rowBytes)})
			}
		}
		data := experts[name]
		if part.Role == plan.Role_GATE_UP {
			gate, up := experts["gate"], experts["up"]
			n := len(gate) / int(bank.Experts)
			data = nil
			for e := range int(bank.Experts) {
				data = append(append(data, gate[e*n:][:n]...), up[e*n:][:n]...)
			}
		}
		parts = append(parts, data)
	}
	m.Bound.Banks, m.Banks = []*compute.BoundBank{b}, [][][]byte{parts}
}

// Options returns the bound model with other options. They must not need more room than those it was placed with.
func (m *Model) Options(o *compute.Options) *compute.Bound {
	b := *m.Bound
	b.Options = o
	return &b
}

// Place writes the model into a region with room for slots experts. room returns at least so many bytes of memory that is
// aligned to a page.
func (m *Model) Place(slots int, room func(bytes uint64) ([]byte, error)) error {
	l, err := compute.NewLayout(m.Bound, uint64(slots))
	if err != nil {
		return err
	}
	at := l.RegionBytes
	for i, data := range m.Dense {
		if data != nil {
			m.Bound.Weights[i].Offset = at
			at += uint64(len(data)+63) &^ 63
		}
	}
	most := 0
	for i, parts := range m.Banks {
		size := 0
		for _, part := range parts {
			size += len(part)/int(m.Bound.Plan.Banks[i].Experts) + 1
		}
		most = max(most, size)
	}
	m.slots, m.gens = nil, make([]uint32, slots)
	for range slots {
		m.slots = append(m.slots, at)
		at += uint64(most)
	}
	l.RegionBytes = at
	bytes, err := room(at)
	if err != nil {
		return err
	}
	for i, data := range m.Dense {
		copy(bytes[m.Bound.Weights[i].Offset:], data)
	}
	m.Layout = l
	m.Region, err = compute.NewRegion(bytes, l.Ready, l.Slots)
	return err
}

// Rows returns what a batch needs of the weight by rows: nothing when there is none.
func (m *Model) Rows(tokens []int32) [][]byte {
	sizes := m.Bound.RowBytes()
	if len(sizes) == 0 {
		return nil
	}
	var out []byte
	for _, id := range tokens {
		out = append(out, m.Table[uint64(id)*sizes[0]:][:sizes[0]]...)
	}
	return [][]byte{out}
}

// Batch returns a batch of tokens from a position on, with room for the logits of all of them or of the last.
func (m *Model) Batch(position int, all bool, tokens ...int32) *compute.Batch {
	rows := 1
	if all {
		rows = len(tokens)
	}
	return &compute.Batch{Tokens: tokens, Position: position, Rows: m.Rows(tokens), All: all,
		Logits: make([]float32, rows*int(m.Bound.Plan.Model.Vocabulary))}
}
