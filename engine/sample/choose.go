package sample

import "math"

// A choice picks one of the candidates that the stages left and learns from it (specs/sampling.md section 4).
type choice interface {
	choose(c *candidates, rng *twister) int32
	reset()
}

func (p *Params) choice() choice {
	n := len(p.Samplers)
	switch {
	case p.Mirostat > 0:
		return &mirostat{version: p.Mirostat, tau: p.MirostatTau, eta: p.MirostatEta}
	case n > 0 && p.Samplers[n-1] == "adaptive_p" && p.AdaptiveTarget >= 0:
		return &adaptive{target: p.AdaptiveTarget, decay: min(p.AdaptiveDecay, 0.99)}
	}
	return dist{}
}

// draw picks one in proportion to exp(logit) and returns its position. A single candidate needs no random number.
func (c *candidates) draw(rng *twister) int {
	if len(c.list) == 1 {
		c.list[0].p = 1
		return 0
	}
	sum := c.weigh()
	target := rng.float64() * sum
	at, running := 0, 0.0
	for i := range c.list {
		w := float64(c.list[i].p)
		if w > 0 && (running == 0 || running < target) {
			at = i // the first at which the running sum reaches the target
			running += w
		}
		c.list[i].p = float32(w / sum)
	}
	return at
}

// dist is the plain random choice.
type dist struct{}

func (dist) choose(c *candidates, rng *twister) int32 { return c.list[c.draw(rng)].id }
func (dist) reset()                                   {}

// mirostat keeps the surprise of the text near tau bits.
type mirostat struct {
	version  int
	tau, eta float32
	mu       float32 // the most surprise to allow next, in bits
}

func (m *mirostat) reset() { m.mu = 2 * m.tau }

func (m *mirostat) choose(c *candidates, rng *twister) int32 {
	c.softmax()
	var n int
	if m.version == 1 {
		n = m.zipf(c)
		c.sort(n)
	} else {
		n = c.seek(func(i int) bool { return i > 0 && -math.Log2(float64(c.list[i].p)) > float64(m.mu) })
	}
	c.keep(n)
	at := c.draw(rng)
	surprise := -float32(math.Log2(float64(c.list[at].p)))
	m.mu -= m.eta * (surprise - m.tau)
	return c.list[at].id
}

// zipf estimates how many candidates have at most mu bits of surprise if probabilities follow Zipf's law, whose
// exponent it fits to the 100 best.
func (m *mirostat) zipf(c *candidates) int {
	const fitted = 100
	c.sort(fitted)
	var tb, tt float64
	for i := 0; i < min(fitted, len(c.list))-1 && c.list[i+1].p > 0; i++ {
		t := math.Log(float64(i+2) / float64(i+1))
		tb += t * math.Log(float64(c.list[i].p)/float64(c.list[i+1].p))
		tt += t * t
	}
	s := tb / tt
	eps := s - 1
	k := math.Pow(eps*math.Exp2(float64(m.mu))/(1-math.Pow(float64(c.vocab), -eps)), 1/s)
	if math.IsNaN(k) || k >= float64(len(c.list)) {
		return len(c.list)
	}
	return max(int(k), 1)
}

// adaptive prefers tokens near a target probability and aims higher after it had to pick low ones.
type adaptive struct {
	target, decay   float32
	weighted, total float32   // decaying sums of the probabilities picked and of their weights
	p               []float32 // the candidates' probabilities before they are bent
}

func (a *adaptive) reset() {
	a.weighted = a.target / (1 - a.decay)
	a.total = 1 / (1 - a.decay)
}

func (a *adaptive) choose(c *candidates, rng *twister) int32 {
	const width, peak, slope = 0.3, 5, 10
	aim := min(max(2*a.target-a.weighted/a.total, 0), 1)
	c.softmax()
	a.p = a.p[:0]
	for i := range c.list {
		x := &c.list[i]
		a.p = append(a.p, x.p)
		if !math.IsInf(float64(x.logit), -1) { // what is banned stays banned
			d := float32(math.Abs(float64(x.p-aim))) / width
			x.logit = peak - slope*d*d/(1+d)
		}
	}
	c.sorted = 0
	at := c.draw(rng)
	a.weighted = a.p[at] + a.decay*a.weighted
	a.total = 1 + a.decay*a.total
	return c.list[at].id
}
