package program

import "math"

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
