// Package replay records which experts a model uses and judges cache policies by it: it runs a route trace through the
// ledger of the expert store and counts hits and bytes, without reading any expert.
//
//	t, err := replay.Open("qwen3-30b-a3b-k6.csv.gz")
//	r := replay.Run(t, policy.NewLRU(), 4000<<20)
//	fmt.Println(r.Decode.HitRate(), r.Decode.MissBytes/int64(r.Tokens))
//
// A prefill is one batch per layer, decode one batch per step and layer; there is one lookup per distinct expert of a
// batch. A batch that exceeds the budget by itself runs in waves, as in the store.
//
// A [Writer] makes traces. What it writes for a run replays to the hits that the run had, if both had the same policy and
// budget and the run read nothing ahead.
//
// The package has no state.
package replay

import (
	"math"

	"github.com/bigmoe/bigmoe/engine/expert/policy"
)

// Totals are the lookups of a phase.
type Totals struct {
	Hits, Misses        int64
	HitBytes, MissBytes int64
}

// Lookups is hits plus misses.
func (t Totals) Lookups() int64 { return t.Hits + t.Misses }

// HitRate is hits per lookup, 0 to 1.
func (t Totals) HitRate() float64 {
	if t.Lookups() == 0 {
		return 0
	}
	return float64(t.Hits) / float64(t.Lookups())
}

func (t Totals) plus(u Totals) Totals {
	return Totals{t.Hits + u.Hits, t.Misses + u.Misses, t.HitBytes + u.HitBytes, t.MissBytes + u.MissBytes}
}

// Result is what a policy would have done.
type Result struct {
	Prefill, Decode Totals
	PromptTokens    int // evaluated in prefill
	Tokens          int // decode steps
	Waves           int // batches or parts of batches; more than the trace has batches if some did not fit
}

// Total is both phases together.
func (r Result) Total() Totals { return r.Prefill.plus(r.Decode) }

// Run replays t with policy p, which it resets, and a budget in bytes that holds at least the largest expert.
func Run(t *Trace, p policy.Policy, budgetBytes int64) Result {
	var (
		res    Result
		wave   policy.Wave
		keys   []int32
		bytes  = t.keyBytes()
		ledger = policy.NewLedger(bytes, t.keyLayers(), budgetBytes, p)
	)
	for i := range t.Batches {
		b := &t.Batches[i]
		if t.StartsStep(i) {
			ledger.Tick()
			if b.Prefill { // the first layer routes every token
				res.PromptTokens += len(b.Experts) / b.K
			} else {
				res.Tokens++
			}
		}
		phase := &res.Decode
		if b.Prefill {
			phase = &res.Prefill
		}
		keys = keys[:0]
		for _, e := range b.Experts {
			keys = append(keys, t.Key(b.Layer, e))
		}
		ledger.Route(int32(b.Layer), b.K, keys)
		for rest := keys; len(rest) > 0; rest = wave.Rest {
			ledger.Admit(rest, &wave)
			if len(wave.Keys) == 0 {
				return Result{} // an expert larger than the budget: nothing can run
			}
			res.Waves++
			for j, k := range wave.Keys {
				if wave.Hit[j] {
					phase.Hits++
					phase.HitBytes += bytes[k]
				} else {
					phase.Misses++
					phase.MissBytes += bytes[k]
				}
				ledger.Release(k)
			}
		}
	}
	return res
}

// Belady returns the policy that knows the future of t: it evicts the expert whose next use is farthest away. That is
// the optimum if all experts weigh the same; where layers differ it ignores the weight, and is within a point of it.
// It works only for a replay of t.
func Belady(t *Trace) policy.Policy {
	p := &belady{uses: make([][]float64, t.Keys())}
	for i := range t.Batches {
		b := &t.Batches[i]
		for _, e := range b.Experts {
			u := &p.uses[t.Key(b.Layer, e)]
			if n := len(*u); n == 0 || (*u)[n-1] != float64(i) {
				*u = append(*u, float64(i))
			}
		}
	}
	return p
}

// belady ranks a key by minus the number of the batch that uses it next.
type belady struct {
	uses [][]float64 // by key: the batches that use it, ascending
	next []int       // by key: index into uses of the next use
}

func (p *belady) Name() string   { return "belady" }
func (p *belady) Reset(keys int) { p.next = make([]int, keys) }
func (p *belady) Tick()          {}
func (p *belady) Use(k int32) float64 {
	r := p.Peek(k)
	p.next[k]++
	return r
}

func (p *belady) Peek(k int32) float64 {
	if u := p.uses[k]; p.next[k]+1 < len(u) {
		return -u[p.next[k]+1]
	}
	return math.Inf(-1)
}
