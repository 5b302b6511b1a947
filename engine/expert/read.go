package expert

import (
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/bigmoe/bigmoe/engine/vfs"
	"github.com/bigmoe/bigmoe/sdk/fault"
)

// none ends a queue.
const none = -1

// queue is a list of slots with parts to start, linked through the slots, so that taking one out costs nothing.
type queue struct{ head, tail int32 }

func (s *Store) enqueue(n int32) {
	sl := &s.slots[n]
	q := &s.queues[sl.prio]
	sl.queued, sl.prev, sl.next = true, q.tail, none
	if q.tail == none {
		q.head = n
	} else {
		s.slots[q.tail].next = n
	}
	q.tail = n
}

func (s *Store) unqueue(n int32) {
	sl := &s.slots[n]
	q := &s.queues[sl.prio]
	if sl.prev == none {
		q.head = sl.next
	} else {
		s.slots[sl.prev].next = sl.next
	}
	if sl.next == none {
		q.tail = sl.prev
	} else {
		s.slots[sl.next].prev = sl.prev
	}
	sl.queued = false
	if sl.prio == warm {
		s.thawed.Signal()
	}
}

// wakeReaders wakes as many readers as there may be new parts for.
func (s *Store) wakeReaders(parts int) {
	for range min(parts, s.cfg.Readers) {
		s.work.Signal()
	}
}

// reader reads parts until the store closes or has too many readers.
func (s *Store) reader() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		if s.readers > s.cfg.Readers {
			s.readers--
			return
		}
		n := s.next()
		if n == none {
			if s.closed {
				return
			}
			s.work.Wait()
			continue
		}
		s.readNext(n)
	}
}

// lull is how long nobody must have held a batch before anything is warmed: longer than from one token to the next.
const lull = 100 * time.Millisecond

// next returns the slot whose part is to be read next. While tokens are computed nothing is warmed, even if the drive is idle: new
// memory and the reads themselves take processor time from whoever computes (docs/experiments/background-fill.md).
func (s *Store) next() int32 {
	for p := demand; p > warm; p-- {
		if n := s.queues[p].head; n != none {
			return n
		}
	}
	if n := s.queues[warm].head; n != none && s.held == 0 && time.Since(s.usedAt) >= lull {
		return n
	}
	return none
}

// readNext reads the next part of slot n. It is called with mu, and lets go of it while it reads.
func (s *Store) readNext(n int32) {
	sl := &s.slots[n]
	bk := &s.banks[sl.bank]
	part := int(sl.started)
	sl.started++
	if sl.started == s.parts(n) {
		s.unqueue(n)
	}
	sl.running++
	if s.running++; s.running == 1 {
		s.busySince = time.Now()
	}
	s.stats.InFlightPeak = max(s.stats.InFlightPeak, s.running)
	prio, expert := sl.prio, sl.expert
	s.ledger.Hold(sl.key)
	base, _ := s.slotRange(n)
	s.mu.Unlock()

	bytes := bk.Parts[part].Bytes
	off := base + bk.partOff[part]
	region := s.cfg.Arena[off:][:vfs.RegionBytes(bytes)]
	if s.cfg.Back != nil {
		s.cfg.Back(s.cfg.ArenaBase+uint64(off), int64(len(region)))
	}
	at := bk.Parts[part].at(expert)
	start := time.Now()
	tally, err := s.files[at.File].Read(at.Offset, bytes, region)
	took := time.Since(start)
	word := &s.cfg.Ready[n]
	if err != nil {
		err = s.readError(bk, part, expert, tally.Got, err)
	}

	s.mu.Lock()
	if s.running--; s.running == 0 {
		s.stats.BusyTime += time.Since(s.busySince)
	}
	sl.running--
	s.stats.Reads++
	s.stats.ReadTime += took
	s.stats.SyscallBytes += tally.Bytes
	s.stats.Retries += tally.Calls - 1
	if tally.FellBack {
		s.stats.Fallbacks++
	}
	if err == nil {
		sl.landed++
		s.stats.ReadBytes[prio] += bytes
		// Under the lock: whoever sees the bit and asks for the next batch finds this hold gone, so that what is evicted
		// does not depend on which thread was faster.
		atomic.OrUint32(word, 1<<part)
	} else {
		s.fail(n, err)
	}
	s.unhold(n)
	s.landed.Broadcast()
	s.mu.Unlock()
	s.wake(word)
	s.mu.Lock()
}

func (s *Store) readError(bk *bank, part int, expert int32, got int64, err error) error {
	const text = "layer %d: expert %d, part %d (tensor %s): read %s at offset %d: got %d of %d bytes: %w"
	p := &bk.Parts[part]
	at := p.at(expert)
	name := s.files[at.File].Name()
	if errors.Is(err, io.EOF) {
		return fault.Corruptf(text, bk.Layer, expert, part, p.Name, name, at.Offset, got, p.Bytes,
			fmt.Errorf("file has become shorter since it was opened: %w", io.ErrUnexpectedEOF))
	}
	return fmt.Errorf(text, bk.Layer, expert, part, p.Name, name, at.Offset, got, p.Bytes, err)
}
