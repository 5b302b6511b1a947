package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/bigmoe/bigmoe/sdk/fault"
)

// How long an orderly end is waited for. Only a read that hangs takes longer, for example on a network drive that is gone:
// nothing can interrupt it.
const patience = 500 * time.Millisecond // of a caller whose context ended

var closePatience = 5 * time.Second // of Close

var errClosed = fault.Userf("the engine is closed")

// turns lets one evaluation at a time have the engine, until it closes.
type turns struct {
	taken chan struct{} // full while somebody evaluates
	life  context.Context
	end   context.CancelFunc
}

func newTurns() turns {
	t := turns{taken: make(chan struct{}, 1)}
	t.life, t.end = context.WithCancel(context.Background())
	return t
}

// take runs f in its turn. f's context ends with ctx and when the engine closes.
func (t *turns) take(ctx context.Context, f func(context.Context) error) error {
	select {
	case t.taken <- struct{}{}:
		defer func() { <-t.taken }()
	case <-ctx.Done():
	case <-t.life.Done():
	}
	if t.life.Err() != nil {
		return errClosed
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	both, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(t.life, cancel)()
	err := f(both)
	if err != nil && ctx.Err() == nil && t.life.Err() != nil {
		return errClosed
	}
	return err
}

// close ends the evaluation in progress and all that wait for their turn, and lets nobody have one any more.
func (t *turns) close() {
	t.end()
	t.taken <- struct{}{}
}

// request runs f in its turn; the end of f's context also ends its waits for experts.
func (e *Engine) request(ctx context.Context, f func(context.Context) error) error {
	return e.turns.take(ctx, func(ctx context.Context) error {
		defer e.router.heed(ctx)()
		return f(ctx)
	})
}

// try returns what f returns. When ctx ends and f does not come back within the caller's patience, f is left alone, and late is
// called with its result whenever it comes.
func try[T any](ctx context.Context, f func() (T, error), late func(T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	go func() {
		v, err := f()
		done <- result{v, err}
	}()
	r, ok := await(ctx, done)
	if !ok {
		go func() {
			r := <-done
			late(r.value, r.err)
		}()
		return r.value, ctx.Err()
	}
	return r.value, r.err
}

// await receives what comes from done. When ctx ends and nothing comes within the caller's patience, it is not waited for.
func await[T any](ctx context.Context, done <-chan T) (v T, ok bool) {
	select {
	case v = <-done:
		return v, true
	case <-ctx.Done():
	}
	select {
	case v = <-done:
		return v, true
	case <-time.After(patience):
		return v, false
	}
}

// gate passes reports of progress on, one at a time, until it is shut.
type gate struct {
	mu   sync.Mutex
	pass func(Progress)
}

func (g *gate) report(p Progress) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.pass != nil {
		g.pass(p)
	}
}

func (g *gate) shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.pass = nil
}

// Close ends the calls under way, which return an error, then the backend, and gives the memory back. Later calls fail, and
// Close does nothing more. It must not be called from a function that the engine calls.
//
// It waits for reads that have begun, up to five seconds; if one hangs for longer, the error says so and the rest is
// given back when it ends.
func (e *Engine) Close() error {
	e.closing.Do(func() {
		done := make(chan error, 1)
		go func() { done <- e.free() }()
		select {
		case e.closed = <-done:
		case <-time.After(closePatience):
			e.closed = fmt.Errorf("%s: a read has not ended within %v: memory and files are given back when it does", e.File.Path(), closePatience)
		}
	})
	return e.closed
}

// free gives back what the engine holds, in the order in which one part needs another.
func (e *Engine) free() error {
	e.turns.close()
	e.remember()
	var errs []error
	if dev := e.current(); dev != nil {
		errs = append(errs, dev.Close())
	}
	if e.router != nil && e.router.store != nil {
		errs = append(errs, e.router.store.Close())
	}
	if e.rows != nil {
		close(e.rows.ask)
	}
	e.readers.Wait()
	e.rowFiles.close()
	if e.memory != nil {
		errs = append(errs, e.memory.Close())
	}
	return errors.Join(append(errs, e.File.Close())...)
}
