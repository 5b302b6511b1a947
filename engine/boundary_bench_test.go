package engine_test

import (
	"flag"
	"os"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/bigmoe/bigmoe/engine"
	"github.com/bigmoe/bigmoe/sdk/compute"
)

// What BenchmarkBoundary runs instead of a golden model: one that takes as long as a real one.
var (
	boundaryModel  = flag.String("boundary-model", "", "model of BenchmarkBoundary, with all of its experts in memory (default: a golden model)")
	boundaryPrompt = flag.String("boundary-prompt", "", "file with its prompt")
)

// BenchmarkBoundary compares a token of the backend in a child process with one of the same backend in this process, by turns on the same
// memory: the backends change places before every text. The texts before the first pair fill the cache.
func BenchmarkBoundary(b *testing.B) {
	const tokens = 33
	// As compute.Serve does in the child (docs/experiments/idle-processors.md).
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(runtime.NumCPU() + 4))
	g, model := loadGolden(b, "qwen3moe/qwen3moe-f32")
	req, cfg := greedy(g.Prompt.IDs, tokens), config(model, backends()["in process"])
	if *boundaryModel != "" {
		text, err := os.ReadFile(*boundaryPrompt)
		if err != nil {
			b.Fatal(err)
		}
		req.Tokens, req.Prompt = nil, string(text)
		cfg.Model, cfg.MemoryBytes, cfg.KV = *boundaryModel, 0, compute.KVType_F16
	}
	e, err := engine.Open(b.Context(), cfg)
	if err != nil {
		b.Fatal(err)
	}
	defer e.Close()
	perToken := func(side string) float64 {
		if err := e.SwapBackend(b.Context(), backends()[side]); err != nil {
			b.Fatal(err)
		}
		var times []time.Time
		_, err := e.NewSession().Generate(b.Context(), req, func(engine.Token) error {
			times = append(times, time.Now())
			return nil
		})
		if err != nil {
			b.Fatal(err)
		}
		var each []float64
		for i := range times[1:] {
			each = append(each, float64(times[i+1].Sub(times[i]).Nanoseconds())/1000)
		}
		return median(each)
	}
	perToken("child process")
	var in, out, ratio []float64
	for b.Loop() {
		i, o := perToken("in process"), perToken("child process")
		b.Logf("%.0f µs in process, %.0f in a child: %.3f", i, o, o/i)
		in, out, ratio = append(in, i), append(out, o), append(ratio, o/i)
	}
	b.ReportMetric(median(in), "µs/token-in-process")
	b.ReportMetric(median(out), "µs/token-child")
	b.ReportMetric(median(ratio), "child÷in-process")
	b.ReportMetric(0, "ns/op")
}

func median(x []float64) float64 {
	slices.Sort(x)
	return x[len(x)/2]
}
