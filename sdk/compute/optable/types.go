package optable

import (
	_ "embed"
	"encoding/binary"
	"fmt"
	"math"

	"github.com/bigmoe/bigmoe/sdk/dtype"
	"github.com/bigmoe/bigmoe/sdk/plan"
)

// blockElems is a length of rows that every type can have.
const blockElems = 256

// typeData holds, for each type whose blocks are more than a number: its id as uint32, [blockRows] rows of [blockElems]
// elements as they are in a file, and the same decoded, as float32. Little-endian. It was written by the CPU backend,
// whose decoding of each type is held against checksums of the specification (specs/quants.md 6).
//
//go:embed types.bin
var typeData []byte

// blockRows is how many rows of each type there are.
const blockRows = 4

// Blocks is rows of one type.
type Blocks struct {
	Type    dtype.Type
	Data    []byte
	Decoded Matrix
}

// AllBlocks returns the rows of every type whose blocks are more than a number.
func AllBlocks() (list []Blocks) {
	for at := typeData; len(at) > 0; {
		b := Blocks{Type: dtype.Type(binary.LittleEndian.Uint32(at))}
		n := blockRows * blockElems / b.Type.BlockElems() * b.Type.BlockBytes()
		b.Data, at = at[4:4+n], at[4+n:]
		for range blockRows {
			row := make([]float64, blockElems)
			for i := range row {
				row[i] = float64(math.Float32frombits(binary.LittleEndian.Uint32(at[4*i:])))
			}
			b.Decoded, at = append(b.Decoded, row), at[4*blockElems:]
		}
		list = append(list, b)
	}
	return list
}

// tensor makes a weight of the rows, in turn from the given one on.
func (b *Blocks) tensor(name string, first int, shape ...uint64) Tensor {
	t := Tensor{Name: name, Type: b.Type, Shape: shape}
	n := len(b.Data) / blockRows
	for i := range t.rows() {
		row := (first + i) % blockRows
		t.data, t.decoded = append(t.data, b.Data[row*n:][:n]...), append(t.decoded, b.Decoded[row])
	}
	return t
}

// A product with 8-bit activations is off by up to a part in 127 of each; of the largest sum that is less.
const withinRounding = 0.03

// TypeCases returns the cases of all types.
func TypeCases() []*Case {
	var list []*Case
	for _, b := range AllBlocks() {
		list = append(list, b.Cases()...)
	}
	return list
}

// Cases are what a type of weight is needed for: tables of which rows are read, matrices, matrices with exact activations, and
// experts.
func (b *Blocks) Cases() []*Case {
	table, matrix := b.tensor("table", 0, blockElems, Tokens), b.tensor("w", 1, blockElems, 12)
	product := func(x Matrix, w map[string]Matrix) (y Matrix) {
		for _, row := range x {
			y = append(y, times64(w["w"], row))
		}
		return y
	}
	return []*Case{
		{Name: fmt.Sprintf("%v: rows of a table", b.Type), Width: blockElems, table: &table,
			Ops: []*plan.Op{Op("scale", "x", "", "y", Attrs{"factor": 1.0})}, Want: each(func(x []float64) []float64 { return x })},
		{Name: fmt.Sprintf("%v: linear", b.Type), Width: blockElems, Weights: []Tensor{matrix}, Within: withinRounding,
			Ops: []*plan.Op{Op("linear", "x", "w", "y", nil)}, Want: product},
		{Name: fmt.Sprintf("%v: exact linear", b.Type), Width: blockElems, Weights: []Tensor{matrix}, Within: 1e-5,
			Ops: []*plan.Op{Op("linear", "x", "w", "y", Attrs{"exact": true})}, Want: product},
		b.experts(),
	}
}

// experts are 3 experts of gate, up and down of a type, of which every token has 2.
func (b *Blocks) experts() *Case {
	const experts, picks = 3, 2
	part := func(role plan.Role, name string) *plan.Part {
		return &plan.Part{Role: role, Tensors: []string{name}, In: blockElems, Out: blockElems}
	}
	// Weights of some types are large: keep gate and up where silu is not a line.
	largest := 0.0
	for _, row := range b.Decoded {
		largest = max(largest, math.Sqrt(dot64(row, row)))
	}
	e := Op("experts", "in ids weights", "", "y", nil)
	e.Bank = "bank"
	return &Case{Name: fmt.Sprintf("%v: experts", b.Type), Width: blockElems, Within: 2 * withinRounding,
		Weights: []Tensor{b.tensor("gate", 0, blockElems, blockElems, experts), b.tensor("up", 1, blockElems, blockElems, experts),
			b.tensor("down", 3, blockElems, blockElems, experts), f32("router", blockElems, experts)},
		Bank: &plan.Bank{Name: "bank", Experts: experts, Parts: []*plan.Part{
			part(plan.Role_GATE, "gate"), part(plan.Role_UP, "up"), part(plan.Role_DOWN, "down")}},
		Ops: []*plan.Op{Op("linear", "x", "router", "l", Attrs{"exact": true}), Op("scale", "x", "", "in", Attrs{"factor": 2 / largest}),
			Op("route", "l", "", "ids weights", Attrs{"top_k": picks}), e},
		Want: func(x Matrix, w map[string]Matrix) (y Matrix) {
			for _, row := range x {
				p := softmax64(times64(w["router"], row))
				in := map64(row, func(v float64) float64 { return 2 / largest * v })
				out := make([]float64, blockElems)
				least := 0
				for i := range p {
					if p[i] < p[least] {
						least = i
					}
				}
				for i := range p {
					if i == least {
						continue
					}
					matrix := func(name string) Matrix { return w[name][i*blockElems:][:blockElems] }
					g, u := times64(matrix("gate"), in), times64(matrix("up"), in)
					for j := range g {
						g[j] = swiglu64(g[j], u[j])
					}
					for j, v := range times64(matrix("down"), g) {
						out[j] += p[i] * v
					}
				}
				y = append(y, out)
			}
			return y
		}}
}
