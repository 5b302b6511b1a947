package backend

import (
	"context"
	"fmt"
	"time"
)

// Restarts spaces out the starts of a backend that keeps dying. The first follows at once: a crash is rare. Without an
// evaluation that worked in between, the pauses double, and after some deaths in a row requests fail at once, until
// half a minute has passed since the last try. The zero value is ready to use; one goroutine at a time.
type Restarts struct {
	failed int       // starts without an evaluation that worked since
	last   time.Time // of them
	unit   time.Duration
}

const (
	firstPause  = 100 * time.Millisecond
	giveUpAfter = 6
	restPauses  = 300 // units of rest, after which one more start is tried
)

// Begin waits until the backend may be started again, and counts that start. why is what ended it the last time, which the
// error repeats when it is not to be started now.
func (r *Restarts) Begin(ctx context.Context, why error) error {
	unit := r.unit
	if unit == 0 {
		unit = firstPause
	}
	var pause time.Duration
	switch {
	case r.failed >= giveUpAfter:
		if left := restPauses*unit - time.Since(r.last); left > 0 {
			return fmt.Errorf("the backend failed %d times in a row and is not started again for %v; the last time: %w",
				r.failed, left.Round(time.Second), why)
		}
	case r.failed > 0:
		pause = unit << (r.failed - 1)
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
	}
	r.failed, r.last = r.failed+1, time.Now()
	return nil
}

// Worked says that an evaluation did: the next death is a first one.
func (r *Restarts) Worked() { r.failed = 0 }

// Cancelled says that nobody waited for the start that Begin counted: it is not known what would have become of it.
func (r *Restarts) Cancelled() { r.failed-- }
