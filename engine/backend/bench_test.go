package backend

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/sdk/compute"
)

// idleHost answers without doing anything, so that only the boundary is measured.
type idleHost struct {
	slots []compute.Slot
	stop  int
	n     int
}

type stopped struct{}

func (stopped) Error() string { return "enough" }

func (h *idleHost) Route(int, int, []int32, []float32) (compute.Wave, error) {
	if h.n++; h.n > h.stop {
		return compute.Wave{}, stopped{}
	}
	return compute.Wave{Slots: h.slots}, nil
}

func (h *idleHost) Next() (compute.Wave, error) { return compute.Wave{}, stopped{} }

// BenchmarkRoute measures one route and its answer.
func BenchmarkRoute(b *testing.B) {
	h := newBench(b)
	for name, d := range map[string]Device{"in-process": InProcess(fake{}, h.memory), "out-of-process": h.start(b)} {
		b.Run(name, func(b *testing.B) {
			seq := h.load(b, d)
			host := &idleHost{slots: make([]compute.Slot, slots), stop: b.N}
			in := h.batch(0, false, tokenRoutes)
			b.ResetTimer()
			require.ErrorIs(b, seq.Eval(b.Context(), in, host), stopped{})
		})
	}
}

// BenchmarkToken is one token through the 48 layers of Qwen3-30B-A3B, of which only the messages are there: in process and out
// of it by turns, so that a busy machine is busy for both. The difference is what the process boundary costs a token.
func BenchmarkToken(b *testing.B) {
	const layers = 48
	h := newBenchOf(b, layers)
	in := [2]compute.Sequence{h.load(b, InProcess(fake{}, h.memory)), nil}
	other := newBenchOf(b, layers)
	in[1] = other.load(b, other.start(b))
	var times [2][]time.Duration
	for i := 0; b.Loop(); i++ {
		for side, bench := range []*bench{h, other} {
			if err := in[side].Trim(0); err != nil {
				b.Fatal(err)
			}
			batch := bench.batch(0, false, 1)
			start := time.Now()
			if err := in[side].Eval(b.Context(), batch, bench); err != nil {
				b.Fatal(err)
			}
			times[side] = append(times[side], time.Since(start))
		}
	}
	median := func(side int) float64 {
		slices.Sort(times[side])
		return float64(times[side][len(times[side])/2]) / 1e3
	}
	b.ReportMetric(median(0), "µs/token-in-process")
	b.ReportMetric(median(1), "µs/token-out-of-process")
	b.ReportMetric((median(1)-median(0))/layers, "µs/layer-boundary")
	b.ReportMetric(0, "ns/op")
}
