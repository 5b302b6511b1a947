// Package pool runs the chunks of one job at a time on a fixed number of threads.
//
//	p := pool.New(4, func(worker, chunk int) { sum[chunk] = add(rows[chunk]) })
//	defer p.Close()
//	p.Run(len(rows)) // returns when every chunk has run
//
// The goroutine that calls Run is worker 0. Chunks are handed out one by one, so an uneven chunk or a core that someone
// else uses does not hold up the rest, and a worker that has not woken up yet is not waited for. Which worker runs a
// chunk is therefore not determined: a chunk's result must not depend on it.
//
// A wait spins for 100 microseconds, because the next job of a token usually follows at once, and then sleeps in the
// kernel: an idle pool uses no CPU. A Run with sleeping workers costs one system call more. Who spins lets others that want the core have
// it: the engine, which answers routes meanwhile, or the worker that is waited for.
//
// # Concurrency
//
// One Run at a time. The job may not call Run.
package pool

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/bigmoe/bigmoe/sdk/compute/futex"
)

const (
	spinFor = 100 * time.Microsecond // longer than the engine takes to answer a route, so that no worker sleeps within a token
	nap     = time.Hour              // sleepers are woken; they need no timeout

	countBits = 31
	countMask = 1<<countBits - 1
)

// MaxChunks is the most chunks of one Run.
const MaxChunks = countMask

// Pool is a set of threads.
type Pool struct {
	workers int
	do      func(worker, chunk int)

	// ticket is the job in progress: its number of chunks << countBits | the first chunk nobody has claimed.
	ticket atomic.Uint64
	_      [56]byte      // what claims write and what waits read are on different cache lines
	done   atomic.Uint32 // chunks of the job that have run
	waits  atomic.Uint32 // 1: Run sleeps on done
	_      [56]byte
	jobs   atomic.Uint32 // counts jobs: what idle workers wait on
	sleeps atomic.Int32  // workers that sleep on jobs
	closed atomic.Bool
	exit   sync.WaitGroup
}

// New starts workers-1 threads that run do; workers is at least 1. do must be safe for concurrent use with different
// chunks, and no two calls at a time get the same worker number, 0 <= worker < workers.
func New(workers int, do func(worker, chunk int)) *Pool {
	p := &Pool{workers: max(workers, 1), do: do}
	p.exit.Add(p.workers - 1)
	for w := 1; w < p.workers; w++ {
		go p.work(w)
	}
	return p
}

// Workers returns the number of threads, the caller of Run included.
func (p *Pool) Workers() int { return p.workers }

// Run calls do for every chunk from 0 to chunks-1 and returns when all calls have returned. What the caller wrote before
// is visible to them, and what they wrote is visible after. It does not allocate.
func (p *Pool) Run(chunks int) {
	if p.workers == 1 || chunks <= 1 {
		for c := range chunks {
			p.do(0, c)
		}
		return
	}
	p.done.Store(0)
	p.ticket.Store(uint64(chunks) << countBits)
	p.jobs.Add(1)
	if p.sleeps.Load() > 0 {
		futex.Wake(&p.jobs)
	}
	p.drain(0)
	all := uint32(chunks)
	if spin(func() bool { return p.done.Load() == all }) {
		return
	}
	p.waits.Store(1)
	for d := p.done.Load(); d != all; d = p.done.Load() {
		futex.Wait(&p.done, d, nap)
	}
	p.waits.Store(0)
}

// Close ends the threads and waits for them.
func (p *Pool) Close() {
	if p.closed.Swap(true) {
		return
	}
	p.jobs.Add(1)
	futex.Wake(&p.jobs)
	p.exit.Wait()
}

func (p *Pool) work(worker int) {
	defer p.exit.Done()
	var seen uint32
	for {
		if !spin(func() bool { return p.jobs.Load() != seen }) {
			p.sleeps.Add(1)
			for p.jobs.Load() == seen {
				futex.Wait(&p.jobs, seen, nap)
			}
			p.sleeps.Add(-1)
		}
		seen = p.jobs.Load()
		if p.closed.Load() {
			return
		}
		p.drain(worker)
	}
}

// drain runs chunks until none is left to claim. A claim always belongs to the job in progress: Run does not return,
// and so does not start another, before the chunk is done.
func (p *Pool) drain(worker int) {
	for {
		t := p.ticket.Load()
		chunk, chunks := t&countMask, t>>countBits
		if chunk >= chunks {
			return
		}
		if !p.ticket.CompareAndSwap(t, t+1) {
			continue
		}
		p.do(worker, int(chunk))
		if p.done.Add(1) == uint32(chunks) && p.waits.Load() != 0 {
			futex.Wake(&p.done)
		}
	}
}

// Gate holds up chunks that need what other chunks of the same Run make. The chunk that opens it must come before those that
// wait for it: chunks are claimed in order, so it is then done or being run.
type Gate struct {
	open  atomic.Uint32
	waits atomic.Int32
}

// Close makes Wait wait. It must not run at the same time as the other methods.
func (g *Gate) Close() { g.open.Store(0) }

// Open lets everybody through. What the caller wrote before is visible to them.
func (g *Gate) Open() {
	g.open.Store(1)
	if g.waits.Load() > 0 {
		futex.Wake(&g.open)
	}
}

// Wait returns when the gate is open.
func (g *Gate) Wait() {
	if spin(func() bool { return g.open.Load() != 0 }) {
		return
	}
	g.waits.Add(1)
	for g.open.Load() == 0 {
		futex.Wait(&g.open, 0, nap)
	}
	g.waits.Add(-1)
}

// spin looks until ok or spinFor has passed.
func spin(ok func() bool) bool {
	for start := time.Now(); ; {
		for range 64 {
			if ok() {
				return true
			}
		}
		if time.Since(start) > spinFor {
			return false
		}
		futex.Yield()
	}
}
