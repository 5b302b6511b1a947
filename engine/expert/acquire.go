package expert

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/bigmoe/bigmoe/engine/expert/policy"
	"github.com/bigmoe/bigmoe/sdk/fault"
)

// Slot is where an expert is, or will be.
type Slot struct {
	Expert int32
	Hit    bool             // it was resident or on the way before the batch
	Ready  uint32           // number of its readiness word
	Gen    uint32           // generation of the readiness word
	Parts  [MaxParts]uint64 // region offsets of the payloads
}

// Batch is one wave of experts of one layer. The zero value is ready for Acquire; reuse it, it keeps its memory.
type Batch struct {
	Layer int
	Slots []Slot  // in the order asked for, each expert once
	Rest  []int32 // experts that did not fit: Acquire them after Release

	wave policy.Wave
	keys []int32 // asked for
	ask  []int32 // those of keys that can be asked of the ledger now
	held []int32 // slot numbers, until Release
}

// Acquire starts a batch: the distinct experts that one layer needs now, in b.Slots. Duplicates are dropped. It records
// one use of each, evicts what the budget demands but nothing that a batch holds, and queues a read for each that is
// missing. It does not wait for those reads: see the readiness words, or Wait.
//
// Experts that do not fit into the budget together with the rest are left in b.Rest, resident ones being taken first;
// acquire them after releasing b; b.Rest may be passed as experts. Acquire always takes at least one expert, unless it
// returns an error: [ErrBusy], [ErrClosed], the cause of an [Store.Interrupt], a layer or expert that does not exist, or a
// batch not released. Then it has taken none, and after ErrBusy b.Rest is all that was asked for.
func (s *Store) Acquire(layer int, experts []int32, b *Batch) error {
	s.admission.Lock()
	defer s.admission.Unlock()
	if len(b.held) > 0 {
		return fault.Bugf("layer %d: batch still holds %d experts of layer %d", layer, len(b.held), b.Layer)
	}
	b.keys = b.keys[:0]
	bi, err := s.bankOf(layer)
	if err != nil {
		return err
	}
	bk := &s.banks[bi]
	for _, e := range experts {
		key, err := bk.key(e, "expert %d of %d was asked for")
		if err != nil {
			return err
		}
		b.keys = append(b.keys, key)
	}

	s.mu.Lock()
	err = s.admit(b)
	for i := range b.Rest {
		b.Rest[i] -= bk.firstKey
	}
	if err != nil {
		s.mu.Unlock()
		return err
	}
	b.Layer = layer
	if len(b.wave.Keys) > 0 {
		s.held++
	}
	b.held, b.Slots = b.held[:0], b.Slots[:0]
	for _, k := range b.wave.Evicted {
		s.free(k)
		s.stats.Evictions.add(s.bytesOf(k))
	}
	for i, k := range b.wave.Keys {
		var n int32
		s.stats.Requested.add(bk.bytes)
		if b.wave.Hit[i] {
			n = s.slotOf[k]
			s.hit(n, bk.bytes)
		} else {
			n = s.alloc(k, bi)
			s.slots[n].prio = demand
			s.stats.Misses.add(bk.bytes)
		}
		s.slots[n].pins++
		b.held = append(b.held, n)
		b.Slots = append(b.Slots, s.describe(n))
		b.Slots[i].Hit = b.wave.Hit[i]
	}
	s.discardPending()

	// Queue in file order, whatever the order asked for, so that the disk sees one sweep per batch; but first what was begun.
	sorted := b.wave.Keys
	slices.SortFunc(sorted, func(x, y int32) int {
		a, c := bk.Parts[0].at(x-bk.firstKey), bk.Parts[0].at(y-bk.firstKey)
		begun := func(k int32) int { return int(min(s.slots[s.slotOf[k]].started, 1)) }
		return cmp.Or(cmp.Compare(begun(y), begun(x)), cmp.Compare(a.File, c.File), cmp.Compare(a.Offset, c.Offset))
	})
	parts := 0
	for _, k := range sorted {
		n := s.slotOf[k]
		s.raise(n, demand)
		if s.unstarted(n) && !s.slots[n].queued {
			s.enqueue(n)
			parts += len(bk.Parts)
		}
	}
	s.mu.Unlock()
	s.wakeReaders(parts)
	return nil
}

// admit fills b.wave from b.keys, and b.Rest with the keys left over.
func (s *Store) admit(b *Batch) error {
	for {
		b.ask, b.Rest = b.ask[:0], b.Rest[:0]
		if s.closed {
			return ErrClosed
		}
		if s.interrupted != nil {
			return s.interrupted
		}
		for _, k := range b.keys {
			if s.failing(k) {
				b.Rest = append(b.Rest, k)
			} else {
				b.ask = append(b.ask, k)
			}
		}
		s.ledger.Admit(b.ask, &b.wave)
		b.Rest = append(b.Rest, b.wave.Rest...)
		if len(b.wave.Keys) > 0 || len(b.keys) == 0 {
			return nil
		}
		if s.running == 0 {
			return ErrBusy
		}
		s.landed.Wait()
	}
}

// failing reports whether key failed for a batch that is gone, while another part of it is still being read: it cannot
// start afresh in its slot until that read has ended.
func (s *Store) failing(key int32) bool {
	if !s.ledger.Resident(key) {
		return false
	}
	sl := &s.slots[s.slotOf[key]]
	return sl.err != nil && sl.pins == 0
}

// hit accounts for a batch that found slot n taken by the expert it wants.
func (s *Store) hit(n int32, bytes int64) {
	sl := &s.slots[n]
	s.stats.Hits.add(bytes)
	if !s.complete(n) {
		s.stats.Joins.add(bytes)
	}
	if sl.prefetched {
		s.stats.Used.add(bytes)
		sl.prefetched = false
	}
}

// raise gives slot n at least priority p.
func (s *Store) raise(n int32, p priority) {
	sl := &s.slots[n]
	if sl.prio >= p {
		return
	}
	if !sl.queued {
		sl.prio = p
		return
	}
	s.unqueue(n)
	sl.prio = p
	s.enqueue(n)
}

// Release ends a batch: its experts may be evicted from now on. Reads that nobody else wants and that have not started
// are taken back. Releasing a batch twice, or one that was never acquired, does nothing.
func (s *Store) Release(b *Batch) {
	s.mu.Lock()
	for _, n := range b.held {
		s.slots[n].pins--
		s.unhold(n)
	}
	if len(b.held) > 0 {
		s.held--
	}
	s.usedAt = time.Now()
	if s.held == 0 && s.queues[warm].head != none {
		s.lull.Reset(lull)
	}
	s.mu.Unlock()
	s.landed.Broadcast()
	b.held, b.Slots = b.held[:0], b.Slots[:0]
}

// Err returns why an expert of b could not be read, or nil as long as none failed. It names the first in batch order.
func (s *Store) Err(b *Batch) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range b.held {
		if err := s.slots[n].err; err != nil {
			return err
		}
	}
	return nil
}

// Interrupt ends all waiting, so that whoever computes with a batch gives up at once however long a read takes: what batches hold
// and has not landed gets the error bit, Err and Acquire return cause. Reads under way go on, and what they bring is not
// kept. It lasts until Resume.
func (s *Store) Interrupt(cause error) {
	s.mu.Lock()
	s.interrupted = cause
	var words []*uint32
	for i := range s.slots {
		if n := int32(i); s.slots[n].pins > 0 && s.slots[n].err == nil && !s.complete(n) {
			s.forsake(n, cause)
			words = append(words, &s.cfg.Ready[n])
		}
	}
	s.mu.Unlock()
	s.landed.Broadcast()
	for _, w := range words {
		s.wake(w)
	}
}

// Resume ends an interruption. Batches acquired before it are of no use any more: release them.
func (s *Store) Resume() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.interrupted = nil
}

// Wait returns when all parts of sl, a slot of a batch not yet released, have landed or one cannot, or when ctx ends.
// Other processes wait on the readiness word instead.
func (s *Store) Wait(ctx context.Context, sl Slot) error {
	stop := context.AfterFunc(ctx, func() {
		s.mu.Lock() // or the broadcast could fall between the check of ctx and the wait
		defer s.mu.Unlock()
		s.landed.Broadcast()
	})
	defer stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	n := int32(sl.Ready)
	if n < 0 || int(n) >= len(s.slots) {
		return fault.Bugf("expert store: wait for slot %d of %d", n, len(s.slots))
	}
	for {
		switch st := &s.slots[n]; {
		case st.gen != sl.Gen || st.pins == 0:
			return fault.Bugf("expert store: wait for slot %d, which was released", n)
		case st.err != nil:
			return st.err
		case s.complete(n):
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		}
		s.landed.Wait()
	}
}
