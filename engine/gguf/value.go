package gguf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"github.com/bigmoe/bigmoe/sdk/fault"
)

// ErrMissing is in the chain of the error that every getter of a [Value] returns when the file lacks the key.
var ErrMissing = errors.New("key is missing")

// ValueType is the type of a metadata value, or of the elements of an array, by its id in the file (specs/gguf.md 1.4).
type ValueType uint32

// The value types of specs/gguf.md 1.4.
const (
	Uint8   ValueType = 0
	Int8    ValueType = 1
	Uint16  ValueType = 2
	Int16   ValueType = 3
	Uint32  ValueType = 4
	Int32   ValueType = 5
	Float32 ValueType = 6
	Bool    ValueType = 7
	String  ValueType = 8
	Array   ValueType = 9
	Uint64  ValueType = 10
	Int64   ValueType = 11
	Float64 ValueType = 12
)

var valueTypes = [...]struct {
	name  string
	bytes int // of one value; 0 if the length varies
}{
	Uint8: {"uint8", 1}, Int8: {"int8", 1}, Uint16: {"uint16", 2}, Int16: {"int16", 2}, Uint32: {"uint32", 4},
	Int32: {"int32", 4}, Float32: {"float32", 4}, Bool: {"bool", 1}, String: {"string", 0}, Array: {"array", 0},
	Uint64: {"uint64", 8}, Int64: {"int64", 8}, Float64: {"float64", 8},
}

// String returns the name used in messages, such as uint32.
func (t ValueType) String() string {
	if int(t) < len(valueTypes) {
		return valueTypes[t].name
	}
	return fmt.Sprintf("type %d", uint32(t))
}

func (t ValueType) bytes() int     { return valueTypes[t].bytes }
func (t ValueType) unsigned() bool { return t == Uint8 || t == Uint16 || t == Uint32 || t == Uint64 }
func (t ValueType) float() bool    { return t == Float32 || t == Float64 }
func (t ValueType) signed() bool   { return t == Int8 || t == Int16 || t == Int32 || t == Int64 }

// Value is one metadata value with the key and file it belongs to.
//
// Writers disagree about integer widths and about scalar or array, so the getters convert between all of them
// (specs/gguf.md 1.4) and refuse what does not fit: a number out of range, a string where a number is due. The
// singular getters also take an array of one element, the plural ones a scalar. Every error names the file, the key,
// what was expected and what was found.
type Value struct {
	path, key string // path is empty while the file is being opened
	present   bool
	array     bool
	elem      ValueType // of the value, or of the elements of an array
	count     int       // elements; 1 for a scalar
	raw       string    // the bytes as in the file, but for the length of a single string
	left      *span     // or nil: where in the file they were left
}

// span is a range of bytes in a file.
type span struct {
	src           io.ReaderAt
	offset, bytes int64
}

// Key returns the key the value was asked for with.
func (v Value) Key() string { return v.key }

// Len returns the number of elements: 1 for a scalar, 0 for a missing key.
func (v Value) Len() int { return v.count }

// Type returns the type of the value, or of its elements, and whether it is an array.
func (v Value) Type() (elem ValueType, array bool) { return v.elem, v.array }

// TypeName returns the type as messages show it: "uint32", "array of string", "missing".
func (v Value) TypeName() string {
	switch {
	case !v.present:
		return "missing"
	case v.array:
		return "array of " + v.elem.String()
	}
	return v.elem.String()
}

// Preview returns the value in a form fit for one line of a terminal: strings quoted and cut, arrays counted.
func (v Value) Preview() string {
	switch {
	case !v.present:
		return "missing"
	case v.array:
		return fmt.Sprintf("%s, %d elements", v.TypeName(), v.count)
	case v.elem == String:
		return quote(v.raw)
	case v.elem == Bool:
		return strconv.FormatBool(v.bits(0) != 0)
	case v.elem.float():
		return strconv.FormatFloat(v.floatAt(0), 'g', -1, v.elem.bytes()*8)
	case v.elem.unsigned():
		return strconv.FormatUint(v.bits(0), 10)
	}
	return strconv.FormatInt(v.intAt(0), 10)
}

// Uint returns a whole number that is not negative.
func (v Value) Uint() (uint64, error) { return one(v, "unsigned integer", Value.Uints) }

// Int returns a whole number.
func (v Value) Int() (int64, error) { return one(v, "integer", Value.Ints) }

// Float returns a number. It may be NaN or infinite: where that would do harm, the caller knows.
func (v Value) Float() (float64, error) { return one(v, "number", Value.Floats) }

// Bool returns a truth value, stored as such or as the integer 0 or 1.
func (v Value) Bool() (bool, error) { return one(v, "bool", Value.Bools) }

// String returns a string as the raw bytes of the file, which need not be UTF-8. A Value is therefore no
// fmt.Stringer; see [Value.Preview].
func (v Value) String() (string, error) { return one(v, "string", Value.Strings) }

// Strings returns strings in a new slice. Elements need not be UTF-8. They share one buffer, which any of them keeps.
func (v Value) Strings() ([]string, error) {
	if err := v.expect("strings", v.elem == String); err != nil {
		return nil, err
	}
	if !v.array {
		return []string{v.raw}, nil
	}
	texts := make([]string, v.count)
	rest := v.raw
	for i := range texts {
		n, ok := uint64(0), len(rest) >= lengthBytes
		if ok {
			n, rest = binary.LittleEndian.Uint64([]byte(rest[:lengthBytes])), rest[lengthBytes:]
			ok = n <= uint64(len(rest))
		}
		if !ok {
			return nil, v.corruptf("key %s: file has changed since it was opened", quote(v.key))
		}
		texts[i], rest = rest[:n], rest[n:]
	}
	return texts, nil
}

// Uints returns whole numbers that are not negative, in a new slice.
func (v Value) Uints() ([]uint64, error) {
	if err := v.expect("unsigned integers", v.elem.unsigned() || v.elem.signed()); err != nil {
		return nil, err
	}
	out := make([]uint64, v.count)
	for i := range out {
		if v.elem.signed() && v.intAt(i) < 0 {
			return nil, v.rangef(i, "%d is out of range: expected an unsigned integer, found a negative one", v.intAt(i))
		}
		out[i] = v.bits(i)
	}
	return out, nil
}

// Ints returns whole numbers in a new slice.
func (v Value) Ints() ([]int64, error) {
	if err := v.expect("integers", v.elem.unsigned() || v.elem.signed()); err != nil {
		return nil, err
	}
	out := make([]int64, v.count)
	for i := range out {
		if out[i] = v.intAt(i); v.elem.unsigned() && out[i] < 0 {
			return nil, v.rangef(i, "%d is out of range: expected at most %d", v.bits(i), math.MaxInt64)
		}
	}
	return out, nil
}

// Floats returns numbers in a new slice. Integers are taken where a float64 holds them exactly.
func (v Value) Floats() ([]float64, error) {
	if err := v.expect("numbers", v.elem.float() || v.elem.unsigned() || v.elem.signed()); err != nil {
		return nil, err
	}
	const exact = 1 << 53
	out := make([]float64, v.count)
	for i := range out {
		switch {
		case v.elem.float():
			out[i] = v.floatAt(i)
			continue
		case v.elem.unsigned() && v.bits(i) > exact, v.elem.signed() && (v.intAt(i) > exact || v.intAt(i) < -exact):
			return nil, v.rangef(i, "%s of more than 53 bits is out of range for a floating-point number", v.elem)
		}
		out[i] = float64(v.intAt(i))
	}
	return out, nil
}

// Bools returns truth values in a new slice.
func (v Value) Bools() ([]bool, error) {
	if err := v.expect("bools", v.elem == Bool || v.elem.unsigned() || v.elem.signed()); err != nil {
		return nil, err
	}
	out := make([]bool, v.count)
	for i := range out {
		if v.bits(i) > 1 {
			return nil, v.rangef(i, "%d is out of range: expected a bool, 0 or 1", v.intAt(i))
		}
		out[i] = v.bits(i) == 1
	}
	return out, nil
}

// one applies a plural getter to a value of exactly one element.
func one[T any](v Value, want string, get func(Value) ([]T, error)) (T, error) {
	var zero T
	if err := v.expect(want, !v.array || v.count == 1); err != nil {
		return zero, err
	}
	all, err := get(v)
	if err != nil {
		return zero, err
	}
	return all[0], nil
}

// expect reports a value that is missing or not ok, and otherwise makes sure that its bytes are in raw.
func (v *Value) expect(want string, ok bool) error {
	switch {
	case !v.present:
		return v.corruptf("%w: %s (expected %s)", ErrMissing, quote(v.key), want)
	case !ok && v.array:
		return v.corruptf("key %s has the wrong type: expected %s, found %s (%d elements)", quote(v.key), want, v.TypeName(), v.count)
	case !ok:
		return v.corruptf("key %s has the wrong type: expected %s, found %s", quote(v.key), want, v.TypeName())
	case v.left == nil:
		return nil
	}
	var b strings.Builder
	b.Grow(int(v.left.bytes))
	n, err := io.Copy(&b, io.NewSectionReader(v.left.src, v.left.offset, v.left.bytes))
	switch {
	case err != nil:
		return fmt.Errorf("%s: key %s: read %d bytes at offset %d: %w", v.path, quote(v.key), v.left.bytes, v.left.offset, err)
	case n < v.left.bytes:
		return v.corruptf("key %s: file has become shorter since it was opened", quote(v.key))
	}
	v.raw, v.left = b.String(), nil
	return nil
}

// rangef is the error of element i.
func (v Value) rangef(i int, format string, args ...any) error {
	where := ""
	if v.array {
		where = fmt.Sprintf(" element %d", i)
	}
	return v.corruptf("key %s%s: %w", quote(v.key), where, fmt.Errorf(format, args...))
}

func (v Value) corruptf(format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	if v.path == "" {
		return fault.As(fault.Corrupt, err)
	}
	return fault.Corruptf("%s: %w", v.path, err)
}

// bits returns the little-endian bytes of element i, extended with zeros.
func (v Value) bits(i int) uint64 {
	size := v.elem.bytes()
	var x uint64
	for k := size - 1; k >= 0; k-- {
		x = x<<8 | uint64(v.raw[i*size+k])
	}
	return x
}

// intAt returns element i with its sign; an unsigned 64-bit number above the range comes out negative.
func (v Value) intAt(i int) int64 {
	if !v.elem.signed() {
		return int64(v.bits(i))
	}
	unused := 64 - 8*v.elem.bytes()
	return int64(v.bits(i)<<unused) >> unused
}

func (v Value) floatAt(i int) float64 {
	if v.elem == Float32 {
		return float64(math.Float32frombits(uint32(v.bits(i))))
	}
	return math.Float64frombits(v.bits(i))
}

// quote makes bytes from a file safe and short enough for a message.
func quote(s string) string {
	const most = 96
	if len(s) > most {
		return strconv.Quote(s[:most]) + "…"
	}
	return strconv.Quote(s)
}
