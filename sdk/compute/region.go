package compute

import (
	"fmt"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/bigmoe/bigmoe/sdk/compute/futex"
)

// A readiness word tells which parts of a slot have landed:
//
//	bits 0-3   part i is in memory
//	bit  4     reading failed; the other bits mean nothing
//	bits 8-31  generation: how often the slot was given away, modulo 2^24
const (
	ReadyError = 1 << 4
	GenShift   = 8
)

// Region is the memory that engine and backend share: dense weights, expert slots and the places of the small
// messages. It is mapped once and never moves.
type Region struct {
	Bytes []byte
	ready []atomic.Uint32
	beat  *atomic.Uint32

	waitedNanos atomic.Int64
}

// NewRegion describes mapped memory. The readiness words are slots uint32 at byte offset ready, which must be a
// multiple of 4 and inside bytes.
func NewRegion(bytes []byte, ready, slots uint64) (*Region, error) {
	if ready%4 != 0 || ready > uint64(len(bytes)) || slots > (uint64(len(bytes))-ready)/4 {
		return nil, fmt.Errorf("region of %d bytes cannot hold %d readiness words at %d", len(bytes), slots, ready)
	}
	r := &Region{Bytes: bytes, beat: new(atomic.Uint32)}
	if slots > 0 {
		r.ready = unsafe.Slice((*atomic.Uint32)(unsafe.Pointer(&bytes[ready])), slots)
	}
	return r, nil
}

// Word returns readiness word i.
func (r *Region) Word(i uint32) *atomic.Uint32 { return &r.ready[i] }

// Progress tells the engine that the backend is still at work. Every call to the host and every wait for a slot does so
// too: only a backend that computes for many seconds between them (or in Load) needs it. Any thread may call it.
func (r *Region) Progress() { r.beat.Add(1) }

// Landed reports, without waiting, whether all parts in the bit mask are in memory.
func (r *Region) Landed(s *Slot, parts uint32) bool {
	w := r.ready[s.Ready].Load()
	return w>>GenShift == s.Gen && w&ReadyError == 0 && w&parts == parts
}

// Wait blocks until all parts in the bit mask are in memory. It fails when the read failed or the slot was given
// away, which is a broken promise of the engine.
func (r *Region) Wait(s *Slot, parts uint32) error {
	word := &r.ready[s.Ready]
	for {
		w := word.Load()
		switch {
		case w>>GenShift != s.Gen:
			return fmt.Errorf("expert %d: slot %d was given away (generation %d, expected %d)", s.Expert, s.Ready, w>>GenShift, s.Gen)
		case w&ReadyError != 0:
			return fmt.Errorf("expert %d: reading it failed", s.Expert)
		case w&parts == parts:
			return nil
		}
		r.Progress() // a slow disk is not a hanging backend
		start := time.Now()
		futex.WaitSpin(word, w, futex.Brief, 100*time.Millisecond)
		r.waitedNanos.Add(int64(time.Since(start)))
	}
}

// Waited is the time that all calls of Wait together have waited so far.
func (r *Region) Waited() time.Duration { return time.Duration(r.waitedNanos.Load()) }

// Slots returns n slot records at byte offset off, which must be a multiple of 8.
func (r *Region) Slots(off uint64, n int) []Slot {
	return view[Slot](r.Bytes, off, n)
}

// Float32s returns n float32 at byte offset off, which must be a multiple of 4.
func (r *Region) Float32s(off uint64, n int) []float32 {
	return view[float32](r.Bytes, off, n)
}

// Int32s returns n int32 at byte offset off, which must be a multiple of 4.
func (r *Region) Int32s(off uint64, n int) []int32 {
	return view[int32](r.Bytes, off, n)
}

// slotBytes is the size of a slot record: the fields of Slot in order, the parts at a multiple of 8.
const slotBytes = 40

var _ [slotBytes]byte = [unsafe.Sizeof(Slot{})]byte{}

func view[T any](bytes []byte, off uint64, n int) []T {
	if n == 0 {
		return nil
	}
	var t T
	b := bytes[off : off+uint64(n)*uint64(unsafe.Sizeof(t))]
	return unsafe.Slice((*T)(unsafe.Pointer(&b[0])), n)
}
