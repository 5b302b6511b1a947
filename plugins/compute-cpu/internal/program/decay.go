package program

import "math"

// decays emits the step that takes the exponentials of the gamma of a delta net with a number for every key channel
// (specs/bailingmoe3.md 4 and 6), once for all columns, and returns them. It returns nil where a head has one number.
func (c *compiler) decays(valueHeads int) *ref {
	gamma := c.inWhole(4)
	if gamma.width() == valueHeads {
		return nil
	}
	decays := c.make(4 * gamma.width())
	c.emit(&rowwise{cost: 16 * gamma.width(), row: func(m *Machine, _, i int) {
		dst := m.floats(decays, i)
		for j, v := range m.floats(gamma, i) {
			dst[j] = float32(math.Exp(float64(v)))
		}
	}})
	decays = c.use(decays.buffer)
	return &decays
}

// decay returns the factor of the state of one head in token t, after it has multiplied columns, some of that state, by
// those of their rows if there are such.
func (s *deltaNet) decay(m *Machine, t, head int, columns []float32) float32 {
	if s.decays == nil {
		return float32(math.Exp(float64(m.floats(s.gamma, t)[head])))
	}
	rows := m.floats(*s.decays, t)[head*s.dim:][:s.dim]
	for j := 0; j < len(columns); j += s.dim {
		m.set.Mul(columns[j:j+s.dim], columns[j:j+s.dim], rows)
	}
	return 1
}
