package program

import (
	"math"

	"github.com/bigmoe/bigmoe/plugins/compute-cpu/internal/kv"
	"github.com/bigmoe/bigmoe/sdk/compute"
	"github.com/bigmoe/bigmoe/sdk/fault"
	"github.com/bigmoe/bigmoe/sdk/plan"
)

// compressed is a cache with one row for each block of ratio positions. A position sees the blocks that end at or before
// it.
type compressed struct {
	*cache
	ratio int
}

// visible is how many rows position pos sees (specs/deepseek4.md 33).
func (c *compressed) visible(pos int) int { return (pos + 1) / c.ratio }

// compressedFor returns the cache of state i.
func (c *compiler) compressedFor(i int) (*compressed, error) {
	name, o := c.op.States[i], c.p.options
	s, have := c.states[name], c.caches[name]
	if s.Kind != plan.StateKind_COMPRESSED || s.Ratio == 0 {
		return nil, fault.Corruptf("state %q does not hold compressed rows", name)
	}
	if have == nil {
		have = &cache{layout: kv.Layout{Positions: int(uint64(o.Context) / s.Ratio), Heads: 1, KeyDim: int(s.KeyWidth), Half: o.KvType == compute.KVType_F16}}
		c.caches[name] = have
		c.p.caches = append(c.p.caches, have)
	}
	return &compressed{cache: have, ratio: int(s.Ratio)}, nil
}

// compress folds blocks of positions into rows (specs/deepseek4.md 29 to 32). The keys and scores of the last positions
// wait in a ring: those of the block that is being filled and, where blocks overlap, those of the one before. At the end
// of a block, every channel j becomes a mean of the keys of the ring, weighted by the softmax of the scores:
//
//	plain:   v[j] = sum over u of softmax(s[.][j])[u] * k[u][j]
//	overlap: the same, where positions of the block before give channel j and those of the block itself channel dim+j
//
// A channel depends on no other before the norm, so workers take channels and go through the tokens in order.
type compress struct {
	kv, gate, pooled ref // pooled: v of the block that ends at this token
	ape, norm        *weight
	pending          *fixed // ring of keys, then ring of scores
	rows             *compressed
	dim, width       int // of a row; of keys and scores
	slots            int // of the ring
	eps              float32
	turn             *angles
	interleaved      bool
}

const poolChannels = 32 // of a chunk

func compressing(c *compiler) error {
	if c.head {
		return fault.Unsupportedf("compress in the head")
	}
	rows, err := c.compressedFor(1)
	if err != nil {
		return err
	}
	a := c.attrs
	s := &compress{kv: c.inWhole(0), gate: c.inWhole(1), ape: c.vector(0), norm: c.vector(1), pending: c.fixedFor(0), rows: rows,
		dim: int(a.Int("dim")), slots: int(a.Int("ratio")), eps: float32(a.Float("eps")), interleaved: a.Text("layout") == "interleaved"}
	if a.Flag("overlap") {
		s.slots *= 2
	}
	s.width = s.kv.width()
	r := c.rotations(-1)
	if err := r.check(); err != nil {
		return err
	}
	s.turn = &angles{rotation: r}
	c.p.angles = append(c.p.angles, s.turn)
	s.pooled = c.make(4 * s.dim)
	grow(&c.p.work.row, r.nRot)
	c.emit(s)
	return nil
}

func (s *compress) run(m *Machine) error {
	m.parallel(s, ceilDiv(s.dim, poolChannels))
	m.parallel((*finishing)(s), (m.batch.Position+m.tokens)/s.rows.ratio-m.batch.Position/s.rows.ratio)
	return nil
}

// chunk brings some channels of all tokens into the ring, and pools them at the end of each block.
func (s *compress) chunk(m *Machine, _, chunk int) {
	from := chunk * poolChannels
	to := min(from+poolChannels, s.dim)
	size := s.slots * s.width
	keys, scores := s.pending.f32[:size], s.pending.f32[size:]
	for u := range m.tokens {
		pos := m.batch.Position + u
		at, t := pos%s.slots*s.width, pos%s.rows.ratio
		k, g, ape := m.floats(s.kv, u), m.floats(s.gate, u), s.ape.vec[t*s.width:][:s.width]
		for half := 0; half < s.width; half += s.dim {
			copy(keys[at+half+from:at+half+to], k[half+from:half+to])
			m.set.Add(scores[at+half+from:at+half+to], g[half+from:half+to], ape[half+from:half+to])
		}
		if t == s.rows.ratio-1 {
			s.pool(m.floats(s.pooled, u), keys, scores, pos, from, to)
		}
	}
}

// pool computes channels from to to-1 of the block that ends at pos.
func (s *compress) pool(v, keys, scores []float32, pos, from, to int) {
	first := 0
	if pos < s.slots {
		first = s.slots - pos - 1 // the first block has none before it
	}
	for j := from; j < to; j++ {
		place := func(e int) int { // of entry e, the oldest first
			at := (pos + 1 + e) % s.slots * s.width
			if e >= s.slots-s.rows.ratio {
				at += s.width - s.dim
			}
			return at + j
		}
		top := math.Inf(-1)
		for e := first; e < s.slots; e++ {
			top = max(top, float64(scores[place(e)]))
		}
		var sum, mean float64
		for e := first; e < s.slots; e++ {
			p := math.Exp(float64(scores[place(e)]) - top)
			sum += p
			mean += p * float64(keys[place(e)])
		}
		v[j] = float32(mean / sum)
	}
}

// finishing makes rows of what has been pooled: one chunk is one block that ended in this batch.
type finishing compress

func (s *finishing) chunk(m *Machine, worker, chunk int) {
	block := m.batch.Position/s.rows.ratio + chunk
	start := block * s.rows.ratio
	row := m.floats(s.pooled, start+s.rows.ratio-1-m.batch.Position)
	m.set.RMSNorm(row, row, s.norm.vec, s.eps)
	table := m.workers[worker].row[:s.turn.nRot]
	s.turn.write(table, start)
	rotate(m, row[s.dim-s.turn.nRot:], table, s.interleaved)
	s.rows.Put(block, row, nil)
}
