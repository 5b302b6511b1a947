package engine_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/engine"
)

// decoder opens an engine whose cache is small, so that experts are read all the time, and returns a function that writes n tokens.
func decoder(t testing.TB, b engine.Backend) func(n int) {
	g, model := loadGolden(t, "qwen3moe/qwen3moe-k-q4_k_m")
	cfg := config(model, b)
	cfg.Threads, cfg.CacheBytes = 1, 2*leastCache(t, cfg)
	e, err := engine.Open(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, e.Close()) })
	s := e.NewSession()
	return func(n int) {
		_, err := s.Generate(t.Context(), greedy(g.Prompt.IDs, n), silent)
		require.NoError(t, err)
	}
}

// TestDecodeAllocations: a token costs a fixed handful of small allocations, those that make it cancellable, and none per layer, expert or
// read: the engine's loop, the store, the mailbox and the backend work in what they have.
func TestDecodeAllocations(t *testing.T) {
	arithmetic(t)
	for _, name := range []string{"in process", "child process"} {
		t.Run(name, func(t *testing.T) {
			decode := decoder(t, backends()[name])
			decode(64)
			const few, many = 4, 64
			perToken := (testing.AllocsPerRun(5, func() { decode(many) }) - testing.AllocsPerRun(5, func() { decode(few) })) / (many - few)
			t.Logf("%.2f allocations per token", perToken)
			require.Less(t, perToken, 20.0)
		})
	}
}

// BenchmarkDecode writes tokens with a tiny model; -benchmem shows what a token allocates.
func BenchmarkDecode(b *testing.B) {
	for _, name := range []string{"in process", "child process"} {
		b.Run(name, func(b *testing.B) {
			decode := decoder(b, backends()[name])
			decode(64)
			b.ReportAllocs()
			b.ResetTimer()
			for left := b.N; left > 0; left -= 64 {
				decode(min(left, 64) + 1)
			}
		})
	}
}
