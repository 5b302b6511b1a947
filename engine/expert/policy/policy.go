// Package policy decides which experts stay in memory: a [Policy] ranks them by their past, a [Ledger] keeps the
// resident ones within a byte budget and evicts the lowest rank.
//
//	l := policy.NewLedger(bytesOfKey, layerOfKey, 4000<<20, policy.NewForecast())
//	l.Route(layer, k, keys) // what each token picked, for policies that care
//	l.Admit(keys, &wave)    // what is resident, what must be read, what was evicted, what has to wait
//	...
//	l.Release(key)          // for each key of the wave, when the batch has been computed
//
// The expert store and the trace replay (package replay) drive the same ledger, so a policy's replayed hit count is
// the store's hit count.
//
// An expert is a key: the store numbers them densely, layer after layer.
//
// # Concurrency
//
// Nothing here locks. The store calls it under its own mutex.
package policy

import (
	"math"

	"github.com/bigmoe/bigmoe/sdk/fault"
)

// Policy ranks experts: of those nobody holds, the one with the lowest rank leaves first, and of equals the one used
// least recently.
//
// A rank must not change until the key's next Use, which is what lets the ledger keep one heap for all of them, unless the
// policy is [Routed]. Decay is no obstacle: if all scores shrink by the same factor, their order stays.
type Policy interface {
	// Name is the word used in flags and reports.
	Name() string
	// Reset forgets the past and prepares for keys 0..keys-1. It is the only call that allocates.
	Reset(keys int)
	// Tick says that a new token step begins: a decode step, or a prefill batch.
	Tick()
	// Use records one use of key, a hit or a miss, and returns the key's new rank.
	Use(key int32) float64
	// Peek returns the rank Use would return, and records nothing.
	Peek(key int32) float64
}

// Routed is a policy that wants to know more than uses: which layer runs and what each of its tokens picked. Its ranks
// change with every Route; the ledger asks for them anew before it evicts in a batch.
type Routed interface {
	Policy
	// Layers tells, after Reset, which layer each key belongs to, in ascending order. Layers take turns in the order of their
	// numbers. Like Reset, it may allocate.
	Layers(layerOfKey []int32)
	// Expect says, before the first Route, how often key was used per token in a past that the policy has not seen.
	Expect(key int32, rate float32)
	// Route says, ahead of the uses of a batch, that layer runs, and what each of its tokens picked: k keys per token,
	// token by token.
	Route(layer int32, k int, keys []int32)
	// Rank returns the rank of key now.
	Rank(key int32) float64
}

var (
	_ Policy = (*LRU)(nil)
	_ Policy = (*DecayedFrequency)(nil)
)

// DefaultHalfLife is the half-life in token steps at which decayed frequency read the fewest bytes on the recorded
// traces; between 8 and 32 it hardly matters.
const DefaultHalfLife = 16

// New returns the policy called name: "forecast", "decayed" with the default half-life, or "lru".
func New(name string) (Policy, error) {
	switch name {
	case "forecast":
		return NewForecast(), nil
	case "lru":
		return NewLRU(), nil
	case "decayed":
		return NewDecayedFrequency(DefaultHalfLife), nil
	}
	return nil, fault.Userf("no cache policy is called %q: choose forecast, decayed or lru", name)
}

// LRU evicts what was used least recently. Below one token's working set it never hits: each layer evicts what the next
// token would have used.
type LRU struct{ uses float64 }

// NewLRU returns the least-recently-used policy.
func NewLRU() *LRU { return &LRU{} }

func (p *LRU) Name() string       { return "lru" }
func (p *LRU) Reset(int)          { p.uses = 0 }
func (p *LRU) Tick()              {}
func (p *LRU) Peek(int32) float64 { return p.uses + 1 }
func (p *LRU) Use(int32) float64 {
	p.uses++
	return p.uses
}

// DecayedFrequency evicts the lowest score, where a use adds 1 and every score halves in halfLife token steps. Scores
// outlive eviction, so an expert that comes back is not a stranger.
//
// The rank of a key with score s at step t is log2(s) + t/halfLife, which no Tick changes.
type DecayedFrequency struct {
	halfLife float64
	step     float64
	ranks    []float64
}

// NewDecayedFrequency returns a decayed-frequency policy; halfLife is in token steps and must be positive.
func NewDecayedFrequency(halfLife float64) *DecayedFrequency {
	return &DecayedFrequency{halfLife: halfLife}
}

func (p *DecayedFrequency) Name() string { return "decayed" }
func (p *DecayedFrequency) Tick()        { p.step++ }

func (p *DecayedFrequency) Reset(keys int) {
	p.step = 0
	p.ranks = make([]float64, keys)
	for i := range p.ranks {
		p.ranks[i] = math.Inf(-1)
	}
}

func (p *DecayedFrequency) Peek(key int32) float64 {
	now := p.step / p.halfLife
	return now + math.Log2(1+math.Exp2(p.ranks[key]-now))
}

func (p *DecayedFrequency) Use(key int32) float64 {
	p.ranks[key] = p.Peek(key)
	return p.ranks[key]
}
