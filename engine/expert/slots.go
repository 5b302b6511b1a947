package expert

import (
	"sync/atomic"

	"github.com/bigmoe/bigmoe/engine/vfs"
	"github.com/bigmoe/bigmoe/sdk/fault"
)

// bank is a Bank with what the store derives from it.
type bank struct {
	Bank
	firstKey int32
	bytes    int64
	class    int
	partOff  [MaxParts]int64 // of each part's region in a slot
}

// key returns the key of an expert. problem says, with the expert's number and how many there are, what must not be done with one
// that does not exist.
func (bk *bank) key(expert int32, problem string) (int32, error) {
	if expert < 0 || int(expert) >= bk.Experts {
		return 0, fault.Bugf("layer %d: "+problem, bk.Layer, expert, bk.Experts)
	}
	return bk.firstKey + expert, nil
}

// class is the free slots of a size class, as stacks.
type class struct {
	Class
	experts int     // of all its banks
	free    []int32 // with physical memory
	bare    []int32 // without
}

// slot is the state of a slot and of the expert in it.
type slot struct {
	key        int32
	bank       int32
	expert     int32
	gen        uint32
	class      int32
	next, prev int32 // in its queue
	pins       int32 // batches
	prio       priority
	queued     bool // has parts to start, and is in queues[prio]
	prefetched bool // and no batch has asked for it yet
	started    int8 // parts whose read has begun
	landed     int8 // parts read
	running    int8 // parts being read
	err        error
}

func (s *Store) bytesOf(key int32) int64 { return s.banks[s.slots[s.slotOf[key]].bank].bytes }

func (s *Store) parts(n int32) int8 { return int8(len(s.banks[s.slots[n].bank].Parts)) }

func (s *Store) complete(n int32) bool { return s.slots[n].landed == s.parts(n) }

// unstarted reports whether parts of slot n still have to be read, and nothing stands against it.
func (s *Store) unstarted(n int32) bool {
	return s.slots[n].err == nil && s.slots[n].started < s.parts(n)
}

// alloc gives key a free slot and starts a new generation of its readiness word. The ledger has made the room.
func (s *Store) alloc(key, bank int32) int32 {
	bk := &s.banks[bank]
	c := &s.classes[bk.class]
	var n int32
	if last := len(c.free) - 1; last >= 0 {
		n, c.free = c.free[last], c.free[:last]
		s.drained.Signal()
	} else {
		last = len(c.bare) - 1
		n, c.bare = c.bare[last], c.bare[:last]
		s.backedBytes += c.SlotBytes
		s.makePhysicalRoom()
	}
	old := &s.slots[n]
	s.slots[n] = slot{key: key, bank: bank, expert: key - bk.firstKey, class: old.class, gen: (old.gen + 1) & 0xffffff}
	s.slotOf[key] = n
	atomic.StoreUint32(&s.cfg.Ready[n], s.slots[n].gen<<8)
	return n
}

// makePhysicalRoom chooses free slots to discard until what is backed is within bounds again. It always finds some:
// the slots in use are within bounds by themselves, and slots of the growing class are not free, or it would not grow.
func (s *Store) makePhysicalRoom() {
	if s.cfg.Discard == nil {
		return
	}
	for s.backedBytes > s.layout.PhysicalBytes {
		var from *class
		var most int64
		for i := range s.classes {
			c := &s.classes[i]
			if free := int64(len(c.free)) * c.SlotBytes; free > most {
				from, most = c, free
			}
		}
		if from == nil {
			return
		}
		// The bottom of the stack has been free for longest, but any will do: none of them is in use.
		n := from.free[len(from.free)-1]
		from.free = from.free[:len(from.free)-1]
		s.backedBytes -= from.SlotBytes
		s.discards = append(s.discards, n)
	}
}

// discardPending gives back the memory of the chosen slots, without mu, before reads into other slots can be queued.
// Until it is done nobody else allocates, because the caller holds admission.
func (s *Store) discardPending() {
	if len(s.discards) == 0 {
		return
	}
	s.mu.Unlock()
	failures := int64(0)
	for _, n := range s.discards {
		off, _ := s.slotRange(n)
		if err := s.cfg.Discard(s.cfg.ArenaBase+uint64(off), s.classes[s.slots[n].class].SlotBytes); err != nil {
			failures++
		}
	}
	s.mu.Lock()
	for _, n := range s.discards {
		c := &s.classes[s.slots[n].class]
		c.bare = append(c.bare, n)
	}
	s.stats.Discards += int64(len(s.discards))
	s.stats.DiscardErrors += failures
	s.discards = s.discards[:0]
}

// slotRange returns the arena offset and size of slot n.
func (s *Store) slotRange(n int32) (off, bytes int64) {
	c := &s.classes[s.slots[n].class]
	return c.Offset + int64(int(n)-c.First)*c.SlotBytes, c.SlotBytes
}

// describe returns what a batch needs to know about slot n.
func (s *Store) describe(n int32) Slot {
	sl := &s.slots[n]
	bk := &s.banks[sl.bank]
	base, _ := s.slotRange(n)
	out := Slot{Expert: sl.expert, Ready: uint32(n), Gen: sl.gen}
	for p := range bk.Parts {
		remainder := bk.Parts[p].at(sl.expert).Offset % vfs.Align
		out.Parts[p] = s.cfg.ArenaBase + uint64(base+bk.partOff[p]+remainder)
	}
	return out
}

// free puts the slot of key, which has just left the ledger, back on its class.
func (s *Store) free(key int32) {
	n := s.slotOf[key]
	sl := &s.slots[n]
	if sl.queued {
		s.unqueue(n)
	}
	if sl.prefetched && sl.started == 0 {
		s.stats.Cancelled.add(s.banks[sl.bank].bytes)
	}
	c := &s.classes[sl.class]
	c.free = append(c.free, n)
}

// unhold ends one hold of slot n and clears away what is of no use once nobody holds it: a failed expert, and reads
// that only a released batch wanted or that were cancelled half-way.
func (s *Store) unhold(n int32) {
	sl := &s.slots[n]
	if !s.ledger.Release(sl.key) {
		return
	}
	if sl.err != nil || s.unstarted(n) && (!sl.queued || sl.prio == demand) {
		s.ledger.Remove(sl.key)
		s.free(sl.key)
	}
}

// fail is forsake for a slot whose expert cannot be read, and counts it.
func (s *Store) fail(n int32, err error) {
	if s.slots[n].err == nil {
		s.stats.Failures.add(s.bytesOf(s.slots[n].key))
	}
	s.forsake(n, err)
}

// forsake records the first error of slot n, takes back its other reads and sets the error bit. The caller wakes the word.
func (s *Store) forsake(n int32, err error) {
	sl := &s.slots[n]
	if sl.queued {
		s.unqueue(n)
	}
	if sl.err == nil {
		sl.err = err
		atomic.OrUint32(&s.cfg.Ready[n], ReadyError)
	}
}

func (s *Store) wake(word *uint32) {
	if s.cfg.Wake != nil {
		s.cfg.Wake(word)
	}
}
