package engine_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/engine"
	"github.com/bigmoe/bigmoe/engine/vfs"
	"github.com/bigmoe/bigmoe/engine/vfs/errfs"
	"github.com/bigmoe/bigmoe/sdk/fault"
)

// prompt is how long a call may take to return after its context ended. Nothing below takes a tenth of it, on a busy machine
// either, unless it waits for a read that hangs, which is what it must not do.
const prompt = time.Minute

// wall is a file system in front of which reads can be made to hang.
type wall struct {
	*errfs.FS
	mu   sync.Mutex
	gate chan struct{}
	hit  chan struct{} // closed when a read hangs
}

func newWall(t *testing.T) *wall {
	w := &wall{FS: errfs.Wrap(vfs.OS())}
	t.Cleanup(w.open)
	return w
}

// shut makes reads hang for which which says so.
func (w *wall) shut(which func(errfs.Read) bool) {
	gate, hit := make(chan struct{}), make(chan struct{})
	reached := sync.OnceFunc(func() { close(hit) })
	w.mu.Lock()
	w.gate, w.hit = gate, hit
	w.mu.Unlock()
	w.Set(func(r errfs.Read) errfs.Fault {
		if !which(r) {
			return errfs.Fault{}
		}
		reached()
		return errfs.Fault{Block: gate}
	})
}

// open lets all reads go on.
func (w *wall) open() {
	w.Set(nil)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.gate != nil {
		close(w.gate)
		w.gate = nil
	}
}

func anyRead(errfs.Read) bool      { return true }
func expertRead(r errfs.Read) bool { return r.Len >= vfs.Align/2 }
func rowRead(r errfs.Read) bool    { return r.Len < vfs.Align/2 }

// whenHit runs f once a read hangs at the wall.
func (w *wall) whenHit(f func()) {
	w.mu.Lock()
	hit := w.hit
	w.mu.Unlock()
	go func() { <-hit; f() }()
}

// within fails the test if f takes longer than a prompt return.
func within(t *testing.T, f func() error) error {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		return err
	case <-time.After(prompt):
		t.Fatalf("did not return\n%s", stacks())
		return nil
	}
}

// stacks says what every goroutine does.
func stacks() []byte {
	buf := make([]byte, 1<<20)
	return buf[:runtime.Stack(buf, true)]
}

// nothingLeft waits until goroutines, children and open files are no more than they were when it was called.
func nothingLeft(t *testing.T, w *wall) (check func()) {
	t.Helper()
	goroutines, children := runtime.NumGoroutine(), childProcesses(t)
	return func() {
		t.Helper()
		for end := time.Now().Add(prompt); ; time.Sleep(2 * time.Millisecond) {
			g, f, c := runtime.NumGoroutine(), w.OpenFiles(), childProcesses(t)
			if g <= goroutines && f == 0 && c == children {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("%d goroutines of %d before, %d open files, %d children of %d\n%s", g, goroutines, f, c, children, stacks())
			}
		}
	}
}

// childProcesses counts the children of this process, or returns 0 where that cannot be known.
func childProcesses(t *testing.T) int {
	tasks, err := filepath.Glob("/proc/self/task/*/children")
	require.NoError(t, err)
	n := 0
	for _, task := range tasks {
		text, err := os.ReadFile(task)
		if err == nil { // or the thread has ended meanwhile
			n += len(strings.Fields(string(text)))
		}
	}
	return n
}

// TestCancelOpen ends the context in every phase of Open, also while a read hangs. Nothing stays open, and the next
// Open works.
func TestCancelOpen(t *testing.T) {
	g, model := loadGolden(t, "qwen3moe/qwen3moe-f32")
	all := backends()
	for _, test := range []struct {
		name    string
		backend string
		prepare func(cfg *engine.Config, w *wall, cancel func())
	}{
		{"before", "in process", func(_ *engine.Config, _ *wall, cancel func()) { cancel() }},
		{"in the recipe", "in process", func(cfg *engine.Config, _ *wall, cancel func()) {
			cfg.Recipes = endless{found: cancel}
		}},
		{"backend start", "deaf", func(_ *engine.Config, _ *wall, cancel func()) { time.AfterFunc(50*time.Millisecond, cancel) }},
		{"first weight", "in process", func(cfg *engine.Config, _ *wall, cancel func()) {
			cfg.Progress = func(engine.Progress) { cancel() }
		}},
		{"read hangs", "in process", func(_ *engine.Config, w *wall, cancel func()) { w.shut(anyRead); w.whenHit(cancel) }},
		{"read hangs, child process", "child process", func(_ *engine.Config, w *wall, cancel func()) { w.shut(anyRead); w.whenHit(cancel) }},
		{"read of a weight hangs", "in process", func(_ *engine.Config, w *wall, cancel func()) {
			w.shut(func(r errfs.Read) bool { return r.Len > 2*vfs.Align })
			w.whenHit(cancel)
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWall(t)
			nothing := nothingLeft(t, w)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			b := all[test.backend]
			if test.backend == "deaf" {
				b = engine.Backend{Path: "/bin/sleep", Args: []string{"60"}}
			}
			cfg := config(model, b)
			cfg.FS = w
			good := cfg
			test.prepare(&cfg, w, cancel)
			err := within(t, func() error { _, err := engine.Open(ctx, cfg); return err })
			require.ErrorIs(t, err, context.Canceled)
			w.open()
			nothing()

			good.Backend = all["in process"]
			e, err := engine.Open(t.Context(), good)
			require.NoError(t, err)
			res, err := e.NewSession().Generate(t.Context(), greedy(g.Prompt.IDs, 4), nil)
			require.NoError(t, err)
			require.Equal(t, g.Runs["f32"].Greedy.IDs[:4], res.Tokens)
			require.NoError(t, e.Close())
			nothing()
		})
	}
}

// endless finds a recipe that never answers.
type endless struct{ found func() }

func (r endless) Find(string) (engine.Recipe, error) {
	module, err := os.ReadFile("recipehost/testdata/hostile/loop.wasm")
	time.AfterFunc(20*time.Millisecond, r.found)
	return engine.Recipe{Name: "qwen3moe", Module: module}, err
}

// TestCancelEvaluation ends the context of a prompt, a token, a scoring and a wait for one's turn while a read hangs. After
// the reads go on, the same session writes the right text.
func TestCancelEvaluation(t *testing.T) {
	g, model := loadGolden(t, "qwen3moe/qwen3moe-f32")
	for name, b := range map[string]engine.Backend{"in process": backends()["in process"], "child process": backends()["child process"]} {
		for _, test := range []struct {
			name string
			run  func(ctx context.Context, s *engine.Session, w *wall, cancel func()) error
		}{
			{"prompt, expert", func(ctx context.Context, s *engine.Session, w *wall, cancel func()) error {
				w.shut(expertRead)
				w.whenHit(cancel)
				_, err := s.Generate(ctx, greedy(g.Prompt.IDs, 8), nil)
				return err
			}},
			{"prompt, row", func(ctx context.Context, s *engine.Session, w *wall, cancel func()) error {
				w.shut(rowRead)
				w.whenHit(cancel)
				_, err := s.Generate(ctx, greedy(g.Prompt.IDs, 8), nil)
				return err
			}},
			{"token, expert", func(ctx context.Context, s *engine.Session, w *wall, cancel func()) error {
				first := sync.OnceFunc(func() { w.shut(expertRead); w.whenHit(cancel) })
				_, err := s.Generate(ctx, greedy(g.Prompt.IDs, 64), func(engine.Token) error { first(); return nil })
				return err
			}},
			{"token, row", func(ctx context.Context, s *engine.Session, w *wall, cancel func()) error {
				first := sync.OnceFunc(func() { w.shut(rowRead); w.whenHit(cancel) })
				_, err := s.Generate(ctx, greedy(g.Prompt.IDs, 64), func(engine.Token) error { first(); return nil })
				return err
			}},
			{"score, expert", func(ctx context.Context, s *engine.Session, w *wall, cancel func()) error {
				w.shut(expertRead)
				w.whenHit(cancel)
				return s.Score(ctx, g.Prompt.IDs, 0, func(int, []float32) error { return nil })
			}},
		} {
			t.Run(name+"/"+test.name, func(t *testing.T) {
				w := newWall(t)
				nothing := nothingLeft(t, w)
				cfg := config(model, b)
				cfg.FS, cfg.Readers = w, 2
				cfg.CacheBytes = leastCache(t, cfg)
				e, err := engine.Open(t.Context(), cfg)
				require.NoError(t, err)
				s := e.NewSession()
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				require.ErrorIs(t, within(t, func() error { return test.run(ctx, s, w, cancel) }), context.Canceled)
				w.open()
				res, err := s.Generate(t.Context(), greedy(g.Prompt.IDs, 8), nil)
				require.NoError(t, err)
				require.Equal(t, g.Runs["f32"].Greedy.IDs[:8], res.Tokens)
				require.Zero(t, e.Report().Store.Failures)
				require.NoError(t, e.Close())
				nothing()
			})
		}
	}
}

// TestTurns: whoever waits for the engine can give up, and Close ends the call under way and those that wait.
func TestTurns(t *testing.T) {
	g, model := loadGolden(t, "qwen3moe/qwen3moe-f32")
	for name, b := range map[string]engine.Backend{"in process": backends()["in process"], "child process": backends()["child process"]} {
		t.Run(name, func(t *testing.T) {
			w := newWall(t)
			nothing := nothingLeft(t, w)
			cfg := config(model, b)
			cfg.FS = w
			cfg.CacheBytes = leastCache(t, cfg)
			e, err := engine.Open(t.Context(), cfg)
			require.NoError(t, err)
			w.shut(expertRead)
			busy, waiting := make(chan error, 1), make(chan error, 1)
			go func() {
				_, err := e.NewSession().Generate(t.Context(), greedy(g.Prompt.IDs, 8), nil)
				busy <- err
			}()
			hit := make(chan struct{})
			w.whenHit(func() { close(hit) })
			<-hit

			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
			defer cancel()
			err = within(t, func() error {
				_, err := e.NewSession().Generate(ctx, greedy(g.Prompt.IDs, 8), nil)
				return err
			})
			require.ErrorIs(t, err, context.DeadlineExceeded)

			go func() { waiting <- e.NewSession().Score(t.Context(), g.Prompt.IDs, 0, nil) }()
			closed := make(chan error, 2)
			for range 2 {
				go func() { closed <- e.Close() }()
			}
			for _, call := range []chan error{busy, waiting} {
				err := within(t, func() error { return <-call })
				require.ErrorContains(t, err, "the engine is closed")
				require.Equal(t, fault.User, fault.KindOf(err))
			}
			w.open()
			require.NoError(t, within(t, func() error { return <-closed }))
			require.NoError(t, within(t, func() error { return <-closed }))
			_, err = e.NewSession().Generate(t.Context(), greedy(g.Prompt.IDs, 8), nil)
			require.ErrorContains(t, err, "the engine is closed")
			nothing()
		})
	}
}

// TestCloseDoesNotWaitForEver: a read that hangs is named instead, and what it holds is given back when it ends.
func TestCloseDoesNotWaitForEver(t *testing.T) {
	defer engine.SetClosePatience(50 * time.Millisecond)()
	g, model := loadGolden(t, "qwen3moe/qwen3moe-f32")
	w := newWall(t)
	nothing := nothingLeft(t, w)
	cfg := config(model, backends()["in process"])
	cfg.FS = w
	cfg.CacheBytes = leastCache(t, cfg)
	e, err := engine.Open(t.Context(), cfg)
	require.NoError(t, err)
	w.shut(expertRead)
	ctx, cancel := context.WithCancel(t.Context())
	w.whenHit(cancel)
	_, err = e.NewSession().Generate(ctx, greedy(g.Prompt.IDs, 8), nil)
	require.ErrorIs(t, err, context.Canceled)
	err = within(t, e.Close)
	require.ErrorContains(t, err, filepath.Base(model))
	require.ErrorContains(t, err, "a read has not ended")
	w.open()
	nothing()
}

// TestEnginesSideBySide runs engines at once in one process: two models with two backends, and two on one file. Each
// writes what it writes alone and keeps to its own budget.
func TestEnginesSideBySide(t *testing.T) {
	gA, modelA := loadGolden(t, "qwen3moe/qwen3moe-f32")
	gB, modelB := loadGolden(t, "qwen2moe/qwen2moe-f32")
	all := backends()
	type run struct {
		name string
		cfg  engine.Config
		g    *golden
	}
	runs := []run{
		{"in process", config(modelA, all["in process"]), gA},
		{"child process", config(modelB, all["child process"]), gB},
		{"the same file", config(modelA, all["in process"]), gA},
		{"the same file, another process", config(modelA, all["child process"]), gA},
	}
	for i := range runs {
		runs[i].cfg.CacheBytes = leastCache(t, runs[i].cfg) * int64(1+i)
		runs[i].cfg.MemoryBytes = int64(i+1) << 30
	}
	engines := make([]*engine.Engine, len(runs))
	for i, r := range runs {
		engines[i] = open(t, r.cfg)
	}
	var wg sync.WaitGroup
	errs := make([]error, len(runs))
	for i, r := range runs {
		wg.Go(func() {
			for range 2 {
				res, err := engines[i].NewSession().Generate(t.Context(), greedy(r.g.Prompt.IDs, 12), nil)
				if err != nil {
					errs[i] = err
				} else if want := r.g.Runs["f32"].Greedy.IDs[:12]; fmt.Sprint(res.Tokens) != fmt.Sprint(want) {
					errs[i] = fmt.Errorf("wrote %v, alone %v", res.Tokens, want)
				}
			}
		})
	}
	wg.Wait()
	for i, r := range runs {
		require.NoError(t, errs[i], r.name)
		b := engines[i].Report().Budget
		require.Equal(t, r.cfg.CacheBytes, b.CacheBytes, r.name)
		require.Equal(t, r.cfg.MemoryBytes, b.LimitBytes, r.name)
		require.LessOrEqual(t, engines[i].Report().Store.ResidentBytes, b.CacheBytes, r.name)
	}
	require.NoError(t, engines[0].Close())
	res, err := engines[2].NewSession().Generate(t.Context(), greedy(gA.Prompt.IDs, 4), nil)
	require.NoError(t, err, "the other engine on the file is closed")
	require.Equal(t, gA.Runs["f32"].Greedy.IDs[:4], res.Tokens)
}
