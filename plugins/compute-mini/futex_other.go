//go:build !linux

package main

import (
	"sync/atomic"
	"time"
)

// wait polls, as docs/backend.md allows where there are no futexes.
func wait(word *atomic.Uint32, old uint32, limit time.Duration) {
	for end := time.Now().Add(limit); word.Load() == old && time.Now().Before(end); {
		time.Sleep(200 * time.Microsecond)
	}
}

func wake(*atomic.Uint32) {}
