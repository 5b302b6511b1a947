package program

import (
	"math"

	"github.com/bigmoe/bigmoe/sdk/fault"
	"github.com/bigmoe/bigmoe/sdk/plan"
)

// The functions of unary and glu.

func silu(x float64) float64 { return x / (1 + math.Exp(-x)) }

func geluTanh(x float64) float64 {
	return 0.5 * x * (1 + math.Tanh(math.Sqrt(2/math.Pi)*x*(1+0.044715*x*x)))
}

var unaries = map[string]func(float64) float64{
	"sigmoid":   sigmoid,
	"silu":      silu,
	"gelu_tanh": geluTanh,
	"softplus":  softplus,
	"tanh":      math.Tanh,
	"exp":       math.Exp,
	"relu":      func(x float64) float64 { return max(x, 0) },
}

// gluing prepares gate and up so that the kernel silu(t)*s gives their combination (specs/qwen3moe.md R6, specs/gpt-oss.md
// R5, specs/gemma4.md 12). Every gating can be written so:
//
//	silu, limited:  t = min(g, L)                          s = clamp(u, -L, L)
//	swiglu_oai:     t = alpha*g                            s = (u + 1) / alpha
//	silu_clamped:   t = g                                  s = clamp(u, -L, L)          as far as silu(g) <= L, then t = 100, s *= L/t
//	gelu_tanh:      t = 2*sqrt(2/pi) * g*(1 + 0.044715g²)  s = u*g/t, since (1 + tanh(z))/2 = sigmoid(2z)
//
// t may be gate, s may be up. A nil gluing is silu without limit: nothing is to be prepared.
type gluing func(t, s, gate, up []float32)

// newGluing reads the attributes that ops with a gate share.
func newGluing(a plan.Attrs) (gluing, error) {
	limit, alpha := float32(a.Float("limit")), float32(a.Float("alpha"))
	unlimited := limit == 0
	if unlimited {
		limit = float32(math.Inf(1))
	}
	clamped := func(gate, up float32) (g, u float32) { return min(gate, limit), min(max(up, -limit), limit) }
	switch a.Text("activation") {
	case "gelu_tanh":
		return func(t, s, gate, up []float32) {
			for j := range t {
				g, u := clamped(gate[j], up[j])
				const c = 2 * 0.7978845608028654     // 2*sqrt(2/pi)
				steep := c * min(1+0.044715*g*g, 20) // beyond |g| = 20 the sigmoid is 0 or 1 whatever it is
				t[j], s[j] = g*steep, u/steep
			}
		}, nil
	case "silu_clamped":
		const far = 100 // silu is the identity there
		return func(t, s, gate, up []float32) {
			for j := range t {
				g, u := gate[j], min(max(up[j], -limit), limit)
				if g > limit && silu(float64(g)) > float64(limit) { // silu is never above its argument
					g, u = far, u*(limit/far)
				}
				t[j], s[j] = g, u
			}
		}, nil
	case "swiglu_oai":
		if alpha == 0 {
			return nil, fault.Unsupportedf("the cpu backend has no swiglu_oai with alpha 0")
		}
		return func(t, s, gate, up []float32) {
			for j := range t {
				g, u := clamped(gate[j], up[j])
				t[j], s[j] = alpha*g, (u+1)/alpha
			}
		}, nil
	}
	if unlimited {
		return nil, nil
	}
	return func(t, s, gate, up []float32) {
		for j := range t {
			t[j], s[j] = clamped(gate[j], up[j])
		}
	}, nil
}
