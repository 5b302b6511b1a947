package engine_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/engine"
)

// TestCancelBetween ends the context of a request while nothing is evaluated. What comes next on the engine is not touched by it,
// and nothing is left when the engine is closed.
func TestCancelBetween(t *testing.T) {
	g, model := loadGolden(t, "qwen3moe/qwen3moe-f32")
	const tokens = 8
	least := leastCache(t, config(model, backends()["in process"]))
	for name, b := range map[string]engine.Backend{"in process": backends()["in process"], "child process": backends()["child process"]} {
		for _, test := range []struct {
			name  string
			run   func(ctx context.Context, cancel func(), s *engine.Session) (*engine.Result, error)
			wrote int // -1: no result
			err   error
		}{
			{"before the start", func(ctx context.Context, cancel func(), s *engine.Session) (*engine.Result, error) {
				cancel()
				return s.Generate(ctx, greedy(g.Prompt.IDs, tokens), silent)
			}, -1, context.Canceled},
			{"between two batches of the prompt", func(ctx context.Context, cancel func(), s *engine.Session) (*engine.Result, error) {
				return s.Generate(ctx, greedy(g.Prompt.IDs, tokens), silent) // by progress
			}, 0, context.Canceled},
			{"between two tokens", func(ctx context.Context, cancel func(), s *engine.Session) (*engine.Result, error) {
				n := 0
				return s.Generate(ctx, greedy(g.Prompt.IDs, tokens), func(engine.Token) error {
					if n++; n == 3 {
						cancel()
					}
					return nil
				})
			}, 3, context.Canceled},
			{"at the last token", func(ctx context.Context, cancel func(), s *engine.Session) (*engine.Result, error) {
				n := 0
				return s.Generate(ctx, greedy(g.Prompt.IDs, tokens), func(engine.Token) error {
					if n++; n == tokens {
						cancel()
						time.Sleep(5 * time.Millisecond) // whatever watches the context does what it does
					}
					return nil
				})
			}, tokens, nil},
			{"after the end", func(ctx context.Context, cancel func(), s *engine.Session) (*engine.Result, error) {
				defer cancel()
				return s.Generate(ctx, greedy(g.Prompt.IDs, tokens), silent)
			}, tokens, nil},
		} {
			t.Run(name+"/"+test.name, func(t *testing.T) {
				w := newWall(t)
				nothing := nothingLeft(t, w)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				cfg := config(model, b)
				cfg.FS, cfg.Batch, cfg.CacheBytes = w, 4, least
				if test.wrote == 0 {
					cfg.Progress = func(p engine.Progress) {
						if p.Phase == engine.PhasePrefill && p.Done < p.Total {
							cancel()
						}
					}
				}
				e, err := engine.Open(t.Context(), cfg)
				require.NoError(t, err)
				s := e.NewSession()
				var res *engine.Result
				err = within(t, func() (err error) { res, err = test.run(ctx, cancel, s); return err })
				require.ErrorIs(t, err, test.err)
				if test.wrote < 0 {
					require.Nil(t, res)
				} else {
					require.Equal(t, g.Runs["f32"].Greedy.IDs[:test.wrote], append([]int32{}, res.Tokens...))
				}
				for _, next := range []*engine.Session{s, e.NewSession()} {
					res, err := next.Generate(t.Context(), greedy(g.Prompt.IDs, tokens), silent)
					require.NoError(t, err)
					require.Equal(t, g.Runs["f32"].Greedy.IDs[:tokens], res.Tokens)
				}
				require.Zero(t, e.Report().Store.Failures)
				require.NoError(t, e.Close())
				nothing()
			})
		}
	}
}

// TestCancelWithoutExperts: a model that never waits for an expert stops as well.
func TestCancelWithoutExperts(t *testing.T) {
	g, model, _ := loadGoldenB(t, "gemma4/gemma4-ple-f32")
	for name, b := range map[string]engine.Backend{"in process": backends()["in process"], "child process": backends()["child process"]} {
		t.Run(name, func(t *testing.T) {
			e := open(t, config(model, b))
			require.Empty(t, e.Model.Banks)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			res, err := e.NewSession().Generate(ctx, greedy(g.Prompt.IDs, 8), func(engine.Token) error { cancel(); return nil })
			require.ErrorIs(t, err, context.Canceled)
			require.Len(t, res.Tokens, 1)
		})
	}
}

// TestCancelAtRandomPoints ends contexts anywhere in and after requests. Each request either ends with the context's error or has
// written the right text, and the next one is right.
func TestCancelAtRandomPoints(t *testing.T) {
	g, model := loadGolden(t, "qwen3moe/qwen3moe-f32")
	want := g.Runs["f32"].Greedy.IDs[:6]
	for name, b := range map[string]engine.Backend{"in process": backends()["in process"], "child process": backends()["child process"]} {
		t.Run(name, func(t *testing.T) {
			w := newWall(t)
			nothing := nothingLeft(t, w)
			cfg := config(model, b)
			cfg.FS = w
			cfg.CacheBytes = leastCache(t, cfg)
			e, err := engine.Open(t.Context(), cfg)
			require.NoError(t, err)
			run := func(ctx context.Context) error {
				res, err := e.NewSession().Generate(ctx, greedy(g.Prompt.IDs, len(want)), silent)
				if err == nil {
					require.Equal(t, want, res.Tokens)
				}
				return err
			}
			var usual time.Duration // what the last one took that nobody ended
			right := func() {
				start := time.Now()
				require.NoError(t, run(t.Context()))
				usual = time.Since(start)
			}
			right()
			rng := rand.New(rand.NewPCG(7, 0))
			var cancelled, finished int
			var late sync.WaitGroup
			for i := range 40 {
				ctx, cancel := context.WithCancel(t.Context())
				delay := time.Duration(rng.Int64N(int64(usual)))
				end := func() { late.Go(func() { time.Sleep(delay); cancel() }) }
				if i%10 != 0 {
					end()
				}
				err := within(t, func() error { return run(ctx) })
				if i%10 == 0 {
					end() // perhaps during the next request
				}
				switch {
				case err == nil:
					finished++
				default:
					require.ErrorIs(t, err, context.Canceled)
					cancelled++
				}
				right()
			}
			late.Wait()
			require.NotZero(t, cancelled)
			require.NotZero(t, finished)
			require.NoError(t, e.Close())
			nothing()
		})
	}
}

// TestCancelRestart ends the context while a backend is started in the place of a dead one.
func TestCancelRestart(t *testing.T) {
	g, model := loadGolden(t, "qwen3moe/qwen3moe-f32")
	self, err := os.Executable()
	require.NoError(t, err)
	dir := t.TempDir()
	slow, started, script := filepath.Join(dir, "slow"), filepath.Join(dir, "started"), filepath.Join(dir, "backend")
	require.NoError(t, os.WriteFile(script, fmt.Appendf(nil, `#!/bin/sh
if [ -e '%s' ]; then
	: >'%s'
	exec sleep 60
fi
exec '%s' %s
`, slow, started, self, childArg), 0o700))
	w := newWall(t)
	nothing := nothingLeft(t, w)
	cfg := config(model, engine.Backend{Path: script})
	cfg.FS = w
	cfg.CacheBytes = leastCache(t, cfg)
	e, err := engine.Open(t.Context(), cfg)
	require.NoError(t, err)
	s := e.NewSession()
	for range 2 {
		_, err = s.Generate(t.Context(), greedy(g.Prompt.IDs, 8), func(engine.Token) error {
			return syscall.Kill(e.BackendPID(), syscall.SIGKILL)
		})
		require.ErrorContains(t, err, "killed")
		require.NoError(t, os.WriteFile(slow, nil, 0o600))
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			for end := time.Now().Add(prompt); time.Now().Before(end); time.Sleep(time.Millisecond) {
				if _, err := os.Stat(started); !errors.Is(err, os.ErrNotExist) {
					break
				}
			}
			cancel()
		}()
		err = within(t, func() error { _, err := s.Generate(ctx, greedy(g.Prompt.IDs, 8), silent); return err })
		require.ErrorIs(t, err, context.Canceled)
		require.NoError(t, os.Remove(slow))
		require.NoError(t, os.Remove(started))
		res, err := s.Generate(t.Context(), greedy(g.Prompt.IDs, 8), silent)
		require.NoError(t, err)
		require.Equal(t, g.Runs["f32"].Greedy.IDs[:8], res.Tokens)
	}
	require.NoError(t, e.Close())
	nothing()
}

// TestCloseBetweenTokens: Close ends a text that is between two tokens.
func TestCloseBetweenTokens(t *testing.T) {
	g, model := loadGolden(t, "qwen3moe/qwen3moe-f32")
	w := newWall(t)
	nothing := nothingLeft(t, w)
	cfg := config(model, backends()["in process"])
	cfg.FS = w
	e, err := engine.Open(t.Context(), cfg)
	require.NoError(t, err)
	closed := make(chan error, 1)
	end := sync.OnceValue(func() error {
		go func() { closed <- e.Close() }()
		_, err := e.NewSession().Generate(t.Context(), greedy(g.Prompt.IDs, 1), silent) // waits for its turn until the engine closes
		if err == nil {
			return errors.New("it had a turn while another had one")
		}
		return nil
	})
	const tokens = 90 // a few are written until Close is noticed
	res, err := e.NewSession().Generate(t.Context(), greedy(g.Prompt.IDs, tokens), func(engine.Token) error { return within(t, end) })
	require.ErrorContains(t, err, "the engine is closed")
	require.Less(t, len(res.Tokens), tokens)
	require.NoError(t, <-closed)
	nothing()
}
