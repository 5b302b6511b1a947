package program

import (
	"math"

	"github.com/bigmoe/bigmoe/plugins/compute-cpu/internal/kv"
)

// cache is the KV state of one plan state.
type cache struct {
	*kv.Cache
	layout kv.Layout
	name   string
	window int // positions of which the state keeps the last; 0: all
}

// attention stores the keys and values of the batch, then lets every token see those at or before its position
// (specs/qwen3moe.md E7, E8):
//
//	s[u] = scale * q . k[u], softcapped to cap * tanh(s/cap) when cap is given
//	o    = sum over u of softmax(s)[u] * v[u]
//
// A window w hides the positions p-w and before from position p. A sink adds exp(sink) to the sum of the softmax.
// Compressed rows are further keys, which are their own values, in the same softmax: the picked ones, or else all that are
// visible (specs/deepseek4.md 22 to 25).
type attention struct {
	q, k, v, out ref
	head         bool // only tokens whose logits are wanted look back; all are stored
	stores       bool // k is given
	hasV         bool
	cache        *cache
	heads, group int // query heads; how many of them share a key-value head
	keyDim       int
	valueDim     int
	scale        float32
	softcap      float64
	window       int
	sinks        *weight
	rows         *compressed // nil: none
	picks        *ref        // ids of rows, nil: all
}

type storing attention // the phase that fills the cache

func (s *attention) run(m *Machine) error {
	if s.stores {
		m.parallel((*storing)(s), m.tokens)
	}
	m.parallel(s, m.rows(s.head)*s.heads)
	return nil
}

func (s *storing) chunk(m *Machine, _, token int) {
	k := m.floats(s.k, token)
	v := k
	if s.hasV {
		v = m.floats(s.v, token)
	}
	s.cache.Put(m.batch.Position+token, k, v)
}

// chunk computes one head of one token. Consecutive chunks share the head, whose keys then are in the processor's cache.
func (s *attention) chunk(m *Machine, worker, chunk int) {
	rows := m.rows(s.head)
	head, row := chunk/rows, chunk%rows
	pos := m.batch.Position + m.tokens - rows + row
	from := 0
	if s.window > 0 {
		from = max(0, pos-s.window+1)
	}
	w := &m.workers[worker]
	q := w.row[:s.keyDim]
	for i, x := range m.floats(s.q, row)[head*s.keyDim:][:s.keyDim] {
		q[i] = x * s.scale
	}
	n := pos + 1 - from
	scores := w.scores[:n]
	s.cache.Scores(scores, q, head/s.group, from)
	s.runs(m, row, pos, func(first, count int) {
		s.rows.Scores(w.scores[n:n+count], q, 0, first)
		n += count
	})
	scores = w.scores[:n]
	if s.softcap > 0 {
		for i, x := range scores {
			scores[i] = float32(s.softcap * math.Tanh(float64(x)/s.softcap))
		}
	}
	if s.sinks != nil {
		w.scores[n] = s.sinks.vec[head]
		m.set.Softmax(w.scores[:n+1])
	} else {
		m.set.Softmax(scores)
	}
	out := m.floats(s.out, row)[head*s.valueDim:][:s.valueDim]
	clear(out)
	n = pos + 1 - from
	s.cache.Accumulate(out, scores[:n], head/s.group, from)
	s.runs(m, row, pos, func(first, count int) {
		s.rows.Accumulate(out, scores[n:n+count], 0, first)
		n += count
	})
}

// runs calls f for every run of compressed rows that follow each other in what a token attends to.
func (s *attention) runs(m *Machine, row, pos int, f func(first, count int)) {
	if s.rows == nil {
		return
	}
	visible := s.rows.visible(pos)
	if s.picks == nil {
		if visible > 0 {
			f(0, visible)
		}
		return
	}
	ids := m.ints(*s.picks, row)
	for i := 0; i < len(ids); {
		first, end := int(ids[i]), i+1
		if first < 0 || first >= visible {
			i++
			continue
		}
		for end < len(ids) && int(ids[end]) == first+end-i && int(ids[end]) < visible {
			end++
		}
		f(first, end-i)
		i = end
	}
}
