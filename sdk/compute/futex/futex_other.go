//go:build !linux

package futex

import (
	"runtime"
	"sync/atomic"
	"time"
)

// Wait polls while word holds old, at most timeout.
func Wait(word *atomic.Uint32, old uint32, timeout time.Duration) {
	end := time.Now().Add(timeout)
	pause := 10 * time.Microsecond
	for word.Load() == old && time.Now().Before(end) {
		time.Sleep(pause)
		pause = min(2*pause, 200*time.Microsecond)
	}
}

// waitHolding does nothing: a poll is no system call that lasts.
func waitHolding(*atomic.Uint32, uint32, time.Duration) {}

// Wake does nothing: waiters poll.
func Wake(*atomic.Uint32) {}

// Yield lets another thread that waits for this core have it, as far as the Go scheduler knows of it.
func Yield() { runtime.Gosched() }
