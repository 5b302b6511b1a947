package gguf

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"sync"

	"github.com/bigmoe/bigmoe/sdk/dtype"
	"github.com/bigmoe/bigmoe/sdk/fault"
)

const (
	checkReaders    = 2
	checkChunkBytes = 2 << 20 // per reader
)

// encoding is how a floating-point field of a block is stored.
type encoding int

const (
	f16 encoding = iota
	bf16
	f32
	f64
	e8m0  // MXFP4's power of two: 0xFF is NaN, nothing is infinite
	iq1mD // an f16 spread over the top nibbles of four u16 (specs/quants.md 3, IQ1_M)
)

// field is one floating-point number of a block, by its byte offset.
type field struct {
	at int
	as encoding
}

// fields lists what can be NaN or infinite in a block of each type (specs/quants.md 2 and 3). Integers cannot, nor can
// the UE4M3 scales of NVFP4, whose would-be NaN means 0.
var fields = map[dtype.Type][]field{
	dtype.F32: {{0, f32}}, dtype.F16: {{0, f16}}, dtype.BF16: {{0, bf16}}, dtype.F64: {{0, f64}},
	dtype.I8: nil, dtype.I16: nil, dtype.I32: nil, dtype.I64: nil, dtype.NVFP4: nil,
	dtype.Q4_0: {{0, f16}}, dtype.Q5_0: {{0, f16}}, dtype.Q8_0: {{0, f16}}, dtype.IQ4_NL: {{0, f16}},
	dtype.Q1_0: {{0, f16}}, dtype.Q2_0: {{0, f16}},
	dtype.Q4_1: {{0, f16}, {2, f16}}, dtype.Q5_1: {{0, f16}, {2, f16}}, dtype.Q8_1: {{0, f16}, {2, f16}},
	dtype.MXFP4: {{0, e8m0}},
	dtype.Q2_K:  {{80, f16}, {82, f16}}, dtype.Q3_K: {{108, f16}}, dtype.Q6_K: {{208, f16}}, dtype.Q8_K: {{0, f32}},
	dtype.Q4_K: {{0, f16}, {2, f16}}, dtype.Q5_K: {{0, f16}, {2, f16}},
	dtype.TQ1_0: {{52, f16}}, dtype.TQ2_0: {{64, f16}}, dtype.IQ4_XS: {{0, f16}},
	dtype.IQ2_XXS: {{0, f16}}, dtype.IQ2_XS: {{0, f16}}, dtype.IQ2_S: {{0, f16}}, dtype.IQ3_XXS: {{0, f16}},
	dtype.IQ3_S: {{0, f16}}, dtype.IQ1_S: {{0, f16}}, dtype.IQ1_M: {{48, iq1mD}},
}

// firstBad returns the first block in blocks, which are stride bytes each, whose field is NaN or infinite; -1 if none.
// All the exponent bits of a float are set exactly then, and they lie in its two highest bytes.
func (f field) firstBad(blocks []byte, stride int) int {
	var high int // offset of the two bytes
	var exponent uint16
	switch f.as {
	case f16:
		high, exponent = 0, 0x7C00
	case bf16:
		high, exponent = 0, 0x7F80
	case f32:
		high, exponent = 2, 0x7F80
	case f64:
		high, exponent = 6, 0x7FF0
	case e8m0:
		for at := f.at; at < len(blocks); at += stride {
			if blocks[at] == 0xFF {
				return at / stride
			}
		}
		return -1
	case iq1mD: // sign and exponent are the nibbles of the last two words but for the exponent's lowest two bits
		for at := f.at; at < len(blocks); at += stride {
			if blocks[at+7]&0x70 == 0x70 && blocks[at+5]&0xC0 == 0xC0 {
				return at / stride
			}
		}
		return -1
	}
	for at := f.at + high; at < len(blocks); at += stride {
		if binary.LittleEndian.Uint16(blocks[at:])&exponent == exponent {
			return at / stride
		}
	}
	return -1
}

// isInf reports whether the field of block, known not to be finite, is infinite rather than NaN.
func (f field) isInf(block []byte) bool {
	b := block[f.at:]
	switch f.as {
	case f16:
		return binary.LittleEndian.Uint16(b)&0x3FF == 0
	case bf16:
		return binary.LittleEndian.Uint16(b)&0x7F == 0
	case f32:
		return math.IsInf(float64(math.Float32frombits(binary.LittleEndian.Uint32(b))), 0)
	case f64:
		return math.IsInf(math.Float64frombits(binary.LittleEndian.Uint64(b)), 0)
	case iq1mD:
		return b[1]>>4 == 0 && b[3]>>4 == 0 && b[5]>>4&3 == 0
	}
	return false
}

// Check reads every tensor of every shard, with buffered reads, and returns an error for the first place, in file
// order, that cannot be read or holds NaN or infinity: a value of a floating-point tensor, a scale or minimum of a
// quantized block, an MXFP4 exponent of 0xFF (specs/gguf.md 4.1). It uses 4 MiB and two goroutines.
//
// Where progress is not nil, it is called after every piece of at most 2 MiB, from one goroutine at a time.
func (f *File) Check(ctx context.Context, progress func(doneBytes, totalBytes int64)) error {
	c := checker{file: f, progress: progress, failedAt: math.MaxInt64}
	for _, t := range f.tensors {
		c.totalBytes += t.Bytes
	}
	var readers sync.WaitGroup
	for range checkReaders {
		readers.Go(func() { c.run(ctx) })
	}
	readers.Wait()
	if c.err == nil {
		return ctx.Err()
	}
	return fmt.Errorf("%s: %w", f.path, c.err)
}

// checker hands out pieces of tensors in file order.
type checker struct {
	file     *File
	progress func(doneBytes, totalBytes int64)

	mu                    sync.Mutex
	tensor                int   // of the next piece
	fromBytes             int64 // where it starts in the tensor
	handed                int64 // pieces so far
	doneBytes, totalBytes int64
	failedAt              int64 // the earliest piece that failed; later ones need not be read
	err                   error
}

func (c *checker) run(ctx context.Context) {
	buf := make([]byte, checkChunkBytes)
	for ctx.Err() == nil {
		piece, t, from, size := c.next()
		if size == 0 {
			return
		}
		err := c.file.checkPiece(t, from, buf[:size])
		c.mu.Lock()
		c.doneBytes += size
		if err != nil && piece < c.failedAt {
			c.failedAt, c.err = piece, err
		}
		if c.progress != nil {
			c.progress(c.doneBytes, c.totalBytes)
		}
		c.mu.Unlock()
	}
}

// next returns a piece of whole blocks; its size is 0 when there is nothing left to do.
func (c *checker) next() (piece int64, t *Tensor, fromBytes, sizeBytes int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil || c.tensor == len(c.file.tensors) {
		return 0, nil, 0, 0
	}
	t = &c.file.tensors[c.tensor]
	block := int64(t.Type.BlockBytes())
	piece, fromBytes, sizeBytes = c.handed, c.fromBytes, min(t.Bytes-c.fromBytes, checkChunkBytes/block*block)
	c.handed++
	if c.fromBytes += sizeBytes; c.fromBytes == t.Bytes {
		c.tensor, c.fromBytes = c.tensor+1, 0
	}
	return piece, t, fromBytes, sizeBytes
}

// checkPiece reads len(buf) bytes of t from fromBytes and checks them.
func (f *File) checkPiece(t *Tensor, fromBytes int64, buf []byte) error {
	shard := f.shards[t.Shard]
	where := "tensor " + quote(t.Name)
	if shard.Path != f.path {
		where = fmt.Sprintf("shard %s: %s", shard.Path, where)
	}
	if n, err := shard.ReadAt(buf, t.Offset+fromBytes); n < len(buf) {
		if err == io.EOF {
			return fault.Corruptf("%s: file became shorter: no bytes at offset %d", where, t.Offset+fromBytes+int64(n))
		}
		return fmt.Errorf("%s: %w", where, err)
	}
	stride := t.Type.BlockBytes()
	bad, in := -1, field{}
	for _, fd := range fields[t.Type] {
		if i := fd.firstBad(buf, stride); i >= 0 && (bad < 0 || i < bad) {
			bad, in = i, fd
		}
	}
	if bad < 0 {
		return nil
	}
	what := "nan"
	if in.isInf(buf[bad*stride:]) {
		what = "inf"
	}
	at := fromBytes/int64(stride) + int64(bad)
	if t.Type.BlockElems() == 1 {
		return fault.Corruptf("%s (%v): element %d is %s", where, t.Type, at, what)
	}
	return fault.Corruptf("%s (%v): block %d has a scale that is %s (byte %d of the block)", where, t.Type, at, what, in.at)
}
