package program

import (
	"math"

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

// gluing combines gate and up rows.
type gluing func(m *Machine, dst, gate, up []float32)

// newGluing reads the attributes that ops with a gate share (specs/qwen3moe.md R6, specs/gpt-oss.md R5).
func newGluing(a plan.Attrs) gluing {
	limit, alpha := a.Float("limit"), a.Float("alpha")
	if limit == 0 {
		limit = math.Inf(1)
	}
	var act func(g float64) float64
	plus := 0.0
	switch a.Text("activation") {
	case "silu":
		if math.IsInf(limit, 1) {
			return func(m *Machine, dst, gate, up []float32) { m.set.SwiGLU(dst, gate, up) }
		}
		act = silu
	case "gelu_tanh":
		act = geluTanh
	case "swiglu_oai":
		act, plus = func(g float64) float64 { return g * sigmoid(alpha*g) }, 1
	}
	return func(_ *Machine, dst, gate, up []float32) {
		for j := range dst {
			g, u := min(float64(gate[j]), limit), min(max(float64(up[j]), -limit), limit)
			dst[j] = float32(act(g) * (u + plus))
		}
	}
}
