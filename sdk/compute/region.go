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
}

// NewRegion describes mapped memory. The readiness words are slots uint32 at byte offset ready, which must be a
// multiple of 4 and inside bytes.
func NewRegion(bytes []byte, ready, slots uint64) (*Region, error) {
	if ready%4 != 0 || ready > uint64(len(bytes)) || slots > (uint64(len(bytes))-ready)/4 {
		return nil, fmt.Errorf("region of %d bytes cannot hold %d readiness words at %d", len(bytes), slots, ready)
	}
	r := &Region{Bytes: bytes}
	if slots > 0 {
		r.ready = unsafe.Slice((*atomic.Uint32)(unsafe.Pointer(&bytes[ready])), slots)
	}
	return r, nil
}

// Word returns readiness word i.
func (r *Region) Word(i uint32) *atomic.Uint32 { return &r.ready[i] }

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
		futex.WaitSpin(word, w, time.Second)
	}
}

// Float32s returns n float32 at byte offset off, which must be a multiple of 4.
func (r *Region) Float32s(off uint64, n int) []float32 {
	return unsafe.Slice((*float32)(unsafe.Pointer(&r.Bytes[off : off+4*uint64(n)][0])), n)
}

// Int32s returns n int32 at byte offset off, which must be a multiple of 4.
func (r *Region) Int32s(off uint64, n int) []int32 {
	return unsafe.Slice((*int32)(unsafe.Pointer(&r.Bytes[off : off+4*uint64(n)][0])), n)
}
