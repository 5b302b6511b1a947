package engine_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/engine"
	"github.com/bigmoe/bigmoe/engine/expert"
)

// TestIdentity is the first law: nothing but the model, the prompt and the backend changes the output, bit for bit.
func TestIdentity(t *testing.T) {
	for _, name := range []string{"qwen3moe/qwen3moe-f32", "qwen3moe/qwen3moe-k-q4_k_m", "qwen2moe/qwen2moe-k-q4_k_m"} {
		t.Run(name, func(t *testing.T) {
			g, model := loadGolden(t, name)
			_, split := loadGolden(t, "qwen3moe/qwen3moe-split")
			all := backends()
			base := config(model, all["in process"])
			base.Threads = 1
			chunk := 13
			want := observe(t, base, g.Prompt.IDs, chunk, 8)
			least := leastCache(t, base)

			variants := map[string]func(*engine.Config){
				"again":          func(*engine.Config) {},
				"2 threads":      func(c *engine.Config) { c.Threads = 2 },
				"3 threads":      func(c *engine.Config) { c.Threads = 3 },
				"1 reader":       func(c *engine.Config) { c.Readers = 1 },
				"8 readers":      func(c *engine.Config) { c.Readers = 8 },
				"16 readers":     func(c *engine.Config) { c.Readers = 16 },
				"buffered":       func(c *engine.Config) { c.IO = expert.BufferedOnly },
				"direct":         func(c *engine.Config) { c.IO = expert.Auto },
				"no prefetch":    func(c *engine.Config) { c.Prefetch = engine.PrefetchOff },
				"lru":            func(c *engine.Config) { c.Policy = "lru" },
				"child process":  func(c *engine.Config) { c.Backend = all["child process"] },
				"child, 2 and 8": func(c *engine.Config) { c.Backend, c.Threads, c.Readers = all["child process"], 2, 8 },
			}
			if name == "qwen3moe/qwen3moe-f32" {
				variants["split"] = func(c *engine.Config) { c.Model = split }
			}
			for i, f := range []float64{1, 1.3, 2, 4, 16} {
				for _, policy := range []string{"lru", "decayed", "forecast"} {
					variants[fmt.Sprintf("cache %d %s", i, policy)] = func(c *engine.Config) {
						c.CacheBytes, c.Policy, c.Threads = int64(float64(least)*f), policy, 1+i%2
					}
				}
			}
			for variant, change := range variants {
				t.Run(variant, func(t *testing.T) {
					cfg := base
					change(&cfg)
					requireSame(t, want, observe(t, cfg, g.Prompt.IDs, chunk, 8))
				})
			}
		})
	}
}

func requireSame(t *testing.T, want, got *observed) {
	t.Helper()
	require.Equal(t, want.greedy, got.greedy)
	require.Equal(t, want.experts, got.experts)
	require.Len(t, got.logits, len(want.logits))
	for pos := range want.logits {
		for id := range want.logits[pos] {
			if math.Float32bits(want.logits[pos][id]) != math.Float32bits(got.logits[pos][id]) {
				t.Fatalf("position %d token %d: %v, expected exactly %v", pos, id, got.logits[pos][id], want.logits[pos][id])
			}
		}
	}
}

// leastCache returns the smallest cache a model can run with.
func leastCache(t testing.TB, cfg engine.Config) int64 {
	t.Helper()
	o, err := engine.Inspect(t.Context(), cfg)
	require.NoError(t, err)
	defer o.File.Close()
	l, err := expert.Plan(o.Model.StoreBanks(), o.Model.MaxTopK(), 0)
	require.NoError(t, err)
	return l.MinBudgetBytes
}
