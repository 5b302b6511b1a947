package program

import (
	"math"

	"github.com/bigmoe/bigmoe/plugins/compute-cpu/internal/arena"
	"github.com/bigmoe/bigmoe/sdk/dtype"
)

// deltaNet is gated_delta_net with one decay for every value head (specs/qwen35moe.md D9 to D13), in the form that takes
// the tokens of a chunk together (C1 to C5). Chunks begin at multiples of deltaChunk, wherever batches do. A head has the
// matrix S of the text before the chunk and, of every token s of the chunk, its key k, its correction e and the decay d
// since. Token t adds to them and reads them:
//
//	d   = exp(gamma_t) * d               of S and of every token before; d_t = 1
//	e_t = beta_t * (v_t - d_S * S^T k_t - sum over s < t of d_s * (k_s . k_t) * e_s)
//	o_t = d_S * S^T q_t + sum over s <= t of d_s * (k_s . q_t) * e_s
//
// and the last token of a chunk leaves S = d_S * S + sum over s of d_s * k_s e_s^T. No exponent is positive and no sum has
// a term that depends on later tokens. So the products with S are matrix products over all tokens that a batch has in the
// chunk, S is written once for a chunk, even by single tokens, and no split into batches changes a bit.
type deltaNet struct {
	q, k, v, beta, gamma, out ref
	heads                     deltaHeads

	memory      *fixed // for every value head, S: a row for every key channel
	keys        *fixed // for every key head, a row for every token of the chunk
	corrections *fixed // for every value head, likewise
	decays      *fixed // for every value head, that of S and of every token of the chunk

	// What is being computed: tokens of the batch from first on, the first of which is number at of the chunk.
	first, tokens, at int
}

// deltaChunk is how many tokens a chunk has. With more of them S is written less often, but each token has more before it
// to read: 8 was the fastest or as fast as 16, and faster than 32 (docs/experiments/delta-chunks.md).
const deltaChunk = 8

// negligible is a decay after which nothing is left: products of the numbers that it stands before underflow, slowly.
const negligible = 0x1p-100

// deltaHeads is how many heads there are and which belong together.
type deltaHeads struct {
	keys, values, dim int
	grouped           bool
}

// key returns the key head of a value head.
func (h deltaHeads) key(value int) int {
	if h.grouped {
		return value / (h.values / h.keys)
	}
	return value % h.keys
}

func gatedDeltaNet(c *compiler) error {
	a := c.attrs
	h := deltaHeads{keys: int(a.Int("key_heads")), values: int(a.Int("value_heads")), dim: int(a.Int("head_dim")), grouped: a.Text("map") == "grouped"}
	if c.in(4).width() != h.values {
		return c.channelDelta(h)
	}
	s := &deltaNet{heads: h, q: c.inWhole(0), k: c.inWhole(1), v: c.inWhole(2), beta: c.inWhole(3), gamma: c.inWhole(4), memory: c.fixedFor(0),
		keys: c.fixedBeside(0, h.keys*deltaChunk*h.dim), corrections: c.fixedBeside(0, h.values*deltaChunk*h.dim),
		decays: c.fixedBeside(0, h.values*(1+deltaChunk))}
	s.out = c.out(0)
	grow(&c.p.work.row, 2*deltaChunk*(2*h.dim+deltaChunk))
	c.emit(s)
	return nil
}

func (s *deltaNet) run(m *Machine) error {
	for s.first = 0; s.first < m.tokens; s.first += s.tokens {
		s.at = (m.batch.Position + s.first) % deltaChunk
		s.tokens = min(deltaChunk-s.at, m.tokens-s.first)
		for u := range s.tokens {
			k := m.floats(s.k, s.first+u)
			for g := range s.heads.keys {
				copy(s.keys.row(g, s.at+u, s.heads.dim), k[g*s.heads.dim:][:s.heads.dim])
			}
		}
		m.parallel(s, s.heads.values)
	}
	return nil
}

// row returns the row of token at of a head.
func (f *fixed) row(head, at, dim int) []float32 { return f.f32[(head*deltaChunk+at)*dim:][:dim:dim] }

func (s *deltaNet) chunk(m *Machine, worker, head int) {
	d, key := s.heads.dim, s.heads.key(head)
	memory := s.memory.f32[head*d*d:][:d*d]
	keys := s.keys.f32[key*deltaChunk*d:][:deltaChunk*d]
	corrections := s.corrections.f32[head*deltaChunk*d:][:deltaChunk*d]
	decays := s.decays.f32[head*(1+deltaChunk):][:1+deltaChunk]

	work := m.workers[worker].row
	take := func(n int) []float32 {
		out := work[:n]
		work = work[n:]
		return out
	}
	x, both := take(2*s.tokens*d), 2*s.tokens // the rows k and then q of every token
	for u := range s.tokens {
		copy(x[u*d:], m.floats(s.k, s.first+u)[key*d:][:d])
		copy(x[(s.tokens+u)*d:], m.floats(s.q, s.first+u)[key*d:][:d])
	}
	sx, kx := take(both*d), take(both*deltaChunk) // S^T x, and x with every key
	m.set.MixRows(sx, 0, x, d, 1, memory, both, d, d)
	m.matmul(dtype.F32, arena.Bytes(keys), s.at+s.tokens, d, arena.Bytes(x), 4*d, both, kx, deltaChunk)
	for u := range s.tokens {
		t, at := s.first+u, s.at+u
		if at == 0 {
			decays[0] = 1
		}
		decay, beta := float32(math.Exp(float64(m.floats(s.gamma, t)[head]))), m.floats(s.beta, t)[head]
		for i := range decays[:1+at] {
			if decays[i] *= decay; decays[i] < negligible {
				decays[i] = 0
			}
		}
		decays[1+at] = 1
		kk, kq := kx[u*deltaChunk:][:at], kx[(s.tokens+u)*deltaChunk:][:at+1]
		for i := range kk {
			kk[i] *= -beta * decays[1+i]
		}
		for i := range kq {
			kq[i] *= decays[1+i]
		}
		e, o := corrections[at*d:][:d], m.floats(s.out, t)[head*d:][:d]
		clear(e)
		m.set.Axpy(e, beta, m.floats(s.v, t)[head*d:][:d])
		m.set.Axpy(e, -beta*decays[0], sx[u*d:][:d])
		m.set.AccRowsF32(e, kk, corrections, d, at)
		clear(o)
		m.set.Axpy(o, decays[0], sx[(s.tokens+u)*d:][:d])
		m.set.AccRowsF32(o, kq, corrections, d, at+1)
	}
	if s.at+s.tokens == deltaChunk {
		for t := range deltaChunk {
			scaled := corrections[t*d:][:d]
			for j := range scaled {
				scaled[j] *= decays[1+t]
			}
		}
		m.set.MixRows(memory, decays[0], keys, 1, d, corrections, d, d, deltaChunk)
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
