package engine_test

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/engine"
	"github.com/bigmoe/bigmoe/engine/expert"
	"github.com/bigmoe/bigmoe/recipes"
	"github.com/bigmoe/bigmoe/sdk/plan"
)

// architecture is a small model of one, and what its states must take.
type architecture struct {
	model  func(t *testing.T) (path string, prompt []int32)
	states func(context int64) int64 // bytes, with numbers of 16 bits in caches
}

// architectures has one entry for each recipe that ships with bigmoe.
var architectures = map[string]architecture{
	"qwen3moe": {fromGolden("qwen3moe/qwen3moe-f32"), func(n int64) int64 { return 4 * n * (64 + 64) * 2 }},
	"qwen2moe": {fromGolden("qwen2moe/qwen2moe-k-q4_k_m"), func(n int64) int64 { return 2 * n * (128 + 128) * 2 }},
	"qwen35moe": {func(t *testing.T) (string, []int32) {
		g, model := qwen35Golden(t, "qwen35moe-mtp")
		return model, g.Prompt.IDs
	}, func(n int64) int64 { // 3 delta nets of 4 heads of 32, convolutions of 4 taps over 256 channels
		return 3*(4*32*32+3*256)*4 + n*(64+64)*2
	}},
	"qwen3next": {func(t *testing.T) (string, []int32) {
		g, model := qwen35Golden(t, "qwen35moe-f32")
		return asQwen3Next(t, model, false), g.Prompt.IDs
	}, func(n int64) int64 { // 6 such delta nets
		return 6*(4*32*32+3*256)*4 + 2*n*(64+64)*2
	}},
	"gemma4": {func(t *testing.T) (string, []int32) {
		g, model, _ := loadGoldenB(t, "gemma4/gemma4-wide-q4_k_m")
		return model, g.Prompt.IDs
	}, func(n int64) int64 { return (4*min(n, 8) + 2*n) * (128 + 128) * 2 }},
	"gpt-oss": {fromGolden(gptOSS), func(n int64) int64 { return (2*min(n, 8) + 2*n) * (128 + 128) * 2 }},
	"lfm2moe": {func(t *testing.T) (string, []int32) {
		g, model := lfmGolden(t, "lfm2moe-wide-q4_k_m")
		return model, g.Prompt.IDs
	}, func(n int64) int64 { return 4*2*256*4 + 2*n*(128+128)*2 }},
	"deepseek4": {func(t *testing.T) (string, []int32) {
		return filepath.Join(goldenDir, deepseek4+"q4_k_m.gguf"), loadLongGolden(t, deepseek4+"q4_k_m").Prompt[:100]
	}, func(n int64) int64 {
		rows := 2*(n/4)*(128+64) + n/128*128           // of attention and of the indexer
		const pending = 2*2*8*(2*128+2*64) + 2*128*128 // keys and scores of the last two blocks, and of one
		return (4*min(n, 16)*128+rows)*2 + pending*4
	}},
	"deepseek2": {func(t *testing.T) (string, []int32) {
		m := deepseekV3.deepseek2(false)
		return m.write(t), m.text(40)
	}, func(n int64) int64 { return 3 * n * (28 + 8) * 2 }},
	"bailingmoe3": {func(t *testing.T) (string, []int32) {
		l := newLing(lingVariant{grouped: true})
		return l.write(t), l.text(40)
	}, func(n int64) int64 { // 3 delta nets of 3 heads of 16, with three convolutions each
		return 3*(3*16*16+3*3*48)*4 + n*28*2
	}},
}

func fromGolden(name string) func(t *testing.T) (string, []int32) {
	return func(t *testing.T) (string, []int32) {
		g, model := loadGolden(t, name)
		return model, g.Prompt.IDs
	}
}

// eachArchitecture runs a test for every architecture there is.
func eachArchitecture(t *testing.T, test func(t *testing.T, a architecture)) {
	names := slices.Sorted(maps.Keys(architectures))
	require.Equal(t, recipes.Names(), names, "every recipe has an architecture here")
	for _, name := range names {
		t.Run(name, func(t *testing.T) { test(t, architectures[name]) })
	}
}

// TestArchitectureBudgets holds what inspect shows of a model, which the recipe decides, to the tensors of the file, whose
// names say what they are, and states to the sizes of the model.
func TestArchitectureBudgets(t *testing.T) {
	arithmetic(t)
	eachArchitecture(t, func(t *testing.T, a architecture) {
		path, _ := a.model(t)
		o, err := engine.Inspect(t.Context(), engine.Config{Model: path, Recipes: builtin{}})
		require.NoError(t, err)
		defer o.File.Close()
		m := o.Model
		unused := map[string]bool{}
		for _, u := range o.Plan.Unused {
			unused[u.Tensor] = true
		}
		var dense, experts, token int64
		for _, ts := range o.File.Tensors() {
			switch {
			case unused[ts.Name]:
			case strings.HasSuffix(ts.Name, "_exps.weight"):
				experts += int64(ts.Bytes)
				token += int64(ts.Bytes) / int64(m.Plan.Model.Experts) * int64(m.Plan.Model.ExpertsUsed)
			default:
				dense += int64(ts.Bytes)
			}
		}
		var resident, rows int64
		for i := range m.Weights {
			if w := &m.Weights[i]; w.Resident() {
				resident += w.Bytes()
			} else {
				rows += w.Bytes()
			}
		}
		require.Equal(t, dense, resident+rows)
		require.InDelta(t, resident, m.DenseBytes(), float64(64*len(m.Weights)), "each is aligned")
		require.Equal(t, experts, m.ExpertBytes())
		require.Equal(t, token, m.TokenBytes())
		for _, context := range []int64{4, 64, 200} {
			require.Equal(t, a.states(context), m.StateBytes(context, 2), "context of %d", context)
		}
	})
}

// TestArchitectureOverlap: what a layer computes while its experts are read is what stands before them in the plan, so nothing
// that could stand there comes after them, such as a shared expert.
func TestArchitectureOverlap(t *testing.T) {
	arithmetic(t)
	eachArchitecture(t, func(t *testing.T, a architecture) {
		path, _ := a.model(t)
		o, err := engine.Inspect(t.Context(), engine.Config{Model: path, Recipes: builtin{}})
		require.NoError(t, err)
		defer o.File.Close()
		routed := 0
		for _, b := range o.Plan.Blocks {
			var after []string // values made from the experts'
			for _, op := range b.Ops {
				fromExperts := op.Kind == "experts" || slices.ContainsFunc(op.In, func(in string) bool { return slices.Contains(after, in) })
				require.True(t, fromExperts || len(after) == 0, "layer %d: %s %v does not wait for the experts before it", b.Layer, op.Kind, op.Out)
				if fromExperts {
					after = append(after, op.Out...)
				}
				if op.Kind == "experts" {
					routed++
				}
			}
		}
		require.Len(t, o.Plan.Banks, routed)
	})
}

// TestArchitectureIdentity is the first law for every architecture: threads, processes, readers, and the size and policy
// of the expert cache change no bit of what a model computes. [TestIdentity] has more variants.
func TestArchitectureIdentity(t *testing.T) {
	eachArchitecture(t, func(t *testing.T, a architecture) {
		const chunk, greedy = 13, 8
		model, prompt := a.model(t)
		all := backends()
		base := config(model, all["in process"])
		base.Threads = 1
		want := observe(t, base, prompt, chunk, greedy)
		variants := map[string]func(*engine.Config){
			"3 threads":           func(c *engine.Config) { c.Threads = 3 },
			"child process":       func(c *engine.Config) { c.Backend, c.Threads = all["child process"], 2 },
			"buffered, 1 reader":  func(c *engine.Config) { c.IO, c.Readers = expert.BufferedOnly, 1 },
			"direct, no prefetch": func(c *engine.Config) { c.IO, c.Prefetch = expert.Auto, engine.PrefetchOff },
			"room for 5":          func(c *engine.Config) { c.Batch = 5 }, // windows keep no more than their size and a batch
		}
		least := leastCache(t, base)
		for i, policy := range []string{"lru", "decayed", "forecast"} {
			variants[policy] = func(c *engine.Config) {
				c.CacheBytes, c.Policy, c.Threads = int64(1+i)*least, policy, 2
			}
		}
		if raceEnabled { // the rest differs in arithmetic and in reads, not in what runs at the same time
			for _, variant := range []string{"buffered, 1 reader", "direct, no prefetch", "room for 5", "decayed", "forecast"} {
				delete(variants, variant)
			}
		}
		for variant, change := range variants {
			t.Run(variant, func(t *testing.T) {
				cfg := base
				change(&cfg)
				requireSame(t, want, observe(t, cfg, prompt, chunk, greedy))
			})
		}
		if raceEnabled {
			return
		}
		for _, chunk := range []int{0, 1, 7, 64} {
			t.Run(fmt.Sprintf("batches of %d", chunk), func(t *testing.T) {
				requireSame(t, want, observe(t, base, prompt, chunk, greedy))
			})
		}
	})
}

// TestArchitectureRewind holds a session that goes back to one that never went further, for every architecture. States that can be
// trimmed keep what the texts share; others are emptied, and the text is evaluated anew. A session that only goes on keeps
// what it has.
func TestArchitectureRewind(t *testing.T) {
	arithmetic(t)
	eachArchitecture(t, func(t *testing.T, a architecture) {
		path, prompt := a.model(t)
		cfg := config(path, backends()["in process"])
		cfg.RecipeCache = t.TempDir()
		o, err := engine.Inspect(t.Context(), cfg)
		require.NoError(t, err)
		trims, windows := true, false
		for _, s := range o.Plan.States {
			trims, windows = trims && s.Rewind == plan.Rewind_TRIM, windows || s.Window > 0
		}
		require.NoError(t, o.File.Close())

		beside := open(t, cfg)
		fresh := func(prompt []int32) []int32 {
			res, err := beside.NewSession().Generate(t.Context(), greedy(prompt, 6), silent)
			require.NoError(t, err)
			require.Zero(t, res.ReusedTokens)
			return res.Tokens
		}
		e := open(t, cfg)
		s := e.NewSession()
		generate := func(s *engine.Session, prompt []int32) (tokens []int32, reused int) {
			res, err := s.Generate(t.Context(), greedy(prompt, 6), silent)
			require.NoError(t, err)
			return res.Tokens, res.ReusedTokens
		}
		half := prompt[:len(prompt)/2]
		first, reused := generate(s, prompt)
		require.Zero(t, reused)
		require.Equal(t, fresh(prompt), first)

		back, reused := generate(s, half)
		require.Equal(t, fresh(half), back, "back to the middle of the prompt")
		switch {
		case !trims:
			require.Zero(t, reused)
		case !windows:
			require.Equal(t, len(half)-1, reused, "its last position has to be evaluated anew")
		}
		again, reused := generate(s, prompt)
		require.Equal(t, first, again, "the same text again")
		require.Equal(t, trims, reused >= len(half)-1, "%d tokens are reused", reused)

		longer := slices.Concat(prompt, first)
		on, reused := generate(s, longer)
		require.Equal(t, fresh(longer), on, "on from where it is")
		require.Equal(t, len(longer)-1, reused)

		other, reused := generate(e.NewSession(), half)
		require.Equal(t, back, other, "another session")
		require.Zero(t, reused)
		again, reused = generate(s, prompt)
		require.Equal(t, first, again, "its states were taken away")
		require.Zero(t, reused)
	})
}
