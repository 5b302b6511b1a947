package gguf

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math/bits"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/bigmoe/bigmoe/sdk/dtype"
	"github.com/bigmoe/bigmoe/sdk/fault"
)

const (
	headerBytes      = 24
	minPairBytes     = 8 + 4 + 1     // key length, type, shortest value
	minTensorBytes   = 8 + 4 + 4 + 8 // name length, dimension count, type, offset
	maxKeyBytes      = 65535
	maxNameBytes     = 127
	maxDims          = 4
	maxDim           = 1 << 48
	defaultAlignment = 32
	maxAlignment     = 1 << 20

	lengthBytes = 8 // of a string, before its bytes
	// keptBytes is the longest array that is copied out of the file. Longer ones are those of the tokenizer, of which
	// the largest in use decode to 24 MiB; they are needed once, and read again then.
	keptBytes = 4 << 10
	// decodedBytes bounds what a model's metadata and tensor infos decode to, all shards together and with those arrays.
	decodedBytes = 48 << 20
	// entryBytes is what one key or tensor costs besides its text: the struct, the dimensions, the map entry.
	entryBytes = 240
)

// budget is the memory that decoding may still allocate. It is charged before the allocation, so counts in a file
// cost nothing until they have proved affordable.
type budget int64

func (b *budget) charge(n uint64) error {
	if n > uint64(*b) {
		return fault.Corruptf("header is too large: it decodes to more than %d MiB", decodedBytes>>20)
	}
	*b -= budget(n)
	return nil
}

// header is one parsed file. Tensor offsets count from the start of the data region.
type header struct {
	version   uint32
	values    []Value // in file order
	index     map[string]int
	tensors   []Tensor
	endBytes  uint64 // file offset after the last tensor info
	sizeBytes uint64
}

// get returns the value of key; a missing one still knows its name, for the error of its getters.
func (h *header) get(key string) (Value, bool) {
	if i, ok := h.index[key]; ok {
		return h.values[i], true
	}
	return Value{key: key}, false
}

// parse reads the header, the metadata and the tensor infos from data, the bytes of a whole file: checks 1 to 16 of
// specs/gguf.md 4.1. It reads no byte after the last tensor info and keeps no reference to data: src, which has the same
// bytes, is where long arrays are read when they are asked for. Errors do not name the file.
func parse(data []byte, src io.ReaderAt, mem *budget) (*header, error) {
	tensorCount, pairCount, err := parseFixed(data)
	if err != nil {
		return nil, err
	}
	h := &header{version: binary.LittleEndian.Uint32(data[4:]), sizeBytes: uint64(len(data))}
	c := &cursor{data: data, src: src, pos: headerBytes, mem: mem}
	if err := c.affordable("metadata key", pairCount, minPairBytes); err != nil {
		return nil, err
	}
	if err := c.affordable("tensor", tensorCount, minTensorBytes); err != nil {
		return nil, err
	}
	h.values = make([]Value, 0, pairCount)
	h.index = make(map[string]int, pairCount)
	for i := range pairCount {
		v, err := c.pair()
		if err != nil {
			return nil, fmt.Errorf("metadata key %d of %d: %w", i+1, pairCount, err)
		}
		if _, dup := h.index[v.key]; dup {
			return nil, fault.Corruptf("duplicate key %s", quote(v.key))
		}
		h.index[v.key] = len(h.values)
		h.values = append(h.values, v)
	}
	h.tensors = make([]Tensor, 0, tensorCount)
	dims := make([]uint64, 0, tensorCount*maxDims)
	for i := range tensorCount {
		var t Tensor
		if t, dims, err = c.tensor(dims); err != nil {
			return nil, fmt.Errorf("tensor %d of %d: %w", i+1, tensorCount, err)
		}
		h.tensors = append(h.tensors, t)
	}
	h.endBytes = uint64(c.pos)
	return h, nil
}

// parseFixed reads the 24 bytes that start a file: checks 1 to 3.
func parseFixed(data []byte) (tensors, pairs uint64, err error) {
	if len(data) == 0 {
		return 0, 0, fault.Corruptf("file is empty (0 bytes)")
	}
	if !bytes.HasPrefix(data, []byte("GGUF")) && !bytes.HasPrefix([]byte("GGUF"), data) {
		return 0, 0, fault.Corruptf("not a GGUF file: %s", guess(data))
	}
	if len(data) < headerBytes {
		return 0, 0, fault.Corruptf("file is truncated: %d bytes, the header alone takes %d", len(data), headerBytes)
	}
	switch version := binary.LittleEndian.Uint32(data[4:]); {
	case version == 1:
		return 0, 0, fault.Unsupportedf("GGUF version 1 is not supported (versions 2 and 3 are)")
	case version != 0 && version&0xFFFF == 0:
		return 0, 0, fault.Unsupportedf("big-endian GGUF is not supported")
	case version == 0:
		return 0, 0, fault.Corruptf("GGUF version 0 does not exist")
	case version > 3:
		return 0, 0, fault.Unsupportedf("GGUF version %d is not supported (versions 2 and 3 are)", version)
	}
	return binary.LittleEndian.Uint64(data[8:]), binary.LittleEndian.Uint64(data[16:]), nil
}

// guess says what a file that is not GGUF looks like.
func guess(data []byte) string {
	start := data[:min(len(data), 512)]
	lower := bytes.ToLower(start)
	has := func(prefix string) bool { return bytes.HasPrefix(start, []byte(prefix)) }
	switch {
	case has("PK\x03\x04"):
		return "it is a zip archive, perhaps a PyTorch file"
	case has("version https://git-lfs"):
		return "it is a Git LFS pointer; fetch the file it stands for"
	case has("tjgg"), has("fmgg"), has("lmgg"), has("algg"), has("ggjt"), has("ggmf"), has("GGML"), has("GGLA"):
		return fmt.Sprintf("magic %q belongs to a format older than GGUF", start[:4])
	case bytes.Contains(lower, []byte("<html")), bytes.Contains(lower, []byte("<!doctype html")):
		return "it is an HTML page, perhaps an error page saved by a download"
	case isText(start):
		return "it is a text file"
	}
	return fmt.Sprintf("magic is %q, expected %q", start[:min(4, len(start))], "GGUF")
}

func isText(b []byte) bool {
	return !slices.ContainsFunc(b, func(x byte) bool { return x < ' ' && x != '\t' && x != '\r' && x != '\n' })
}

// cursor walks over the unaligned part of a file.
type cursor struct {
	data []byte
	src  io.ReaderAt
	pos  int
	mem  *budget
}

func (c *cursor) remain() uint64 { return uint64(len(c.data) - c.pos) }

// take returns the next n bytes, still in the file's mapping.
func (c *cursor) take(n uint64) ([]byte, error) {
	if n > c.remain() {
		return nil, fault.Corruptf("file is truncated or corrupt: %d bytes expected at offset %d, %d remain", n, c.pos, c.remain())
	}
	b := c.data[c.pos : c.pos+int(n)]
	c.pos += int(n)
	return b, nil
}

func (c *cursor) u32() (uint32, error) {
	b, err := c.take(4)
	if err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint32(b), nil
}

func (c *cursor) u64() (uint64, error) {
	b, err := c.take(8)
	if err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint64(b), nil
}

// affordable refuses a count of entries that the rest of the file cannot hold (checks 4 and 5), and charges it.
func (c *cursor) affordable(what string, count, minBytes uint64) error {
	if count > c.remain()/minBytes {
		return fault.Corruptf("%s count %d is implausible: %d bytes remain, file is truncated or corrupt", what, count, c.remain())
	}
	if err := c.mem.charge(count * entryBytes); err != nil {
		return fmt.Errorf("%s count %d: %w", what, count, err)
	}
	return nil
}

// text copies a length-prefixed string of at most most bytes out of the file (check 6).
func (c *cursor) text(most uint64) (string, error) {
	n, err := c.u64()
	if err != nil {
		return "", err
	}
	if n > most {
		return "", fault.Corruptf("length %d is too long: at most %d bytes", n, most)
	}
	b, err := c.take(n)
	if err != nil {
		return "", err
	}
	if err := c.mem.charge(n); err != nil {
		return "", err
	}
	return string(b), nil
}

// name is text that people read: a key or the name of a tensor.
func (c *cursor) name(what string, most uint64) (string, error) {
	s, err := c.text(most)
	switch {
	case err != nil:
		return "", fmt.Errorf("%s: %w", what, err)
	case s == "":
		return "", fault.Corruptf("%s is empty", what)
	case !utf8.ValidString(s):
		return "", fault.Corruptf("%s %s is not valid UTF-8", what, quote(s))
	case strings.IndexByte(s, 0) >= 0:
		return "", fault.Corruptf("%s %s contains a NUL byte", what, quote(s))
	}
	return s, nil
}

func (c *cursor) pair() (Value, error) {
	key, err := c.name("key", maxKeyBytes)
	if err != nil {
		return Value{}, err
	}
	v := Value{key: key, present: true, count: 1}
	if err := c.value(&v); err != nil {
		return Value{}, fmt.Errorf("%s: %w", quote(key), err)
	}
	return v, nil
}

// value reads the type and the value of a key (check 7).
func (c *cursor) value(v *Value) error {
	id, err := c.u32()
	if err == nil && ValueType(id) == Array {
		v.array = true
		id, err = c.u32()
	}
	if err != nil {
		return err
	}
	v.elem = ValueType(id)
	switch {
	case id >= uint32(len(valueTypes)):
		return fault.Corruptf("unknown value type %d", id)
	case v.elem == Array:
		return fault.Corruptf("nested array: the elements of an array cannot be arrays")
	}
	if v.array {
		if v.count, err = c.arrayLen(v.elem); err != nil {
			return err
		}
	}
	if v.elem == String && !v.array {
		v.raw, err = c.text(decodedBytes)
		return err
	}
	start := c.pos
	if v.elem == String {
		err = c.skipTexts(v.count)
	} else {
		err = c.skipNumbers(v)
	}
	if err != nil {
		return err
	}
	if b := c.data[start:c.pos]; len(b) <= keptBytes {
		v.raw = string(b)
	} else {
		v.left = &span{src: c.src, offset: int64(start), bytes: int64(len(b))}
	}
	return nil
}

// skipNumbers walks over the packed numbers of a value.
func (c *cursor) skipNumbers(v *Value) error {
	b, err := c.take(uint64(v.count) * uint64(v.elem.bytes()))
	if err != nil {
		return err
	}
	if v.elem == Bool {
		for _, x := range b {
			if x > 1 {
				return fault.Corruptf("bool byte is %d, expected 0 or 1", x)
			}
		}
	}
	return c.mem.charge(uint64(len(b)))
}

// arrayLen reads the element count of an array and compares it with the bytes that are left.
func (c *cursor) arrayLen(elem ValueType) (int, error) {
	n, err := c.u64()
	if err != nil {
		return 0, err
	}
	least := uint64(elem.bytes())
	if elem == String {
		least = lengthBytes
	}
	if n > c.remain()/least {
		return 0, fault.Corruptf("array of %d elements of type %v is too long: %d bytes remain, file is truncated or corrupt", n, elem, c.remain())
	}
	return int(n), nil
}

// skipTexts walks over count strings.
func (c *cursor) skipTexts(count int) error {
	const headBytes = 16 // of a Go string
	if err := c.mem.charge(uint64(count) * headBytes); err != nil {
		return err
	}
	for i := range count {
		n, err := c.u64()
		if err == nil {
			_, err = c.take(n)
		}
		if err == nil {
			err = c.mem.charge(n)
		}
		if err != nil {
			return fmt.Errorf("string %d of %d: %w", i+1, count, err)
		}
	}
	return nil
}

// tensor reads one tensor info (checks 11 to 16). dims has room for its dimensions.
func (c *cursor) tensor(dims []uint64) (Tensor, []uint64, error) {
	name, err := c.name("tensor name", maxNameBytes)
	if err != nil {
		return Tensor{}, nil, err
	}
	t := Tensor{Name: name}
	fail := func(err error) (Tensor, []uint64, error) {
		return Tensor{}, nil, fmt.Errorf("%s: %w", quote(name), err)
	}
	n, err := c.u32()
	if err != nil {
		return fail(err)
	}
	if n > maxDims {
		return fail(fault.Corruptf("%d dimensions, expected 1 to %d", n, maxDims))
	}
	first, elems := len(dims), uint64(1)
	for i := range n {
		d, err := c.u64()
		if err != nil {
			return fail(err)
		}
		if d < 1 || d > maxDim {
			return fail(fault.Corruptf("dimension %d is %d, expected 1 to 2^48", i, d))
		}
		hi, lo := bits.Mul64(elems, d)
		if hi != 0 || lo >= 1<<63 {
			return fail(fault.Corruptf("product of the dimensions overflows"))
		}
		dims, elems = append(dims, d), lo
	}
	if n == 0 { // a single number, which some writers leave without dimensions (specs/deepseek4.md 2.1)
		dims = append(dims, 1)
	}
	t.Dims = slices.Clip(dims[first:])
	id, err := c.u32()
	if err != nil {
		return fail(err)
	}
	if t.Type = dtype.Type(id); !t.Type.Known() {
		return fail(fault.Unsupportedf("unsupported tensor type %d", id))
	}
	if n == 0 && t.Type.BlockElems() > 1 {
		return fail(fault.Corruptf("0 dimensions, expected 1 to %d for %v", maxDims, t.Type))
	}
	rowBytes, err := t.Type.RowBytes(int64(t.Dims[0]))
	if err != nil {
		return fail(err)
	}
	hi, size := bits.Mul64(uint64(rowBytes), elems/t.Dims[0])
	if hi != 0 || size >= 1<<63 {
		return fail(fault.Corruptf("size in bytes overflows"))
	}
	t.Bytes = int64(size)
	offset, err := c.u64()
	if err != nil {
		return fail(err)
	}
	if offset >= 1<<63 {
		return fail(fault.Corruptf("offset %d is beyond the end of any file", offset))
	}
	t.Offset = int64(offset)
	return t, dims, nil
}

// alignment returns general.alignment, or fallback where the key is absent (check 10).
func (h *header) alignment(fallback uint64) (uint64, error) {
	v, ok := h.get("general.alignment")
	if !ok {
		return fallback, nil
	}
	if v.array || v.elem != Uint32 {
		return 0, fault.Corruptf("general.alignment has the wrong type: expected uint32, found %s", v.TypeName())
	}
	a := v.bits(0)
	if a == 0 || a&(a-1) != 0 || a > maxAlignment {
		return 0, fault.Corruptf("general.alignment is %d, expected a power of two up to %d", a, maxAlignment)
	}
	return a, nil
}

// layout checks where the tensors lie under an alignment (17, 18, 20). It returns the offset at which the data starts,
// and that of the first byte that no tensor nor its padding covers, which is at most the size of the file.
func (h *header) layout(alignment uint64) (start, end uint64, err error) {
	start = roundUp(h.endBytes, alignment)
	end = h.endBytes
	order := make([]int, len(h.tensors))
	for i := range h.tensors {
		t := &h.tensors[i]
		order[i] = i
		offset, size := uint64(t.Offset), uint64(t.Bytes)
		if offset%alignment != 0 {
			return 0, 0, fault.Corruptf("tensor %s: offset %d is not a multiple of the alignment %d", quote(t.Name), offset, alignment)
		}
		// Offset and size are below 2^63 and start is a file offset: the sum of two fits, the third is compared.
		if start+offset > h.sizeBytes || size > h.sizeBytes-start-offset {
			return 0, 0, fault.Corruptf("tensor %s: %d bytes at offset %d+%d reach beyond the end of the file (%d bytes): file is truncated or corrupt",
				quote(t.Name), size, start, offset, h.sizeBytes)
		}
		end = max(end, min(h.sizeBytes, start+offset+roundUp(size, alignment)))
	}
	slices.SortFunc(order, func(a, b int) int {
		if d := h.tensors[a].Offset - h.tensors[b].Offset; d != 0 {
			return int(min(1, max(-1, d)))
		}
		return a - b
	})
	for i := 1; i < len(order); i++ {
		a, b := &h.tensors[order[i-1]], &h.tensors[order[i]]
		if a.Offset+a.Bytes > b.Offset {
			return 0, 0, fault.Corruptf("tensors %s and %s overlap: offset %d is inside the %d bytes at offset %d",
				quote(a.Name), quote(b.Name), b.Offset, a.Bytes, a.Offset)
		}
	}
	return start, end, nil
}

// roundUp returns the next multiple of a, a power of two, at or after x. Neither comes near 2^63.
func roundUp(x, a uint64) uint64 { return (x + a - 1) &^ (a - 1) }
