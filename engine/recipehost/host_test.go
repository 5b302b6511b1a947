package recipehost

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/bigmoe/bigmoe/engine/gguf"
	"github.com/bigmoe/bigmoe/sdk/fault"
)

func shipped(t testing.TB) []byte {
	module, err := os.ReadFile("../../recipes/qwen3moe/qwen3moe.wasm")
	require.NoError(t, err)
	return module
}

// TestCompiledAndInterpreted wants the same plan from an interpreted module, a compiled one, and one that was found in
// the cache or that a cache which cannot be used left to the interpreter.
func TestCompiledAndInterpreted(t *testing.T) {
	src := File(open(t, "qwen3moe/qwen3moe-f32.gguf"))
	cache, notADirectory := t.TempDir(), filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(notADirectory, nil, 0o600))
	want, _, err := New(Options{}).Plan(context.Background(), "qwen3moe", shipped(t), src)
	require.NoError(t, err)
	for _, dir := range []string{cache, cache, notADirectory} {
		p, _, err := New(Options{CacheDir: dir}).Plan(context.Background(), "qwen3moe", shipped(t), src)
		require.NoError(t, err)
		require.True(t, proto.Equal(want, p))
	}
	kept, err := filepath.Glob(filepath.Join(cache, "*", "*"))
	require.NoError(t, err)
	require.NotEmpty(t, kept)

	for _, path := range kept { // neither read nor written any more
		require.NoError(t, os.Remove(path))
		require.NoError(t, os.MkdirAll(filepath.Join(path, "in the way"), 0o700))
	}
	p, _, err := New(Options{CacheDir: cache}).Plan(context.Background(), "qwen3moe", shipped(t), src)
	require.NoError(t, err)
	require.True(t, proto.Equal(want, p))
}

// TestPlansAreRepeatable: nothing of the machine reaches a recipe, so that a plan depends on the file alone.
func TestPlansAreRepeatable(t *testing.T) {
	src := File(open(t, "qwen3moe/qwen3moe-f32.gguf"))
	var sessions []*session
	for range 2 {
		h := New(Options{})
		o, err := sieve(shipped(t), h.opts.MemoryLimitBytes, offered)
		require.NoError(t, err)
		s := &session{opts: h.opts, src: src, tensors: src.Tensors(), handles: map[string]int32{}}
		require.NoError(t, h.run(context.Background(), o.module, s))
		sessions = append(sessions, s)
		time.Sleep(time.Millisecond)
	}
	require.Equal(t, sessions[0].result, sessions[1].result)
	require.Equal(t, sessions[0].calls, sessions[1].calls)
	require.Equal(t, sessions[0].clock, sessions[1].clock)
}

func TestUsage(t *testing.T) {
	var used []Usage
	h := New(Options{Used: func(u Usage) { used = append(used, u) }})
	_, _, err := h.Plan(context.Background(), "qwen3moe", shipped(t), File(open(t, "qwen3moe/qwen3moe-f32.gguf")))
	require.NoError(t, err)
	require.Len(t, used, 1)
	u := used[0]
	require.Equal(t, ABIVersion, u.ABIVersion)
	require.Less(t, u.MemoryBytes, h.Bounds().MemoryLimitBytes)
	require.Greater(t, u.MemoryBytes, int64(1<<20))
	require.Greater(t, u.Calls, 100)
	require.Greater(t, u.PlanBytes, 1000)
	require.Positive(t, u.Seconds)
}

func TestMemoryLimit(t *testing.T) {
	src := File(open(t, "qwen3moe/qwen3moe-f32.gguf"))
	_, _, err := New(Options{MemoryLimitBytes: 1 << 20}).Plan(context.Background(), "qwen3moe", shipped(t), src)
	require.ErrorContains(t, err, "at most 1048576 are given")
}

func requireElements[T any](t *testing.T, want []T, get func() ([]T, error)) {
	t.Helper()
	got, err := get()
	require.NoError(t, err)
	require.Equal(t, want, got)
}

func TestSourceOfFile(t *testing.T) {
	f, err := gguf.Open("../../testdata/golden/badgguf/files/ok-odd-types.gguf")
	require.NoError(t, err)
	defer f.Close()
	src := File(f)
	_, ok := src.Meta("qwen3moe.absent")
	require.False(t, ok)

	v, ok := src.Meta("general.architecture")
	require.True(t, ok)
	require.Equal(t, Meta{Type: gguf.String, Len: 1}, Meta{Type: v.Type, Array: v.Array, Len: v.Len})
	requireElements(t, []string{"qwen3moe"}, v.Texts)

	v, _ = src.Meta("tokenizer.ggml.tokens")
	require.True(t, v.Array)
	texts, err := v.Texts()
	require.NoError(t, err)
	require.Len(t, texts, v.Len)

	v, _ = src.Meta("qwen3moe.attention.head_count_kv")
	require.True(t, v.Array)
	requireElements(t, []int64{1}, v.Ints)

	v, _ = src.Meta("qwen3moe.embedding_length")
	requireElements(t, []int64{32}, v.Ints)
	v, _ = src.Meta("qwen3moe.attention.layer_norm_rms_epsilon")
	requireElements(t, []float64{float64(float32(1e-6))}, v.Floats)

	over := Override(src, map[string]uint64{"qwen3moe.expert_used_count": 1})
	v, _ = over.Meta("qwen3moe.expert_used_count")
	requireElements(t, []int64{1}, v.Ints)
	v, _ = over.Meta("qwen3moe.embedding_length")
	requireElements(t, []int64{32}, v.Ints)
}

// unreadable is a source whose numbers cannot be read.
type unreadable struct{ Source }

func (s unreadable) Meta(key string) (Meta, bool) {
	v, ok := s.Source.Meta(key)
	v.Ints = func() ([]int64, error) { return nil, fault.Corruptf("%s: the disk is gone", key) }
	return v, ok
}

func TestSourceFails(t *testing.T) {
	p, _, err := New(Options{}).Plan(context.Background(), "qwen3moe", shipped(t), unreadable{File(open(t, "qwen3moe/qwen3moe-f32.gguf"))})
	require.Nil(t, p)
	require.ErrorContains(t, err, "the disk is gone")
	require.Equal(t, fault.Corrupt, fault.KindOf(err))
}

// BenchmarkPlan is what a start pays for its recipe.
func BenchmarkPlan(b *testing.B) {
	src, module := File(open(b, "qwen3moe/qwen3moe-f32.gguf")), shipped(b)
	for mode, opts := range map[string]Options{"interpreted": {}, "cached": {CacheDir: b.TempDir()}} {
		b.Run(mode, func(b *testing.B) {
			plan := func() {
				_, _, err := New(opts).Plan(context.Background(), "qwen3moe", module, src)
				require.NoError(b, err)
			}
			plan() // fills the cache
			for b.Loop() {
				plan()
			}
		})
	}
}

// TestRecipeInC: the ABI is enough by itself, without the Go library.
func TestRecipeInC(t *testing.T) {
	module, err := os.ReadFile("testdata/c/bigram.wasm")
	require.NoError(t, err)
	f := open(t, "qwen3moe/qwen3moe-f32.gguf")
	var warnings []string
	warn := func(message string) { warnings = append(warnings, message) }
	var used Usage
	p, _, err := New(Options{Warn: warn, Used: func(u Usage) { used = u }}).Plan(context.Background(), "other", module, File(f))
	require.NoError(t, err)
	require.Equal(t, "bigram", used.Name)
	require.Equal(t, "other", p.Recipe)
	require.Contains(t, used.Unread, "qwen3moe.block_count")
	require.NotContains(t, used.Unread, "qwen3moe.embedding_length", "it asks for this one")
	require.NotContains(t, used.Unread, "qwen3moe.vocab_size")
	require.NotContains(t, used.Unread, "general.name", "not a key of the architecture")
	p.Recipe = "bigram"
	require.Equal(t, []string{"experts are left out"}, warnings)
	require.Len(t, p.Unused, len(f.Tensors())-2)

	// Written for version 1 and kept as it was built then: it has to go on working.
	old, err := os.ReadFile("testdata/abi1/bigram.wasm")
	require.NoError(t, err)
	same, _, err := New(Options{}).Plan(context.Background(), "bigram", old, File(f))
	require.NoError(t, err)
	require.True(t, proto.Equal(p, same))
	require.Equal(t, "qwen3moe", p.Architecture)
	require.Len(t, p.Blocks, 2)
	require.Equal(t, []uint64{96, uint64(p.Model.Vocabulary)}, p.Weights[1].Shape)
	require.Equal(t, []uint32{0}, p.Weights[1].Types)

	_, _, err = New(Options{}).Plan(context.Background(), "bigram", module, File(open(t, "qwen2moe/qwen2moe-f32.gguf")))
	require.EqualError(t, err, `recipe "bigram": qwen3moe.embedding_length`)
	require.Equal(t, fault.Corrupt, fault.KindOf(err))
}
