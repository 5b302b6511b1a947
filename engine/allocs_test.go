package engine_test

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/engine"
)

// decoder opens an engine whose cache is small, so that experts are read all the time, and returns a function that writes n tokens.
func decoder(t testing.TB, b engine.Backend) func(n int, emit func(engine.Token) error) {
	g, model := loadGolden(t, "qwen3moe/qwen3moe-k-q4_k_m")
	cfg := config(model, b)
	cfg.Context, cfg.Threads, cfg.CacheBytes = 256, 1, 2*leastCache(t, cfg)
	e, err := engine.Open(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, e.Close()) })
	s := e.NewSession()
	return func(n int, emit func(engine.Token) error) {
		_, err := s.Generate(t.Context(), greedy(g.Prompt.IDs, n), emit)
		require.NoError(t, err)
	}
}

// TestDecodeAllocations: a token allocates nothing. What a text costs is a handful for the request, and room for the text and its
// tokens, which doubles as they grow.
func TestDecodeAllocations(t *testing.T) {
	arithmetic(t)
	for _, name := range []string{"in process", "child process"} {
		t.Run(name, func(t *testing.T) {
			decode := decoder(t, backends()[name])
			const from, tokens = 80, 80
			least := uint64(1 << 62) // of some texts: the runtime and what other tests left behind allocate too
			for range 5 {
				var before, after runtime.MemStats
				n := 0
				decode(from+tokens, func(engine.Token) error {
					switch n++; n {
					case from:
						runtime.ReadMemStats(&before)
					case from + tokens:
						runtime.ReadMemStats(&after)
					}
					return nil
				})
				require.Equal(t, from+tokens, n)
				least = min(least, after.Mallocs-before.Mallocs)
			}
			t.Logf("%d allocations in %d tokens", least, tokens)
			require.Less(t, least, uint64(tokens/10))
		})
	}
}

// BenchmarkDecode writes tokens with a tiny model; -benchmem shows what a token allocates.
func BenchmarkDecode(b *testing.B) {
	for _, name := range []string{"in process", "child process"} {
		b.Run(name, func(b *testing.B) {
			decode := decoder(b, backends()[name])
			decode(64, silent)
			b.ReportAllocs()
			b.ResetTimer()
			for left := b.N; left > 0; left -= 64 {
				decode(min(left, 64)+1, silent)
			}
		})
	}
}
