package expert

// Prefetch queues reads of experts that a layer is expected to need, and returns how many it queued. It records no use and never
// evicts what is held. Experts without room are dropped. An expert stays until a batch has asked for it or Cancel takes it back;
// only a batch that finds no other room evicts it.
func (s *Store) Prefetch(layer int, experts []int32) (int, error) {
	s.admission.Lock()
	defer s.admission.Unlock()
	bi, err := s.bankOf(layer)
	if err != nil {
		return 0, err
	}
	s.mu.Lock()
	bk := &s.banks[bi]
	count := 0
	for _, e := range experts {
		if s.closed {
			err = ErrClosed
			break
		}
		var key int32
		if key, err = bk.key(e, "expert %d of %d was prefetched"); err != nil {
			break
		}
		if s.prefetch(bi, key) {
			count++
		}
	}
	s.mu.Unlock()
	s.wakeReaders(count * len(bk.Parts))
	return count, err
}

func (s *Store) prefetch(bi, key int32) bool {
	bk := &s.banks[bi]
	if s.ledger.Resident(key) {
		n := s.slotOf[key]
		if s.slots[n].err != nil {
			return false
		}
		s.ledger.Promise(key)
		s.raise(n, ahead)
		if s.unstarted(n) && !s.slots[n].queued {
			s.enqueue(n)
		}
		return false
	}
	var ok bool
	s.evicted, ok = s.ledger.Speculate(key, s.evicted[:0])
	if !ok {
		s.stats.Dropped.add(bk.bytes)
		return false
	}
	for _, k := range s.evicted {
		s.free(k)
		s.stats.Evictions.add(s.bytesOf(k))
	}
	n := s.alloc(key, bi)
	s.slots[n].prio, s.slots[n].prefetched = ahead, true
	s.stats.Prefetched.add(bk.bytes)
	s.discardPending()
	s.enqueue(n)
	s.ledger.Release(key) // the hold of Speculate: a queued prefetch may be evicted
	return true
}

// Cancel takes prefetches back: reads that have not started are dropped, unless a batch has joined them, and experts
// that were expected lose their protection. Reads under way go on.
func (s *Store) Cancel(layer int, experts []int32) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	bi, err := s.bankOf(layer)
	if err != nil {
		return err
	}
	bk := &s.banks[bi]
	for _, e := range experts {
		key, err := bk.key(e, "prefetch of expert %d of %d was cancelled")
		if err != nil {
			return err
		}
		if !s.ledger.Resident(key) {
			continue
		}
		s.ledger.Unpromise(key)
		n := s.slotOf[key]
		sl := &s.slots[n]
		if sl.prio == demand || !sl.queued {
			continue
		}
		s.unqueue(n)
		if sl.running == 0 {
			s.ledger.Remove(key)
			s.free(key)
		}
	}
	return nil
}
