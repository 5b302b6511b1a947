package expert

// ID names an expert.
type ID struct {
	Layer  int
	Expert int32
}

// Warm reads experts into what room there is, in the order given, the most useful first, and returns at once. It evicts nothing
// and gives way to whatever else is wanted: while batches follow one another no read for it begins. An expert that cannot be
// read is skipped. If the budget holds all experts, those that are not named follow. The list replaces that of an earlier Warm.
func (s *Store) Warm(experts []ID) error {
	keys := make([]int32, 0, len(experts))
	for _, id := range experts {
		bi, err := s.bankOf(id.Layer)
		if err != nil {
			return err
		}
		key, err := s.banks[bi].key(id.Expert, "expert %d of %d was to be warmed")
		if err != nil {
			return err
		}
		keys = append(keys, key)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return ErrClosed
	}
	if s.layout.BudgetBytes == s.layout.ExpertBytes {
		for key := range int32(len(s.slotOf)) {
			keys = append(keys, key)
		}
	}
	s.cold = keys
	s.thawed.Signal()
	return nil
}

// Full reports whether every expert there is has its place in the cache.
func (s *Store) Full() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ledger.UsedBytes() == s.layout.ExpertBytes
}

// warmer queues what is to be warmed, a few at a time, until the store closes.
func (s *Store) warmer() {
	for {
		s.mu.Lock()
		for !s.closed && (len(s.cold) == 0 || s.queues[warm].head != none) {
			s.thawed.Wait()
		}
		closed := s.closed
		s.mu.Unlock()
		if closed {
			return
		}
		s.queueWarm()
	}
}

// queueWarm queues about as many experts as there are readers.
func (s *Store) queueWarm() {
	s.admission.Lock()
	defer s.admission.Unlock()
	s.mu.Lock()
	parts := 0
	for parts < s.cfg.Readers && len(s.cold) > 0 && !s.closed {
		key := s.cold[0]
		s.cold = s.cold[1:]
		if s.ledger.Resident(key) {
			continue
		}
		bi := s.bankOfKey(key)
		bk := &s.banks[bi]
		if s.ledger.UsedBytes()+bk.bytes > s.layout.BudgetBytes {
			s.cold = nil
			break
		}
		s.ledger.Add(key)
		n := s.alloc(key, bi)
		s.slots[n].prio = warm
		s.stats.Warmed.add(bk.bytes)
		s.discardPending()
		s.enqueue(n)
		s.ledger.Release(key)
		parts += len(bk.Parts)
	}
	if parts > 0 {
		s.lull.Reset(lull) // if it is too early now
	}
	s.mu.Unlock()
	s.wakeReaders(parts)
}

// aheadBytes is how much memory is prepared ahead of its use: a quarter of a second of a fast drive.
const aheadBytes = 256 << 20

// backAhead prepares the memory of slots that nobody has used yet, a little ahead of their use, so that reads need not wait for it.
// It leaves some to the class that will grow beyond its share.
func (s *Store) backAhead() {
	limit := s.layout.PhysicalBytes
	if len(s.classes) > 1 {
		limit -= limit / 10
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for !s.closed {
		c := s.leastBacked()
		if c == nil || s.backedBytes+c.SlotBytes > limit {
			return
		}
		if s.freeBytes() >= aheadBytes {
			s.drained.Wait()
			continue
		}
		n := c.bare[len(c.bare)-1]
		s.mu.Unlock()
		off, bytes := s.slotRange(n)
		s.cfg.Back(s.cfg.ArenaBase+uint64(off), bytes)
		s.mu.Lock()
		if last := len(c.bare) - 1; last >= 0 && c.bare[last] == n { // or somebody has taken it meanwhile
			c.bare, c.free = c.bare[:last], append(c.free, n)
			s.backedBytes += bytes
		}
	}
}

// freeBytes is the memory of slots that nobody uses.
func (s *Store) freeBytes() (n int64) {
	for i := range s.classes {
		n += int64(len(s.classes[i].free)) * s.classes[i].SlotBytes
	}
	return n
}

// leastBacked returns the class that has the least of its share of slots with memory, nil if none is without.
func (s *Store) leastBacked() *class {
	share := func(c *class) float64 { return float64(c.Slots-len(c.bare)) / float64(c.experts) }
	var least *class
	for i := range s.classes {
		if c := &s.classes[i]; len(c.bare) > 0 && (least == nil || share(c) < share(least)) {
			least = c
		}
	}
	return least
}
