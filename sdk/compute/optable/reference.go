package optable

import (
	"math"

	"github.com/bigmoe/bigmoe/sdk/plan"
)

// each makes a want of a function of one row.
func each(f func(x []float64) []float64) func(Matrix, map[string]Matrix) Matrix {
	return func(x Matrix, _ map[string]Matrix) (y Matrix) {
		for _, row := range x {
			y = append(y, f(row))
		}
		return y
	}
}

func dot64(a, b []float64) (sum float64) {
	for i := range a {
		sum += a[i] * b[i]
	}
	return sum
}

func times64(w Matrix, x []float64) (y []float64) {
	for _, row := range w {
		y = append(y, dot64(row, x))
	}
	return y
}

func rms64(x, w []float64, eps float64) (y []float64) {
	norm := math.Sqrt(dot64(x, x)/float64(len(x)) + eps)
	for i, v := range x {
		if v /= norm; w != nil {
			v *= w[i]
		}
		y = append(y, v)
	}
	return y
}

func softmax64(x []float64) (y []float64) {
	var sum float64
	for _, v := range x {
		sum += math.Exp(v)
	}
	for _, v := range x {
		y = append(y, math.Exp(v)/sum)
	}
	return y
}

func silu64(x float64) float64 { return x / (1 + math.Exp(-x)) }

func gelu64(x float64) float64 {
	return x / 2 * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(x+0.044715*x*x*x)))
}

// turn rotates the pair (a, b) of x by an angle.
func turn(x []float64, a, b int, angle, magnitude float64) {
	s, c := math.Sincos(angle)
	x[a], x[b] = magnitude*(x[a]*c-x[b]*s), magnitude*(x[a]*s+x[b]*c)
}

// rope64 rotates 2 heads of 8 by freq(j) radians per position, j < half, from element offset on.
func rope64(half, offset int, interleaved bool, magnitude float64, freq func(j int, w map[string]Matrix) float64) func(Matrix, map[string]Matrix) Matrix {
	return func(x Matrix, w map[string]Matrix) (y Matrix) {
		for pos, row := range x {
			row = append([]float64(nil), row...)
			for head := range 2 {
				for j := range half {
					a, b := j, j+half
					if interleaved {
						a, b = 2*j, 2*j+1
					}
					turn(row[8*head+offset:], a, b, float64(pos)*freq(j, w), magnitude)
				}
			}
			y = append(y, row)
		}
		return y
	}
}

func power(base float64, n int) func(int, map[string]Matrix) float64 {
	return func(j int, _ map[string]Matrix) float64 { return math.Pow(base, -2*float64(j)/float64(n)) }
}

func withState(name string, o *plan.Op) *plan.Op {
	o.States = []string{name}
	return o
}

func map64(x []float64, f func(float64) float64) (y []float64) {
	for _, v := range x {
		y = append(y, f(v))
	}
	return y
}

func glu64(x []float64) (y []float64) {
	for i := range 5 {
		y = append(y, silu64(x[i])*x[5+i])
	}
	return y
}
