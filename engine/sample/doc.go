// Package sample picks the next token from the logits of a model (specs/sampling.md).
//
//	p := sample.Default()
//	p.Seed = 42
//	s, err := sample.New(p)
//	if err != nil {
//		return err
//	}
//	for _, id := range prompt {
//		s.Accept(id) // penalties count the prompt as well
//	}
//	for {
//		id, err := s.Sample(logits)
//		if err != nil {
//			return err
//		}
//		s.Accept(id)
//		…
//	}
//
// The order is that of llama.cpp: logit bias, the stages of [Params.Samplers], a random choice. Truncation thus sees
// the probabilities at temperature 1, and temperature comes last. Equal logits count in the order of their ids, so the
// same logits, parameters and seed give the same token on every machine with the same floating-point exponential.
// At temperature 0 the highest logit after bias and penalties wins, nothing is sorted and no random number is drawn.
//
// Caveats: DRY and constrained output are not here. Sampling never allocates once the buffers have grown to the size of
// the vocabulary; with neither top-k nor top-p a token costs one exponential per vocabulary entry.
//
// A [Sampler] holds the state of one sequence and is not safe for concurrent use.
package sample
