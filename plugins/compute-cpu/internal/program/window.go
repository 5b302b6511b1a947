package program

import (
	"github.com/bigmoe/bigmoe/sdk/fault"
	"github.com/bigmoe/bigmoe/sdk/plan"
)

// positions is how many positions of a KV state are kept: all, or what the last window and a batch behind it take. A
// batch is stored as a whole before its first token looks back, so fewer would not do; and with as many, any state can
// go back by a batch.
func (c *compiler) positions(s *plan.State) int {
	all := uint64(c.p.options.Context)
	if s.Window == 0 || s.Window >= all {
		return int(all)
	}
	return int(min(all, s.Window-1+uint64(c.p.options.Batch)))
}

// windowsAt refuses a position to go back to whose window some cache has overwritten since.
func (m *Machine) windowsAt(position int) error {
	if position == 0 {
		return nil
	}
	for _, c := range m.caches {
		if first := max(0, position-c.window+1); c.window > 0 && first < m.written-c.layout.Positions {
			return fault.Unsupportedf("trim to position %d: state %q keeps the last %d of %d positions, and %d to %d are needed",
				position, c.name, c.layout.Positions, m.written, first, position-1)
		}
	}
	return nil
}
