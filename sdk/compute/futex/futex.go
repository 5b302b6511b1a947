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

// spins is how often WaitSpin looks before it sleeps: about 5 µs, half of what a futex round trip costs.
const spins = 200

// WaitSpin is Wait with a short spin first, for words that are about to change. It reports whether the word differs
// from old.
func WaitSpin(word *atomic.Uint32, old uint32, timeout time.Duration) bool {
	for range spins {
		if word.Load() != old {
			return true
		}
		if runtime.GOMAXPROCS(0) == 1 {
			break
		}
	}
	Wait(word, old, timeout)
	return word.Load() != old
}
