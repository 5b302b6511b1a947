package sample

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"github.com/bigmoe/bigmoe/sdk/fault"
)

// Sampler picks tokens for one sequence. Make one with [New].
type Sampler struct {
	p      Params
	greedy bool
	stages []stage
	best   int // how many of the best candidates the first stage can need
	choice choice
	rng    twister
	xtcRNG twister // its own, so that a draw there does not shift the choice

	bias     []biased
	recent   []int32 // the last accepted tokens, a ring once it is full; empty if no penalty applies
	oldest   int
	window   []int32   // recent, sorted
	adjusted []float32 // logits after bias and penalties
	c        candidates
	rank     []ranked // scratch of typ_p
}

type biased struct {
	id   int32
	bias float32
}

// New returns a sampler at the start of a sequence, or the error of [Params.Validate]. A [RandomSeed] is replaced here.
func New(p Params) (*Sampler, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	if p.Seed == RandomSeed {
		var b [4]byte
		rand.Read(b[:]) // never fails
		p.Seed = min(binary.LittleEndian.Uint32(b[:]), RandomSeed-1)
	}
	p.Samplers = slices.Clone(p.Samplers)
	s := &Sampler{p: p, greedy: p.greedy(), choice: p.choice()}
	s.stages, s.best = p.stages()
	for id, b := range p.LogitBias {
		s.bias = append(s.bias, biased{id, b})
	}
	s.p.LogitBias = nil
	s.Reset()
	return s, nil
}

// Seed returns the seed in use.
func (s *Sampler) Seed() uint32 { return s.p.Seed }

// Reset forgets the accepted tokens and starts the random numbers again.
func (s *Sampler) Reset() {
	s.recent, s.oldest = s.recent[:0], 0
	s.rng.seed(s.p.Seed)
	s.xtcRNG.seed(s.p.Seed)
	s.choice.reset()
}

// Accept records a token that became part of the text, of the prompt or generated. [Sampler.Sample] does not.
func (s *Sampler) Accept(id int32) {
	switch {
	case !s.p.penalised():
	case len(s.recent) < s.p.PenaltyLastN:
		s.recent = append(s.recent, id)
	default:
		s.recent[s.oldest] = id
		s.oldest = (s.oldest + 1) % len(s.recent)
	}
}

// Sample returns the next token. logits has one entry per vocabulary id, is not changed, and may hold -Inf for ids that
// must not be picked. NaN and +Inf are a bug of the forward pass; a bias that bans every token is the user's mistake.
func (s *Sampler) Sample(logits []float32) (int32, error) {
	top, err := highest(logits)
	if err != nil {
		return 0, fault.Bugf("forward pass produced %w", err)
	}
	if len(s.bias) > 0 || len(s.recent) > 0 {
		logits = s.adjust(logits)
		if top, err = highest(logits); err != nil {
			return 0, fault.Userf("logit bias and penalties leave %w", err)
		}
	}
	if s.greedy {
		return top, nil
	}
	s.c.fill(logits, s.best)
	for _, stage := range s.stages {
		stage(s)
	}
	return s.choice.choose(&s.c, &s.rng), nil
}

// highest returns the id of the highest logit, the lowest id of several.
func highest(logits []float32) (int32, error) {
	best, at := float32(math.Inf(-1)), -1
	for id, l := range logits {
		if l > best {
			best, at = l, id
		} else if l != l {
			return 0, fmt.Errorf("NaN at id %d of %d", id, len(logits))
		}
	}
	switch {
	case at < 0:
		return 0, fmt.Errorf("no logit above -Inf, of %d", len(logits))
	case math.IsInf(float64(best), 1):
		return 0, fmt.Errorf("+Inf at id %d of %d", at, len(logits))
	}
	return int32(at), nil
}

// adjust returns a copy of logits with bias and penalties.
func (s *Sampler) adjust(logits []float32) []float32 {
	s.adjusted = append(s.adjusted[:0], logits...)
	for _, b := range s.bias {
		if int(b.id) < len(logits) {
			s.adjusted[b.id] += b.bias
		}
	}
	s.window = append(s.window[:0], s.recent...)
	slices.Sort(s.window)
	for i := 0; i < len(s.window); {
		id, first := s.window[i], i
		for i < len(s.window) && s.window[i] == id {
			i++
		}
		if id < 0 || int(id) >= len(logits) {
			continue
		}
		l := s.adjusted[id]
		if l <= 0 {
			l *= s.p.RepeatPenalty
		} else {
			l /= s.p.RepeatPenalty
		}
		s.adjusted[id] = l - float32(i-first)*s.p.FrequencyPenalty - s.p.PresencePenalty
	}
	return s.adjusted
}
