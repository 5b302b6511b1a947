package engine_test

import (
	"slices"
	"testing"
	"time"

	"github.com/bigmoe/bigmoe/engine"
)

// BenchmarkBoundary decodes with a small model in process and in a child process by turns: what the process boundary costs a
// token of four layers with real kernels. BenchmarkToken of engine/backend has 48 layers without any.
func BenchmarkBoundary(b *testing.B) {
	const tokens = 33
	g, model := loadGolden(b, "qwen3moe/qwen3moe-f32")
	sides := []string{"in process", "child process"}
	perToken := map[string][]float64{}
	sessions := map[string]*engine.Session{}
	for _, side := range sides {
		e, err := engine.Open(b.Context(), config(model, backends()[side]))
		if err != nil {
			b.Fatal(err)
		}
		defer e.Close()
		sessions[side] = e.NewSession()
	}
	for b.Loop() {
		for _, side := range sides {
			var first, last time.Time
			_, err := sessions[side].Generate(b.Context(), greedy(g.Prompt.IDs, tokens), func(engine.Token) error {
				if last = time.Now(); first.IsZero() {
					first = last
				}
				return nil
			})
			if err != nil {
				b.Fatal(err)
			}
			perToken[side] = append(perToken[side], float64(last.Sub(first).Microseconds())/(tokens-1))
		}
	}
	median := func(side string) float64 {
		slices.Sort(perToken[side])
		return perToken[side][len(perToken[side])/2]
	}
	b.ReportMetric(median(sides[0]), "µs/token-in-process")
	b.ReportMetric(median(sides[1]), "µs/token-child")
	b.ReportMetric(0, "ns/op")
}
