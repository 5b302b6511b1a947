package program

import "github.com/bigmoe/bigmoe/sdk/fault"

// fixed is a state whose size does not depend on how long the text is: what a convolution or a recurrence keeps of
// earlier tokens. It stands for exactly the positions evaluated so far, so it can be emptied but not trimmed.
type fixed struct {
	name     string
	elements int
	f32      []float32 // zero at position 0
}

func (f *fixed) bytes() int { return 4 * f.elements }

// fixedFor returns state i of the op.
func (c *compiler) fixedFor(i int) *fixed {
	name := c.op.States[i]
	for _, f := range c.p.fixed {
		if f.name == name {
			return f
		}
	}
	return c.fixedBeside(i, int(c.states[name].Elements))
}

// fixedBeside returns a state of its own for what is kept beside state i of the op.
func (c *compiler) fixedBeside(i, elements int) *fixed {
	f := &fixed{name: c.op.States[i], elements: elements}
	c.p.fixed = append(c.p.fixed, f)
	return f
}

// rewind makes the fixed states those of the given position, which only 0 and the current one can be.
func (m *Machine) rewind(position int) error {
	switch {
	case position == 0:
		for _, f := range m.fixed {
			clear(f.f32)
		}
		m.torn = false
	case len(m.fixed) == 0:
	case m.torn:
		return m.tornError()
	case position != m.length:
		return fault.Bugf("trim to position %d of %d: state %q can only be reset", position, m.length, m.fixed[0].name)
	}
	return nil
}

func (m *Machine) tornError() error {
	return fault.Bugf("state %q is undefined since an evaluation failed: it must be reset", m.fixed[0].name)
}
