package program

import "math"

// channelDelta is gated_delta_net with a decay for every key channel (specs/bailingmoe3.md 4 and 6), token by token. For
// every value head h
//
//	S   = diag(exp(gamma_h)) S
//	e   = beta[h] * (v_h - S^T k_g)
//	S   = S + k_g e^T
//	o_h = S^T q_g
//
// A column of S meets no other, so workers share the columns: each takes its own through all tokens of the batch while
// they stay in the processor's cache.
type channelDelta struct {
	q, k, v, beta, decays, out ref
	heads                      deltaHeads

	memory *fixed // for every value head, S transposed: row j is column j
	blocks int    // chunks of one head
}

// deltaColumns is how many columns one worker takes at a time: 16 KiB of state with heads of 128.
const deltaColumns = 32

// channelDelta emits the exponentials of gamma, taken once for all columns, and then the recurrence.
func (c *compiler) channelDelta(h deltaHeads) error {
	gamma := c.inWhole(4)
	decays := c.make(4 * gamma.width())
	c.emit(&rowwise{cost: 16 * gamma.width(), row: func(m *Machine, _, i int) {
		dst := m.floats(decays, i)
		for j, v := range m.floats(gamma, i) {
			dst[j] = float32(math.Exp(float64(v)))
		}
	}})
	s := &channelDelta{heads: h, q: c.inWhole(0), k: c.inWhole(1), v: c.inWhole(2), beta: c.inWhole(3), decays: c.use(decays.buffer),
		memory: c.fixedFor(0), blocks: ceilDiv(h.dim, deltaColumns)}
	s.out = c.out(0)
	c.emit(s)
	return nil
}

func (s *channelDelta) run(m *Machine) error {
	m.parallel(s, s.heads.values*s.blocks)
	return nil
}

func (s *channelDelta) chunk(m *Machine, _, chunk int) {
	d, head, from := s.heads.dim, chunk/s.blocks, chunk%s.blocks*deltaColumns
	to, key := min(from+deltaColumns, d), s.heads.key(head)
	columns := s.memory.f32[(head*d+from)*d : (head*d+to)*d]
	for t := range m.tokens {
		decays := m.floats(s.decays, t)[head*d:][:d]
		for j := 0; j < len(columns); j += d {
			m.set.Mul(columns[j:j+d], columns[j:j+d], decays)
		}
		m.set.Delta(columns, m.floats(s.out, t)[head*d:][from:to], m.floats(s.v, t)[head*d:][from:to],
			m.floats(s.q, t)[key*d:][:d], m.floats(s.k, t)[key*d:][:d], m.floats(s.beta, t)[head], 1)
	}
}
