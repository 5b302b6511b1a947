package program

import "math"

// deltaNet is gated_delta_net (specs/qwen35moe.md D9 to D13). Every value head h has a matrix S, which each token decays,
// corrects and reads:
//
//	S = exp(gamma[h]) * S
//	e = beta[h] * (v_h - S^T k_g)
//	S = S + k_g e^T
//	o_h = S^T q_g
//
// A column of S meets no other, so workers share the columns: each takes its own through all tokens of the batch while
// they stay in the processor's cache. The sums for a chunk of tokens at once (C1 to C5) would read S less often, which
// that order has already made cheap, and would round differently for every split into batches.
type deltaNet struct {
	q, k, v, beta, gamma, out ref

	memory           *fixed // for every value head, S transposed: row j is column j
	keyHeads, repeat int    // repeat value heads for each key head
	dim              int
	grouped          bool
	blocks           int  // chunks of one head
	decays           *ref // of every row of S, if they decay apart
}

// deltaColumns is how many columns one worker takes at a time: 16 KiB of state with heads of 128.
const deltaColumns = 32

func gatedDeltaNet(c *compiler) error {
	a := c.attrs
	decays := c.decays(int(a.Int("value_heads")))
	s := &deltaNet{decays: decays, q: c.inWhole(0), k: c.inWhole(1), v: c.inWhole(2), beta: c.inWhole(3), gamma: c.inWhole(4), memory: c.fixedFor(0),
		keyHeads: int(a.Int("key_heads")), dim: int(a.Int("head_dim")), grouped: a.Text("map") == "grouped"}
	s.repeat = int(a.Int("value_heads")) / s.keyHeads
	s.blocks = ceilDiv(s.dim, deltaColumns)
	s.out = c.out(0)
	c.emit(s)
	return nil
}

func (s *deltaNet) run(m *Machine) error {
	m.parallel(s, s.keyHeads*s.repeat*s.blocks)
	return nil
}

func (s *deltaNet) chunk(m *Machine, _, chunk int) {
	d, head, from := s.dim, chunk/s.blocks, chunk%s.blocks*deltaColumns
	to := min(from+deltaColumns, d)
	key := head % s.keyHeads
	if s.grouped {
		key = head / s.repeat
	}
	state := s.memory.f32[(head*d+from)*d : (head*d+to)*d]
	for t := range m.tokens {
		decay := s.decay(m, t, head, state)
		m.set.Delta(state, m.floats(s.out, t)[head*d:][from:to], m.floats(s.v, t)[head*d:][from:to],
			m.floats(s.q, t)[key*d:][:d], m.floats(s.k, t)[key*d:][:d], m.floats(s.beta, t)[head], decay)
	}
}

// l2Norm is l2_norm (specs/qwen35moe.md D5).
func l2Norm(c *compiler) error {
	x, eps := c.in(0), c.attrs.Float("eps")
	out := c.outOver(0, x)
	group := int(c.attrs.Int("group"))
	if group == 0 {
		group = x.width()
	}
	length := map[string]func(sum float64) float64{
		"add":      func(sum float64) float64 { return math.Sqrt(sum + eps) },
		"max":      func(sum float64) float64 { return max(math.Sqrt(sum), eps) },
		"add_mean": func(sum float64) float64 { return math.Sqrt(sum + float64(group)*eps) },
	}[c.attrs.Text("mode")]
	return c.rows(out, 2, func(m *Machine, _, i int) {
		src, dst := m.floats(x, i), m.floats(out, i)
		for g := 0; g < len(src); g += group {
			var sum float64
			for _, v := range src[g : g+group] {
				sum += float64(v) * float64(v)
			}
			times(dst[g:g+group], src[g:g+group], float32(1/length(sum)))
		}
	})
}
