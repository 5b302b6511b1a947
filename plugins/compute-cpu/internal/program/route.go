package program

import (
	"math"

	"github.com/bigmoe/bigmoe/sdk/fault"
)

// route picks experts (specs/qwen3moe.md R2 to R5, specs/gpt-oss.md R2, R3). With g the gating function:
//
//	softmax, sigmoid, sqrt_softplus: p = g(l); choose the k largest p + bias; w = p of the chosen
//	softmax_selected:                choose the k largest l + bias; w = softmax of the chosen l
//	normalize: w /= max(sum of w, norm_floor)
//	w *= scale
//
// Experts that are given are not chosen, only weighed (specs/deepseek4.md 40, 41).
// Equal values go to the smaller expert first.
type route struct {
	rowwise
	*gating
	layer uint32
	guess bool // of another layer's picks: see predict
}

type gating struct {
	logits, ids, weights ref
	picks                *ref // nil: choose
	k                    int
	fn                   string
	bias                 *weight
	normalize            bool
	floor                float32
	scale                float32
	groups, groupsUsed   int // see limits
}

func (s *route) run(m *Machine) error {
	m.failed.Store(false)
	if err := s.rowwise.run(m); err != nil {
		return err
	}
	if m.scorer != nil && !s.guess {
		for i := range m.rows(s.head) {
			m.scorer.Scores(int(s.layer), m.floats(s.logits, i))
		}
	}
	if m.failed.Load() {
		if s.picks != nil {
			for i := range m.rows(s.head) {
				for _, id := range m.ints(*s.picks, i) {
					if id < 0 || int(id) >= s.logits.width() {
						return fault.Corruptf("layer %d: expert %d of %d is given", s.layer, id, s.logits.width())
					}
				}
			}
		}
		return fault.Corruptf("layer %d: router logits are not finite", s.layer)
	}
	return nil
}

func (g *gating) pick(m *Machine, worker, i int) {
	w := &m.workers[worker]
	logits, ids, weights := m.floats(g.logits, i), m.ints(g.ids, i), m.floats(g.weights, i)
	for _, l := range logits {
		if l-l != 0 { // Inf or NaN
			m.failed.Store(true)
			return
		}
	}
	p := w.row[:len(logits)]
	copy(p, logits)
	switch g.fn {
	case "softmax":
		m.set.Softmax(p)
	case "sigmoid":
		for j, l := range logits {
			p[j] = float32(sigmoid(float64(l)))
		}
	case "sqrt_softplus":
		for j, l := range logits {
			p[j] = float32(math.Sqrt(softplus(float64(l))))
		}
	}
	rank := p
	if g.bias != nil {
		rank = w.rank[:len(p)]
		m.set.Add(rank, p, g.bias.vec)
	}
	if g.limits() {
		rank = w.rank[:len(p)]
		if g.bias == nil {
			copy(rank, p)
		}
		g.hide(rank, w.rank[len(p):][:g.groups])
	}
	if g.picks != nil {
		copy(ids, m.ints(*g.picks, i))
	} else {
		choose(ids, rank)
	}
	for k, id := range ids {
		if id < 0 || int(id) >= len(p) {
			m.failed.Store(true)
			return
		}
		weights[k] = p[id]
	}
	if g.fn == "softmax_selected" {
		m.set.Softmax(weights)
	}
	if g.normalize {
		var sum float32
		for _, v := range weights {
			sum += v
		}
		for k := range weights {
			weights[k] /= max(sum, g.floor)
		}
	}
	if g.scale != 1 {
		for k := range weights {
			weights[k] *= g.scale
		}
	}
}

// choose fills ids with the places of the largest values, the best first.
func choose(ids []int32, rank []float32) {
	for k := range ids {
		best := -1
		for j, v := range rank {
			if (best < 0 || v > rank[best]) && !taken(ids[:k], j) {
				best = j
			}
		}
		ids[k] = int32(best)
	}
}

func taken(ids []int32, j int) bool {
	for _, id := range ids {
		if int(id) == j {
			return true
		}
	}
	return false
}

func sigmoid(x float64) float64 { return 1 / (1 + math.Exp(-x)) }

// softplus is log(1+exp(x)) without overflow.
func softplus(x float64) float64 { return max(x, 0) + math.Log1p(math.Exp(-math.Abs(x))) }
