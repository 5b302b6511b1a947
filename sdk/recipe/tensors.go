package recipe

import (
	"iter"
	"strconv"
)

// Weight names a dense weight of the plan. The empty Weight leaves an optional operand out.
type Weight string

// Bank names the routed experts of one layer.
type Bank string

// Source is a run of rows of a tensor, or of elements of a one-dimensional one. Rows = 0 means all of it.
type Source struct {
	Tensor         string
	FirstRow, Rows int
}

const (
	resident = 0
	rows     = 1
)

// TypeF32 is the file format's number of 32-bit floats, for [Builder.WeightOf].
const TypeF32 = 0

// HasTensor reports whether the file has the tensor.
func (b *Builder) HasTensor(name string) bool { return b.host.tensorFind(name) >= 0 }

// Tensors yields the names of all tensors in file order.
func (b *Builder) Tensors() iter.Seq[string] {
	return func(yield func(string) bool) {
		for i := range b.host.tensorCount() {
			if !yield(text(func(buf []byte) int32 { return b.host.tensorName(i, buf) })) {
				return
			}
		}
	}
}

// Dim returns dimension i of a tensor of the file, 1 beyond its last, for files that leave a size to it.
func (b *Builder) Dim(tensor string, i, max int) int {
	n := dim(b.host.tensorDims(b.find(tensor)), i)
	if n < 1 || n > uint64(max) {
		b.Refuse(Corrupt, "tensor "+strconv.Quote(tensor)+": dimension "+strconv.Itoa(i)+": expected 1 to "+strconv.Itoa(max)+
			", found "+strconv.FormatUint(n, 10))
	}
	return int(n)
}

// Weight declares a tensor that stays in memory as a weight of the given shape, shape[0] contiguous. Trailing
// dimensions of 1 do not count. Asking again for the same tensor returns the same weight.
func (b *Builder) Weight(tensor string, shape ...int) Weight {
	b.checkShape(tensor, shape)
	return b.declare(tensor, resident, nil, shape, Source{Tensor: tensor})
}

// WeightOf is [Builder.Weight] restricted to one element type; the engine refuses a file with another.
func (b *Builder) WeightOf(elemType int, tensor string, shape ...int) Weight {
	b.checkShape(tensor, shape)
	return b.declare(tensor, resident, []uint64{uint64(elemType)}, shape, Source{Tensor: tensor})
}

// Optional is [Builder.Weight] for a tensor that the file may lack; then it returns the empty Weight.
func (b *Builder) Optional(tensor string, shape ...int) Weight {
	if !b.HasTensor(tensor) {
		return ""
	}
	return b.Weight(tensor, shape...)
}

// Rows declares a table of which only the rows of the batch's tokens are read, and nothing stays in memory.
func (b *Builder) Rows(tensor string, width, count int) Weight {
	shape := []int{width, count}
	b.checkShape(tensor, shape)
	return b.declare(tensor, rows, nil, shape, Source{Tensor: tensor})
}

// WeightRows declares some rows of a matrix (or elements of a vector) as a weight. whole is the shape of the tensor.
func (b *Builder) WeightRows(tensor string, firstRow, rows int, whole ...int) Weight {
	b.checkShape(tensor, whole)
	shape := append([]int(nil), whole...)
	shape[len(shape)-1] = rows
	name := tensor + "[" + strconv.Itoa(firstRow) + ":" + strconv.Itoa(firstRow+rows) + "]"
	return b.declare(name, resident, nil, shape, Source{tensor, firstRow, rows})
}

// Reshape is [Builder.Weight] for a tensor of the shape whole whose rows are counted through, such as {in, out, heads}
// as {in, out·heads}, or whose elements are, as a vector.
func (b *Builder) Reshape(tensor string, whole []int, shape ...int) Weight {
	b.checkShape(tensor, whole)
	return b.declare(tensor, resident, nil, shape, Source{Tensor: tensor, Rows: shape[len(shape)-1]})
}

// Join declares several runs of rows, one after the other, as one weight. The engine checks that they fit the shape.
func (b *Builder) Join(name string, shape []int, sources ...Source) Weight {
	for _, s := range sources {
		b.find(s.Tensor)
	}
	return b.declare(name, resident, nil, shape, sources...)
}

// Piece is one of the matrices that a fused tensor may hold one after the other.
type Piece struct {
	Tensor string // its name where it is a tensor of its own
	Rows   int
}

// Fused declares the pieces of a tensor that some files hold in one: as slices of the tensor fused if the file has
// it, else as the tensors that the pieces name. width is the length of a row, or 0 for vectors. Where optional is
// set, pieces that the file lacks come out empty.
func (b *Builder) Fused(fused string, optional bool, width int, pieces ...Piece) []Weight {
	shape := func(rows int) []int {
		if width == 0 {
			return []int{rows}
		}
		return []int{width, rows}
	}
	total := 0
	for _, p := range pieces {
		total += p.Rows
	}
	out, first := make([]Weight, len(pieces)), 0
	whole := b.HasTensor(fused)
	for i, p := range pieces {
		switch {
		case whole:
			out[i] = b.WeightRows(fused, first, p.Rows, shape(total)...)
		case optional:
			out[i] = b.Optional(p.Tensor, shape(p.Rows)...)
		default:
			out[i] = b.Weight(p.Tensor, shape(p.Rows)...)
		}
		first += p.Rows
	}
	return out
}

// Role says which matrix of an expert a part is.
type Role int

// The roles. A bank has Gate, Up and Down, or GateUp (rows of gate, then rows of up) and Down.
const (
	Gate   Role = 1
	Up     Role = 2
	Down   Role = 3
	GateUp Role = 4
)

// Part is one matrix of every expert of a bank: Rows rows of Width elements. Tensors is one stacked tensor
// {Width, Rows, experts} or one tensor {Width, Rows} for each expert.
type Part struct {
	Role        Role
	Width, Rows int
	Tensors     []string
}

// Stack is a [Part] in one stacked tensor.
func Stack(role Role, tensor string, width, rows int) Part {
	return Part{Role: role, Width: width, Rows: rows, Tensors: []string{tensor}}
}

// Bank declares the routed experts of a layer, which are what the engine streams. Parts come in the order they are
// needed.
func (b *Builder) Bank(layer, experts int, parts ...Part) Bank {
	name := "l" + strconv.Itoa(layer) + ".experts"
	w := &b.banks
	start := w.open(7)
	w.text(1, name)
	w.uint(2, uint64(layer))
	w.uint(3, uint64(experts))
	for _, p := range parts {
		shape := []int{p.Width, p.Rows, experts}
		if len(p.Tensors) != 1 {
			shape = shape[:2]
			if len(p.Tensors) != experts {
				b.Refuse(bug, "bank "+name+" has "+strconv.Itoa(len(p.Tensors))+" tensors for "+strconv.Itoa(experts)+" experts")
			}
		}
		part := w.open(4)
		w.uint(1, uint64(p.Role))
		for _, t := range p.Tensors {
			b.checkShape(t, shape)
			w.element(2, t)
		}
		w.uint(3, uint64(p.Width))
		w.uint(4, uint64(p.Rows))
		w.close(part)
	}
	w.close(start)
	return Bank(name)
}

// Unused lists a tensor that the plan leaves out on purpose. The engine refuses a file with a tensor that is neither
// used nor listed.
func (b *Builder) Unused(tensor, reason string) {
	b.find(tensor)
	start := b.unused.open(10)
	b.unused.text(1, tensor)
	b.unused.text(2, reason)
	b.unused.close(start)
}

func (b *Builder) declare(name string, residency int, types []uint64, shape []int, sources ...Source) Weight {
	w := &b.weights
	before := len(*w)
	start := w.open(6)
	w.text(1, name)
	for _, s := range sources {
		source := w.open(2)
		w.text(1, s.Tensor)
		w.uint(2, uint64(s.FirstRow))
		w.uint(3, uint64(s.Rows))
		w.close(source)
	}
	w.packed(3, widen(shape))
	w.uint(4, uint64(residency))
	w.packed(5, types)
	w.close(start)
	if first, again := b.declared[name]; again {
		if n := len(*w) - before; string((*w)[first:first+n]) != string((*w)[before:]) {
			b.Refuse(bug, "weight "+strconv.Quote(name)+" is declared twice, not alike: once read by row (Rows) and once in memory (Weight), or with "+
				"two shapes; a table that is both embedding and head is in memory (TableAndHead)")
		}
		*w = (*w)[:before]
	} else {
		b.declared[name] = before
	}
	return Weight(name)
}

func (b *Builder) find(tensor string) int32 {
	i := b.host.tensorFind(tensor)
	if i < 0 {
		b.Refuse(Corrupt, "tensor "+strconv.Quote(tensor)+" is missing")
	}
	return i
}

// checkShape refuses a tensor that is missing or has other dimensions than shape.
func (b *Builder) checkShape(tensor string, shape []int) {
	found, want := b.host.tensorDims(b.find(tensor)), widen(shape)
	for i := range max(len(found), len(want)) {
		if dim(found, i) != dim(want, i) {
			b.Refuse(Corrupt, "tensor "+strconv.Quote(tensor)+": expected "+formatShape(want)+", found "+formatShape(found))
		}
	}
}

func dim(shape []uint64, i int) uint64 {
	if i < len(shape) {
		return shape[i]
	}
	return 1
}

func widen(shape []int) []uint64 {
	out := make([]uint64, len(shape))
	for i, n := range shape {
		out[i] = uint64(n)
	}
	return out
}

func formatShape(shape []uint64) string {
	s := "["
	for i, n := range shape {
		if i > 0 {
			s += " "
		}
		s += strconv.FormatUint(n, 10)
	}
	return s + "]"
}
