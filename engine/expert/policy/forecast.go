package policy

import "math"

// Forecast evicts the expert whose next use is farthest away, as far as its past tells.
//
// How often an expert is used per token is estimated by two exponential averages, one of half-life longLife that knows what
// the text is about and one of half-life shortLife that knows what it is saying now:
//
//	p = (1 - shortShare) * long + shortShare * short
//
// Layers take turns, so an expert of the layer that runs next may be wanted at once, one of the layer that has just run only
// a token later. With d the share of a token until the expert's layer runs again, the expected wait is d - 1 + 1/p tokens; the
// rank is its inverse. docs/experiments/two-clocks.md has the figures that chose the constants.
type Forecast struct {
	layers []int32 // by key
	count  float64 // of layers
	turn   float64 // the layer that runs now
	step   int32

	long, short []float64 // averages at step last, by key
	last        []int32

	longFade, shortFade []float64 // by age in steps
}

const (
	longLife   = 32.0 // token steps
	shortLife  = 2.0
	shortShare = 0.2
	fadeSteps  = 1024 // after so many steps without a use the past is forgotten: 2^-32 is left of it

	leastChance = 1e-9 // uses per token of an expert that was never used
)

var _ Timed = (*Forecast)(nil)

// NewForecast returns the forecast policy.
func NewForecast() *Forecast {
	fade := func(halfLife float64) []float64 {
		f := make([]float64, fadeSteps)
		for age := range f {
			f[age] = math.Exp2(-float64(age) / halfLife)
		}
		return f
	}
	return &Forecast{longFade: fade(longLife), shortFade: fade(shortLife)}
}

func (p *Forecast) Name() string { return "forecast" }
func (p *Forecast) Tick()        { p.step++ }

func (p *Forecast) Reset(keys int) {
	p.step, p.turn, p.count = 0, 0, 1
	p.layers = make([]int32, keys)
	p.long, p.short, p.last = make([]float64, keys), make([]float64, keys), make([]int32, keys)
}

func (p *Forecast) Layers(layers []int32) {
	copy(p.layers, layers)
	for _, l := range layers {
		p.count = max(p.count, float64(l)+1)
	}
}

func (p *Forecast) Turn(layer int32) { p.turn = float64(layer) }

// averages returns the two averages of key now.
func (p *Forecast) averages(key int32) (long, short float64) {
	age := p.step - p.last[key]
	if age >= fadeSteps {
		return 0, 0
	}
	return p.long[key] * p.longFade[age], p.short[key] * p.shortFade[age]
}

// What a use adds to an average, so that an expert used in every step averages to 1.
var (
	longUse  = 1 - math.Exp2(-1/longLife)
	shortUse = 1 - math.Exp2(-1/shortLife)
)

func used(long, short float64) (float64, float64) { return long + longUse, short + shortUse }

func (p *Forecast) rank(key int32, long, short float64) float64 {
	chance := max((1-shortShare)*long+shortShare*short, leastChance)
	d := float64(p.layers[key]) - p.turn
	if d <= 0 {
		d += p.count
	}
	return 1 / (d/p.count - 1 + 1/chance)
}

func (p *Forecast) Rank(key int32) float64 {
	long, short := p.averages(key)
	return p.rank(key, long, short)
}

func (p *Forecast) Peek(key int32) float64 {
	long, short := used(p.averages(key))
	return p.rank(key, long, short)
}

func (p *Forecast) Use(key int32) float64 {
	p.long[key], p.short[key] = used(p.averages(key))
	p.last[key] = p.step
	return p.rank(key, p.long[key], p.short[key])
}
