package engine_test

import (
	"slices"
	"testing"
)

// typeGoldens cover the element types that the files of TestGoldens leave out: the legacy ones together, small K-quants,
// IQ4_XS, and one codebook type for each of a file's matrices.
var typeGoldens = []string{
	"qwen3moe/qwen3moe-mix32", "qwen3moe/qwen3moe-k-iq4_xs", "qwen3moe/qwen3moe-k-q3_k_m", "qwen3moe/qwen3moe-k-q2_k",
	"qwen3moe/qwen3moe-k-mixiq",
}

func TestTypeGoldens(t *testing.T) {
	arithmetic(t)
	for _, name := range typeGoldens {
		t.Run(name, func(t *testing.T) {
			g, model := loadGolden(t, name)
			for backend, b := range backends() {
				t.Run(backend, func(t *testing.T) {
					if raceEnabled && backend == "reference" {
						t.Skip("plain Go arithmetic is too slow under the race detector")
					}
					g.compare(t, observe(t, config(model, b), g.Prompt.IDs, 0, g.certain()))
					if backend == "reference" {
						return // chunks are a matter of ops, not of types
					}
					for _, chunk := range []int{7, 1} {
						g.compare(t, observe(t, config(model, b), g.Prompt.IDs, chunk, 2))
					}
				})
			}
		})
	}
}

// certain is how many greedy ids rounded activations cannot change: those before the first that leads by less than the
// error allowed of a logit.
func (g *golden) certain() int {
	greedy := g.Runs["f32"].Greedy
	n := slices.IndexFunc(greedy.Margin, func(m float64) bool { return m < g.Tolerance.Quantised.LogitRMS })
	if n < 0 {
		return len(greedy.IDs)
	}
	return n
}
