package engine

import (
	"context"
	"time"

	"github.com/bigmoe/bigmoe/engine/backend"
)

// SetClosePatience changes how long Close waits for reads, and returns what puts it back.
func SetClosePatience(d time.Duration) (undo func()) {
	was := closePatience
	closePatience = d
	return func() { closePatience = was }
}

// SwapBackend goes on with another backend on the same memory: the same pages hold the weights and the cached experts, which two engines
// never have alike.
func (e *Engine) SwapBackend(ctx context.Context, b Backend) error {
	e.cfg.Backend = b
	e.owner, e.sequence = nil, nil
	e.restarts = backend.Restarts{}
	return e.revive(ctx)
}
