package engine_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/engine"
	"github.com/bigmoe/bigmoe/engine/gguf"
	"github.com/bigmoe/bigmoe/engine/gguf/gguftest"
	"github.com/bigmoe/bigmoe/engine/sample"
	"github.com/bigmoe/bigmoe/engine/vfs"
	"github.com/bigmoe/bigmoe/engine/vfs/errfs"
	"github.com/bigmoe/bigmoe/sdk/fault"
)

func open(t *testing.T, cfg engine.Config) *engine.Engine {
	t.Helper()
	e, err := engine.Open(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, e.Close()) })
	return e
}

func greedy(prompt []int32, n int) engine.Request {
	sampling := sample.Default()
	sampling.Temperature = 0
	return engine.Request{Tokens: prompt, MaxTokens: n, IgnoreEnd: true, Sampling: sampling}
}

func silent(engine.Token) error { return nil }

func TestGenerateMatchesGolden(t *testing.T) {
	g, model := loadGolden(t, "qwen3moe/qwen3moe-k-q4_k_m")
	e := open(t, config(model, backends()["in process"]))
	s := e.NewSession()
	var text strings.Builder
	res, err := s.Generate(t.Context(), greedy(g.Prompt.IDs, 32), func(tok engine.Token) error {
		text.WriteString(tok.Text)
		return nil
	})
	require.NoError(t, err)
	require.Equal(t, g.Runs["f32"].Greedy.IDs, res.Tokens)
	require.Equal(t, engine.StopLength, res.Stop)
	require.Equal(t, len(g.Prompt.IDs), res.PromptTokens)
	require.Equal(t, 31, res.Decode.Tokens, "the last token is not evaluated")
	want, err := e.Tokenizer.Decode(res.Tokens, false)
	require.NoError(t, err)
	require.Equal(t, string([]rune(string(want))), text.String())
}

// TestLastLayerServesWantedTokensOnly: after the last state is written, tokens whose logits nobody wants cost nothing.
func TestLastLayerServesWantedTokensOnly(t *testing.T) {
	g, model := loadGolden(t, "qwen3moe/qwen3moe-f32")
	picks := map[int]int{}
	cfg := config(model, backends()["in process"])
	cfg.OnRoute = func(layer, k int, ids []int32, _ []float32) { picks[layer] += len(ids) / k }
	e := open(t, cfg)
	res, err := e.NewSession().Generate(t.Context(), greedy(g.Prompt.IDs, 1), silent)
	require.NoError(t, err)
	require.Equal(t, g.Runs["f32"].Greedy.IDs[:1], res.Tokens)
	last := len(e.Model.Banks) - 1
	for layer := range last {
		require.Equal(t, len(g.Prompt.IDs), picks[layer])
	}
	require.Equal(t, 1, picks[last])
}

func TestPrefixIsReused(t *testing.T) {
	g, model := loadGolden(t, "qwen3moe/qwen3moe-f32")
	e := open(t, config(model, backends()["in process"]))
	s := e.NewSession()
	first, err := s.Generate(t.Context(), greedy(g.Prompt.IDs, 4), silent)
	require.NoError(t, err)
	require.Zero(t, first.ReusedTokens)

	again, err := s.Generate(t.Context(), greedy(g.Prompt.IDs, 4), silent)
	require.NoError(t, err)
	require.Equal(t, len(g.Prompt.IDs)-1, again.ReusedTokens)
	require.Equal(t, first.Tokens, again.Tokens)

	// Another session takes the states away; nothing is lost but time.
	other, err := e.NewSession().Generate(t.Context(), greedy(g.Prompt.IDs, 4), silent)
	require.NoError(t, err)
	require.Zero(t, other.ReusedTokens)
	require.Equal(t, first.Tokens, other.Tokens)
	third, err := s.Generate(t.Context(), greedy(g.Prompt.IDs, 4), silent)
	require.NoError(t, err)
	require.Zero(t, third.ReusedTokens)
	require.Equal(t, first.Tokens, third.Tokens)
}

func TestGenerateRefuses(t *testing.T) {
	_, model := loadGolden(t, "qwen3moe/qwen3moe-f32")
	e := open(t, config(model, backends()["in process"]))
	long := make([]int32, e.Context)
	for name, req := range map[string]engine.Request{
		"empty prompt":      {},
		"prompt too long":   {Tokens: long},
		"token outside":     {Tokens: []int32{1, 1 << 20}},
		"negative token":    {Tokens: []int32{-1}},
		"impossible params": {Tokens: []int32{1}, Sampling: sample.Params{Temperature: -1, TopP: 7}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := e.NewSession().Generate(t.Context(), req, silent)
			require.Equal(t, fault.User, fault.KindOf(err), "%v", err)
		})
	}
	// Filling the context ends the text, not the engine.
	res, err := e.NewSession().Generate(t.Context(), greedy(long[:e.Context-3], 0), silent)
	require.NoError(t, err)
	require.Equal(t, engine.StopContext, res.Stop)
	require.Len(t, res.Tokens, 4)
}

func TestCancel(t *testing.T) {
	g, model := loadGolden(t, "qwen3moe/qwen3moe-f32")
	for name, b := range backends() {
		t.Run(name, func(t *testing.T) {
			e := open(t, config(model, b))
			s := e.NewSession()
			ctx, cancel := context.WithCancel(t.Context())
			res, err := s.Generate(ctx, greedy(g.Prompt.IDs, 30), func(engine.Token) error { cancel(); return nil })
			require.ErrorIs(t, err, context.Canceled)
			require.Len(t, res.Tokens, 1)
			again, err := s.Generate(t.Context(), greedy(g.Prompt.IDs, 8), silent)
			require.NoError(t, err)
			require.Equal(t, g.Runs["f32"].Greedy.IDs[:8], again.Tokens)

			stop := errors.New("reader is gone")
			_, err = s.Generate(t.Context(), greedy(g.Prompt.IDs, 8), func(engine.Token) error { return stop })
			require.ErrorIs(t, err, stop)
		})
	}
}

// TestBackendKilled kills the backend in the middle of a text: that request fails with a clear error, the next works.
func TestBackendKilled(t *testing.T) {
	g, model := loadGolden(t, "qwen3moe/qwen3moe-f32")
	e := open(t, config(model, backends()["child process"]))
	s := e.NewSession()
	for range 3 {
		start := time.Now()
		res, err := s.Generate(t.Context(), greedy(g.Prompt.IDs, 30), func(engine.Token) error {
			return syscall.Kill(e.BackendPID(), syscall.SIGKILL)
		})
		require.ErrorContains(t, err, "killed")
		require.Less(t, time.Since(start), prompt)
		require.NotEmpty(t, res.Tokens)

		again, err := s.Generate(t.Context(), greedy(g.Prompt.IDs, 8), silent)
		require.NoError(t, err)
		require.Equal(t, g.Runs["f32"].Greedy.IDs[:8], again.Tokens)
	}
}

// TestReadErrors: an expert that cannot be read fails the request, names the place, and nothing is computed from it.
func TestReadErrors(t *testing.T) {
	g, model := loadGolden(t, "qwen3moe/qwen3moe-f32")
	for name, b := range backends() {
		t.Run(name, func(t *testing.T) {
			fs := errfs.Wrap(vfs.OS())
			cfg := config(model, b)
			cfg.FS = fs
			cfg.CacheBytes = leastCache(t, cfg)
			e := open(t, cfg)
			s := e.NewSession()
			fs.Set(func(r errfs.Read) errfs.Fault {
				if r.Len < vfs.Align/2 { // rows of the embedding table
					return errfs.Fault{}
				}
				return errfs.Fault{Err: syscall.EIO}
			})
			_, err := s.Generate(t.Context(), greedy(g.Prompt.IDs, 8), silent)
			require.ErrorContains(t, err, "qwen3moe-f32.gguf")
			require.ErrorContains(t, err, "_exps.weight")
			require.ErrorContains(t, err, "layer")
			fs.Set(nil)
			again, err := s.Generate(t.Context(), greedy(g.Prompt.IDs, 8), silent)
			require.NoError(t, err)
			require.Equal(t, g.Runs["f32"].Greedy.IDs[:8], again.Tokens)
		})
	}
}

// TestFileTruncatedWhileRunning: a file that shrinks under us is an error, never a wrong text.
func TestFileTruncatedWhileRunning(t *testing.T) {
	g, model := loadGolden(t, "qwen3moe/qwen3moe-f32")
	text, err := os.ReadFile(model)
	require.NoError(t, err)
	path := t.TempDir() + "/shrinks.gguf"
	require.NoError(t, os.WriteFile(path, text, 0o644))
	cfg := config(path, backends()["in process"])
	cfg.CacheBytes = leastCache(t, cfg)
	e := open(t, cfg)
	require.NoError(t, os.Truncate(path, int64(len(text)/4)))
	_, err = e.NewSession().Generate(t.Context(), greedy(g.Prompt.IDs, 8), silent)
	require.ErrorContains(t, err, "shrinks.gguf")
}

func TestBudgetRefusal(t *testing.T) {
	_, model := loadGolden(t, "qwen3moe/qwen3moe-f32")
	cfg := config(model, backends()["in process"])
	cfg.MemoryBytes = 1 << 20
	_, err := engine.Open(t.Context(), cfg)
	require.Equal(t, fault.User, fault.KindOf(err), "%v", err)
	for _, part := range []string{"dense weights", "states", "engine process", "expert arena", "needed", "--mem"} {
		require.ErrorContains(t, err, part)
	}
}

// TestSuppressedTokens: what a file says must never be sampled is not, however likely it is.
func TestSuppressedTokens(t *testing.T) {
	g, model := loadGolden(t, "qwen3moe/qwen3moe-f32")
	want := g.Runs["f32"].Greedy.IDs
	f, err := gguf.Open(model)
	require.NoError(t, err)
	defer f.Close()
	b := gguftest.NewBuilder()
	for _, key := range f.Keys() {
		v, _ := f.Get(key)
		value, err := gguftest.Value(v)
		require.NoError(t, err)
		b.Set(key, value)
	}
	for _, tensor := range f.Tensors() {
		data := make([]byte, tensor.Bytes)
		_, err := f.Shards()[tensor.Shard].ReadAt(data, tensor.Offset)
		require.NoError(t, err)
		b.Tensor(tensor.Name, tensor.Type, tensor.Dims, data)
	}
	b.Set("tokenizer.ggml.suppress_tokens", []int32{want[0], want[1]})
	path := filepath.Join(t.TempDir(), "suppress.gguf")
	require.NoError(t, b.Write(path))
	e := open(t, config(path, backends()["in process"]))
	res, err := e.NewSession().Generate(t.Context(), greedy(g.Prompt.IDs, 8), silent)
	require.NoError(t, err)
	require.NotEqual(t, want[0], res.Tokens[0])
	require.NotContains(t, res.Tokens, want[0])
	require.NotContains(t, res.Tokens, want[1])
}
