package recipe

import "math"

// wire writes protobuf fields by hand. Calls must come in the order of the field numbers, and scalar fields that are
// zero are left out, so that the bytes are those of a deterministic protobuf encoder.
type wire []byte

func (w *wire) varint(v uint64) {
	for v >= 0x80 {
		*w = append(*w, byte(v)|0x80)
		v >>= 7
	}
	*w = append(*w, byte(v))
}

const (
	varintField = 0
	doubleField = 1
	bytesField  = 2
)

func (w *wire) tag(field, kind int) { w.varint(uint64(field)<<3 | uint64(kind)) }

// uint writes a number unless it is zero.
func (w *wire) uint(field int, v uint64) {
	if v != 0 {
		w.tag(field, varintField)
		w.varint(v)
	}
}

// element writes one element of a repeated string field, empty or not.
func (w *wire) element(field int, s string) {
	w.tag(field, bytesField)
	w.varint(uint64(len(s)))
	*w = append(*w, s...)
}

// text writes a string unless it is empty.
func (w *wire) text(field int, s string) {
	if s != "" {
		w.element(field, s)
	}
}

// open starts a nested message and close ends it: what was written in between moves up to make room for its length.
// That spares a buffer for each message, and allocations are what costs an interpreted guest most.
func (w *wire) open(field int) (start int) {
	w.tag(field, bytesField)
	return len(*w)
}

func (w *wire) close(start int) {
	n, end := uint64(len(*w)-start), len(*w)
	w.varint(n) // grows by the size of the length; the bytes land at the end for now
	var length [10]byte
	size := copy(length[:], (*w)[end:])
	copy((*w)[start+size:], (*w)[start:end])
	copy((*w)[start:], length[:size])
}

// packed writes a repeated number field.
func (w *wire) packed(field int, values []uint64) {
	if len(values) == 0 {
		return
	}
	start := w.open(field)
	for _, v := range values {
		w.varint(v)
	}
	w.close(start)
}

// double writes a number of a oneof, zero or not.
func (w *wire) double(field int, v float64) {
	w.tag(field, doubleField)
	for bits, i := math.Float64bits(v), 0; i < 8; i++ {
		*w = append(*w, byte(bits>>(8*i)))
	}
}
