package expert

import "github.com/bigmoe/bigmoe/sdk/fault"

// Route tells the policy what each token of a batch picked in a layer, k experts per token, token by token, the one that the router
// likes best first. It comes before the Acquire of the batch. Without it the default policy sees no uses and is no better than LRU.
func (s *Store) Route(layer, k int, experts []int32) error {
	s.admission.Lock()
	defer s.admission.Unlock()
	bi, err := s.bankOf(layer)
	if err != nil {
		return err
	}
	bk := &s.banks[bi]
	if k <= 0 || len(experts)%k != 0 {
		return fault.Bugf("layer %d: %d picks, %d of each token", layer, len(experts), k)
	}
	s.picks = s.picks[:0]
	for _, e := range experts {
		key, err := bk.key(e, "expert %d of %d was picked")
		if err != nil {
			return err
		}
		s.picks = append(s.picks, key)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ledger.Route(int32(layer), k, s.picks)
	return nil
}

// Expect tells the policy how often, per token, an expert was used in the past that it has not seen. It is for a store that nothing
// was asked of yet.
func (s *Store) Expect(layer int, expert int32, rate float32) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	bi, err := s.bankOf(layer)
	if err != nil {
		return err
	}
	key, err := s.banks[bi].key(expert, "expert %d of %d is expected")
	if err != nil {
		return err
	}
	s.ledger.Expect(key, rate)
	return nil
}

// Tick tells the policy that a token step begins: a decode step, or a prefill batch.
func (s *Store) Tick() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ledger.Tick()
}
