package replay

import (
	"testing"

	"github.com/bigmoe/bigmoe/engine/expert/policy"
)

// BenchmarkRun is what a policy costs in a whole run, per token of the text.
func BenchmarkRun(b *testing.B) {
	tr := open(b, "qwen3-30b-a3b-k6")
	for _, name := range []string{"lru", "decayed", "forecast"} {
		b.Run(name, func(b *testing.B) {
			var r Result
			for b.Loop() {
				p, err := policy.New(name)
				if err != nil {
					b.Fatal(err)
				}
				r = Run(tr, p, 4000<<20)
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N*r.Tokens), "µs/token")
		})
	}
}
