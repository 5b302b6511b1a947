package policy

import "math"

// Forecast evicts the expert that is least likely to be used soon, as far as the past tells. It asks two questions.
//
// How often is it used? Two averages of its use per token, of the last tokens and of many, added up. The expert that the router
// likes best counts most. The prompt counts as one token that used an expert as often as the share of its tokens did.
//
// What came next, when the routing looked like now? That is what recall knows, and it doubts itself where nothing looked like
// now. An expert is expected if either expects it.
//
// Layers take turns, so a chance is worth less the longer the expert's layer has to wait for its next turn.
// docs/experiments/forecast.md has the figures that chose the constants.
type Forecast struct {
	layers []int32   // by key
	spans  []span    // by layer
	delay  []float64 // by layers to wait: what is left of a use's worth
	turn   int32

	averages [len(clocks)][]float32 // by key
	value    []float32              // by key: the sum of its averages
	recall   recall
	ticked   bool // the step has begun, and its first layer has not
}

// span is the keys of a layer.
type span struct{ from, to int32 }

// clocks are the averages: what a token leaves of them, and what they are worth.
var clocks = [...]struct{ fade, worth float32 }{{halfLife(1), 0.3}, {halfLife(20), 0.7}}

func halfLife(tokens float64) float32 { return float32(math.Exp2(-1 / tokens)) }

// likings is what a use counts, by its place among the picks of its token.
var likings = func() (l [16]float32) {
	for i := range l {
		l[i] = float32(math.Pow(float64(1+i), -0.4))
	}
	return l
}()

const (
	tokenWorth = 0.5  // of a use is left when it is a token away
	faint      = 1e-9 // is added to what fades, lest it become a number so small that processors are slow with it
)

var _ Routed = (*Forecast)(nil)

// NewForecast returns the forecast policy.
func NewForecast() *Forecast { return &Forecast{} }

// Name implements [Policy].
func (p *Forecast) Name() string { return "forecast" }

// Tick implements [Policy].
func (p *Forecast) Tick() { p.ticked = true }

// Reset implements [Policy].
func (p *Forecast) Reset(keys int) {
	*p = Forecast{layers: make([]int32, keys), value: make([]float32, keys)}
	for i := range p.averages {
		p.averages[i] = make([]float32, keys)
	}
	p.recall.reset(keys)
}

// Layers implements [Routed].
func (p *Forecast) Layers(layers []int32) {
	copy(p.layers, layers)
	for key, l := range layers {
		for int(l) >= len(p.spans) {
			p.spans = append(p.spans, span{int32(key), int32(key)})
		}
		p.spans[l].to = int32(key) + 1
	}
	count := len(p.spans)
	for d := range count + 1 {
		p.delay = append(p.delay, math.Pow(tokenWorth, float64(d)/float64(count)))
	}
}

// Expect implements [Routed]: the past is what the slowest average knows.
func (p *Forecast) Expect(key int32, rate float32) {
	slowest := len(clocks) - 1
	p.averages[slowest][key] = rate
	p.value[key] = clocks[slowest].worth * rate
}

// Route implements [Routed].
func (p *Forecast) Route(layer int32, k int, keys []int32) {
	tokens := len(keys) / k
	if p.ticked {
		p.recall.step(tokens)
		p.ticked = false
	}
	p.turn = layer
	p.recall.route(k, keys)

	s := p.spans[layer]
	value := p.value[s.from:s.to]
	clear(value)
	for i, c := range clocks {
		average := p.averages[i][s.from:s.to]
		for e := range average {
			average[e] = average[e]*c.fade + faint
		}
		use := (1 - c.fade) / float32(tokens)
		for j, key := range keys {
			average[key-s.from] += use * likings[min(j%k, len(likings)-1)]
		}
		for e, a := range average {
			value[e] += c.worth * a
		}
	}
}

// Rank implements [Routed].
func (p *Forecast) Rank(key int32) float64 { return p.rank(key, float64(p.value[key])) }

func (p *Forecast) rank(key int32, value float64) float64 {
	layer := p.layers[key]
	d := layer - p.turn
	if d <= 0 {
		d += int32(len(p.spans))
	}
	recalled := float64(p.recall.chance(key, layer > p.turn))
	return (value + recalled - value*recalled) * p.delay[d]
}

// Peek implements [Policy].
func (p *Forecast) Peek(key int32) float64 { return p.rank(key, float64(p.value[key]+firstUse)) }

// firstUse is what one use adds to a value.
var firstUse = func() (sum float32) {
	for _, c := range clocks {
		sum += c.worth * (1 - c.fade)
	}
	return sum
}()

// Use implements [Policy]. What it could learn from a use, Route has told already.
func (p *Forecast) Use(key int32) float64 { return p.Rank(key) }
