package policy

import (
	"math"
	"math/bits"
)

// recall remembers which experts the last tokens used. It weighs each of those tokens by how much its routing looked like
// that of the token evaluated now, and so knows what to expect of the layers that this token has still to pass and of the
// next token: what those tokens used there, and what their successors did. Tokens have places in a ring.
type recall struct {
	used  []places          // by key: where the tokens are that used it
	last  int               // place of the last token
	alike [recalled]float32 // by place: picks in common with the last token, which has all

	// For keys of layers that the last token has still to pass, and of those that it has passed.
	ahead, behind prediction
	stale         bool // neither is what alike makes of it
}

// prediction is what it says for a key that the tokens at some places used it: the sum of their weights, looked up for eight
// places at a time.
type prediction [recalled / 8][256]float32

const (
	recalled  = 128  // tokens that are remembered: as many as there are places
	alikeLife = 12   // layers after which a pick in common counts half
	handover  = 0.5  // of a token's likeness goes to its successor when the next token begins
	later     = 0.15 // of what is expected is expected one token later than it could be
	doubt     = 0.1  // weight of a token that was routed exactly like the last one, but says nothing
)

// places is a set of places.
type places [2]uint64

func (s *places) add(i int) { s[i/64] |= 1 << (i % 64) }

func (s *places) remove(other *places) {
	for i := range s {
		s[i] &^= other[i]
	}
}

func (r *recall) reset(keys int) { *r = recall{used: make([]places, keys)} }

// before returns the place of the token n before the one at place i.
func before(i, n int) int { return (i - n + recalled) % recalled }

// step makes room for the tokens of a step, which become the last ones.
func (r *recall) step(tokens int) {
	tokens = min(tokens, recalled)
	var gone places
	for i := range tokens {
		gone.add((r.last + 1 + i) % recalled)
	}
	for key := range r.used {
		r.used[key].remove(&gone)
	}
	r.last = (r.last + tokens) % recalled
	if tokens > 1 { // which token would be likened to which?
		r.alike = [recalled]float32{}
		return
	}
	// What looked like the token before this one is followed by what may look like this one.
	first := r.alike[recalled-1]
	copy(r.alike[1:], r.alike[:recalled-1])
	r.alike[0] = first
	for i := range r.alike {
		r.alike[i] *= handover
	}
}

// route takes what the tokens of the step picked in the layer that runs now, k each.
func (r *recall) route(k int, keys []int32) {
	r.stale = true
	tokens := len(keys) / k
	for i := max(0, tokens-recalled); i < tokens; i++ {
		for _, key := range keys[i*k : (i+1)*k] {
			r.used[key].add(before(r.last, tokens-1-i))
		}
	}
	if tokens == 1 {
		r.compare(keys)
	}
}

// compare counts the picks that each remembered token shares with the last one.
func (r *recall) compare(picks []int32) {
	for i := range r.alike {
		r.alike[i] = r.alike[i]*alikeFade + faint
	}
	for _, key := range picks {
		for i, word := range r.used[key] {
			for ; word != 0; word &= word - 1 {
				r.alike[i*64+bits.TrailingZeros64(word)]++
			}
		}
	}
}

var alikeFade = float32(math.Exp2(-1.0 / alikeLife))

// predict turns likeness into weights: its cube, so that a few tokens that are much alike outweigh the many that are a little. The
// likeness of the last token to itself is the measure of what could be.
func (r *recall) predict() {
	weight := r.alike
	var sum float32
	for i, a := range weight {
		weight[i] = a * a * a
		sum += weight[i]
	}
	sum -= (1 - doubt) * weight[r.last]
	weight[r.last] = 0 // says nothing of what it has not done yet
	if sum > 0 {
		for i := range weight {
			weight[i] /= sum
		}
	}
	for i := range weight {
		same, next, afterNext := weight[i], weight[before(i, 1)], weight[before(i, 2)]
		r.ahead.set(i, (1-later)*same+later*next)
		r.behind.set(i, (1-later)*next+later*afterNext)
	}
}

// set gives place i a weight. Places are set in ascending order.
func (p *prediction) set(i int, weight float32) {
	sums, bit := &p[i/8], 1<<(i%8)
	for set := range bit {
		sums[bit|set] = sums[set] + weight
	}
}

// chance returns how much speaks for a use of key at the next turn of its layer, and a little for the turn after it: 0 to 1. ahead
// says that the last token has still to pass the layer.
func (r *recall) chance(key int32, ahead bool) float32 {
	if r.stale { // and somebody wants to know
		r.predict()
		r.stale = false
	}
	p := &r.behind
	if ahead {
		p = &r.ahead
	}
	low, high := r.used[key][0], r.used[key][1]
	var a, b float32 // two sums at once
	for i := range 8 {
		a += p[i][uint8(low>>(8*i))]
		b += p[8+i][uint8(high>>(8*i))]
	}
	return a + b
}
