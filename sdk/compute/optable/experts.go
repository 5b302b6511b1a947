package optable

import (
	"math"

	"github.com/bigmoe/bigmoe/sdk/plan"
)

// moe is route and experts: x is logits (6) and the experts' input (32); y is the weights (3) and the sum (32).
type moe struct {
	gate      func(l []float64) []float64
	normalize bool // with a floor of 0.75
	scale     float64
	selected  bool
	hide      func(rank []float64) // what is not to be chosen
	glu       func(g, u float64) float64
}

func (c moe) want(x Matrix, w map[string]Matrix) (y Matrix) {
	add := func(y []float64, bias string, row int) []float64 {
		for i := range y {
			if b := w[bias]; b != nil {
				y[i] += b[row][i]
			}
		}
		return y
	}
	for _, row := range x {
		l, in := row[:6], row[6:]
		p := c.gate(l)
		rank := add(append([]float64(nil), p...), "bias", 0)
		if c.hide != nil {
			c.hide(rank)
		}
		var ids []int
		for range 3 {
			best := -1
			for e, v := range rank {
				if best < 0 || v > rank[best] {
					best = e
				}
			}
			ids = append(ids, best)
			rank[best] = math.Inf(-1)
		}
		weights := []float64{p[ids[0]], p[ids[1]], p[ids[2]]}
		if c.selected {
			weights = softmax64(weights)
		}
		sum := weights[0] + weights[1] + weights[2]
		out := make([]float64, 32)
		for k, id := range ids {
			if c.normalize {
				weights[k] /= max(sum, 0.75)
			}
			weights[k] *= c.scale
			g := add(times64(w["gate"][24*id:][:24], in), "gate_bias", id)
			u := add(times64(w["up"][24*id:][:24], in), "up_bias", id)
			for j := range g {
				g[j] = c.glu(g[j], u[j])
			}
			factor := weights[k]
			if s := w["scale"]; s != nil {
				factor *= s[0][id]
			}
			for o, v := range add(times64(w["down"][32*id:][:32], g), "down_bias", id) {
				out[o] += factor * v
			}
		}
		y = append(y, append(weights, out...))
	}
	return y
}

func swiglu64(g, u float64) float64 { return silu64(g) * u }

func moeOps(a Attrs, bias string, experts Attrs, weights string) []*plan.Op {
	a["top_k"] = 3
	e := Op("experts", "e ids w", weights, "m", experts)
	e.Bank = "bank"
	return []*plan.Op{
		Op("slice", "x", "", "l", Attrs{"width": 6}), Op("slice", "x", "", "e", Attrs{"start": 6, "width": 32}),
		Op("route", "l", bias, "ids w", a), e, Op("concat", "w m", "", "y", nil),
	}
}

// expertWeights are the experts of the banks below, and more.
func expertWeights(more ...Tensor) []Tensor {
	return append([]Tensor{f32("gate", 32, 24, 6), f32("up", 32, 24, 6), f32("down", 24, 32, 6)}, more...)
}

var smallBank = &plan.Bank{Name: "bank", Experts: 6, Parts: []*plan.Part{
	{Role: plan.Role_GATE, Tensors: []string{"gate"}, In: 32, Out: 24},
	{Role: plan.Role_UP, Tensors: []string{"up"}, In: 32, Out: 24},
	{Role: plan.Role_DOWN, Tensors: []string{"down"}, In: 24, Out: 32},
}}

var fusedBank = &plan.Bank{Name: "bank", Experts: 6, Parts: []*plan.Part{
	{Role: plan.Role_GATE_UP, Tensors: []string{"gate+up"}, In: 32, Out: 48},
	{Role: plan.Role_DOWN, Tensors: []string{"down"}, In: 24, Out: 32},
}}
