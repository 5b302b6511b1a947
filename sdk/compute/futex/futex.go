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

// spin is how long WaitSpin looks before it sleeps: about half of what a futex round trip costs.
const spin = 2 * time.Microsecond

// WaitSpin is Wait with a short spin first, for words that are about to change. It reports whether the word differs
// from old.
func WaitSpin(word *atomic.Uint32, old uint32, timeout time.Duration) bool {
	if runtime.GOMAXPROCS(0) > 1 {
		for start := time.Now(); time.Since(start) < spin; {
			for range 16 { // looking costs much less than the clock
				if word.Load() != old {
					return true
				}
			}
		}
	}
	Wait(word, old, timeout)
	return word.Load() != old
}
