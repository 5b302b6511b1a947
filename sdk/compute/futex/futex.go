// Package futex waits for a 32-bit word in shared memory to change, across processes.
//
//	for word.Load() == old {
//		futex.Wait(word, old, time.Second)
//	}
//
// On Linux a wait is a futex system call, elsewhere a poll that backs off to 200 microseconds. Wakes may be spurious:
// always re-check the word. Safe for concurrent use.
package futex

import (
	"runtime"
	"sync/atomic"
	"time"
)

// Brief is how long to spin for a word that may as well not change for long: about half of what a sleep and a wake cost.
const Brief = 2 * time.Microsecond

// hold is how long WaitSpin sleeps before Go's scheduler may know of it: longer than a layer takes. The scheduler takes the processor away
// from who sleeps for long, and then looks every 20 microseconds for more to take (docs/experiments/idle-processors.md). Meanwhile a
// garbage collection waits for the sleeper.
const hold = 4 * time.Millisecond

var holding atomic.Int32 // goroutines that sleep so; one processor is left to the others

// WaitSpin is Wait that first looks for the given time without sleeping, and lets others that want the core have it meanwhile. It reports
// whether the word differs from old.
func WaitSpin(word *atomic.Uint32, old uint32, spin, timeout time.Duration) bool {
	processors := runtime.GOMAXPROCS(0)
	if processors > 1 {
		for start := time.Now(); time.Since(start) < spin; Yield() {
			for range 16 { // looking costs much less than the clock
				if word.Load() != old {
					return true
				}
			}
		}
	}
	if int(holding.Add(1)) < processors {
		waitHolding(word, old, min(hold, timeout))
	}
	holding.Add(-1)
	if word.Load() == old {
		Wait(word, old, timeout)
	}
	return word.Load() != old
}
