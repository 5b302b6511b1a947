// Package kv stores the keys and values of one attention layer, one entry per position.
//
//	c := kv.New(set, layout, memory)
//	c.Put(pos, k, v)
//	c.Scores(scores, q, head, 0)          // scores[u] = q . key[u]
//	c.Accumulate(out, weights, head, 0)   // out += sum of weights[u] * value[u]
//
// Entries of one head lie next to each other, so that attention reads memory in order. Keys are stored as they come:
// after normalisation and rotation. Forgetting a tail needs no work here: an entry counts when the caller asks for it.
//
// A cache is a ring: position p takes the place of p - Positions. Callers that never ask for more than Positions at once,
// nor for older ones than they have overwritten, need not know. Where the ring wraps has no influence on results, since
// kernels add up in the order of the positions.
//
// # Concurrency
//
// Put of different positions, and reads of positions already put, may run at the same time.
package kv

import (
	"github.com/bigmoe/bigmoe/plugins/compute-cpu/internal/arena"
	"github.com/bigmoe/bigmoe/plugins/compute-cpu/internal/kernel"
)

// Layout is the shape of a cache.
type Layout struct {
	Positions int  // that are kept
	Heads     int  // key-value heads
	KeyDim    int  // elements of one key
	ValueDim  int  // elements of one value; 0: the key is also the value
	Half      bool // elements are float16 (rounded to nearest even), otherwise float32
}

// Bytes returns the memory a cache of this layout takes.
func (l Layout) Bytes() uint64 {
	return uint64(l.Positions) * uint64(l.Heads) * uint64(l.KeyDim+l.ValueDim) * uint64(l.elemBytes())
}

func (l Layout) elemBytes() int {
	if l.Half {
		return 2
	}
	return 4
}

// Cache is the memory of one layer.
type Cache struct {
	Layout
	set            *kernel.Set
	k16, v16       []uint16
	k32, v32       []float32
	valueDim       int
	keyed, spanned int // elements of one head's keys and values
}

// New lays a cache out in mem, which holds l.Bytes() bytes, aligned to arena.Align.
func New(set *kernel.Set, l Layout, mem []byte) *Cache {
	c := &Cache{Layout: l, set: set, valueDim: l.ValueDim, keyed: l.Positions * l.KeyDim}
	keys := l.Heads * c.keyed
	values := l.Heads * l.Positions * l.ValueDim
	if l.Half {
		all := arena.Cast[uint16](mem, keys+values)
		c.k16, c.v16 = all[:keys], all[keys:]
	} else {
		all := arena.Cast[float32](mem, keys+values)
		c.k32, c.v32 = all[:keys], all[keys:]
	}
	if l.ValueDim == 0 {
		c.v16, c.v32, c.valueDim = c.k16, c.k32, l.KeyDim
	}
	c.spanned = l.Positions * c.valueDim
	return c
}

// Put stores position pos: k is Heads x KeyDim, v is Heads x ValueDim (ignored when the key is the value).
func (c *Cache) Put(pos int, k, v []float32) {
	pos %= c.Positions
	for h := range c.Heads {
		c.put(c.k16, c.k32, h*c.keyed+pos*c.KeyDim, k[h*c.KeyDim:][:c.KeyDim])
		if c.ValueDim > 0 {
			c.put(c.v16, c.v32, h*c.spanned+pos*c.ValueDim, v[h*c.ValueDim:][:c.ValueDim])
		}
	}
}

func (c *Cache) put(half []uint16, full []float32, at int, x []float32) {
	if c.Half {
		c.set.ToF16(half[at:at+len(x)], x)
	} else {
		copy(full[at:at+len(x)], x)
	}
}

// Scores computes out[u] = q . key of position from+u, for every u of out.
func (c *Cache) Scores(out, q []float32, head, from int) {
	slot, rest := c.wrap(&out, from)
	c.scores(out, q, head, slot)
	if len(rest) > 0 {
		c.scores(rest, q, head, 0)
	}
}

func (c *Cache) scores(out, q []float32, head, slot int) {
	at := head*c.keyed + slot*c.KeyDim
	if c.Half {
		c.set.DotRowsF16(out, q, c.k16[at:], c.KeyDim, len(out))
	} else {
		c.set.DotRowsF32(out, q, c.k32[at:], c.KeyDim, len(out))
	}
}

// Accumulate adds the sum over u of p[u] times the value of position from+u to out.
func (c *Cache) Accumulate(out, p []float32, head, from int) {
	slot, rest := c.wrap(&p, from)
	c.accumulate(out, p, head, slot)
	if len(rest) > 0 {
		c.accumulate(out, rest, head, 0)
	}
}

func (c *Cache) accumulate(out, p []float32, head, slot int) {
	at := head*c.spanned + slot*c.valueDim
	if c.Half {
		c.set.AccRowsF16(out, p, c.v16[at:], c.valueDim, len(p))
	} else {
		c.set.AccRowsF32(out, p, c.v32[at:], c.valueDim, len(p))
	}
}

// wrap returns where position from lies, and cuts off what of run, one element for each position from there on, lies at
// the begin of the ring.
func (c *Cache) wrap(run *[]float32, from int) (slot int, rest []float32) {
	slot = from % c.Positions
	if n := c.Positions - slot; n < len(*run) {
		*run, rest = (*run)[:n], (*run)[n:]
	}
	return slot, rest
}
