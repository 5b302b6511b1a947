package pool_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/plugins/compute-cpu/internal/pool"
)

func TestEveryChunkRunsOnce(t *testing.T) {
	for _, workers := range []int{1, 2, 3, 8} {
		var ran [257]atomic.Int32
		var inUse [8]atomic.Int32
		p := pool.New(workers, func(worker, chunk int) {
			if inUse[worker].Add(1) != 1 {
				t.Error("two chunks at a time got one worker number")
			}
			ran[chunk].Add(1)
			inUse[worker].Add(-1)
		})
		require.Equal(t, workers, p.Workers())
		for job := range 300 {
			chunks := job % len(ran)
			if job%50 == 49 {
				time.Sleep(time.Millisecond) // long enough for the workers to sleep
			}
			p.Run(chunks)
			for c := range ran {
				want := int32(0)
				if c < chunks {
					want = 1
				}
				require.Equal(t, want, ran[c].Swap(0), "job %d, chunk %d", job, c)
			}
		}
		p.Close()
		p.Close()
	}
}

// TestWritesAreVisible has meaning under the race detector: plain memory goes to the workers and back.
func TestWritesAreVisible(t *testing.T) {
	in, out := make([]int, 64), make([]int, 64)
	p := pool.New(4, func(_, chunk int) { out[chunk] = 2 * in[chunk] })
	defer p.Close()
	for round := range 500 {
		for i := range in {
			in[i] = round + i
		}
		p.Run(len(in))
		for i := range out {
			require.Equal(t, 2*(round+i), out[i])
		}
	}
}

func TestSlowWorkerIsWaitedFor(t *testing.T) {
	var finished atomic.Int32
	p := pool.New(2, func(worker, chunk int) {
		if chunk == 0 {
			time.Sleep(5 * time.Millisecond)
		}
		finished.Add(1)
	})
	defer p.Close()
	for range 20 {
		finished.Store(0)
		p.Run(2)
		require.EqualValues(t, 2, finished.Load())
	}
}

// TestGate lets the second half of the chunks need what the first half makes.
func TestGate(t *testing.T) {
	for _, workers := range []int{1, 2, 4} {
		const half = 16
		var gate pool.Gate
		var left atomic.Int32
		var sum int
		var seen [half]int
		p := pool.New(workers, func(_, chunk int) {
			if chunk >= half {
				gate.Wait()
				seen[chunk-half] = sum
				return
			}
			if chunk == half-1 {
				time.Sleep(time.Millisecond) // the others come to sleep
			}
			if left.Add(-1) == 0 {
				sum++
				gate.Open()
			}
		})
		for round := range 20 {
			left.Store(half)
			gate.Close()
			p.Run(2 * half)
			for _, got := range seen {
				require.Equal(t, round+1, got)
			}
		}
		p.Close()
	}
}

func BenchmarkRun(b *testing.B) {
	p := pool.New(2, func(int, int) {})
	defer p.Close()
	b.ReportAllocs()
	for b.Loop() {
		p.Run(2)
	}
}
