package backend

import (
	"testing"

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
