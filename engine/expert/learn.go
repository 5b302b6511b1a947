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
		if e < 0 || int(e) >= bk.Experts {
			return fault.Bugf("layer %d: expert %d of %d was picked", layer, e, bk.Experts)
		}
		s.picks = append(s.picks, bk.firstKey+e)
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
	bk := &s.banks[bi]
	if expert < 0 || int(expert) >= bk.Experts {
		return fault.Bugf("layer %d: expert %d of %d is expected", layer, expert, bk.Experts)
	}
	s.ledger.Expect(bk.firstKey+expert, rate)
	return nil
}

// Tick tells the policy that a token step begins: a decode step, or a prefill batch.
func (s *Store) Tick() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ledger.Tick()
}
