package engine

import "time"

// SetClosePatience changes how long Close waits for reads, and returns what puts it back.
func SetClosePatience(d time.Duration) (undo func()) {
	was := closePatience
	closePatience = d
	return func() { closePatience = was }
}
