package program

import "slices"

// indexTop picks the compressed rows that matter most to a token (specs/deepseek4.md 36 to 38):
//
//	score[b] = sum over heads h of scale * gate[h] * max(0, q[h] . row[b])      for every visible row b
//
// Equal scores go to the smaller row. The rows come out in ascending order, so that attention reads neighbours together,
// then -1. Nothing is scored while all visible rows fit.
type indexTop struct {
	q, gate, ids ref
	head         bool
	rows         *compressed
	heads, dim   int
	scale        float32

	first, count int // tokens in progress: their scores lie in the scratch of worker 0, 1, ...
	blocks       int // chunks of rows of each of them
}

const indexRows = 64 // rows that one worker scores at a time

func indexing(c *compiler) error {
	rows, err := c.compressedFor(0)
	if err != nil {
		return err
	}
	a := c.attrs
	s := &indexTop{q: c.in(0), gate: c.in(1), head: c.head, rows: rows, heads: int(a.Int("heads")), dim: int(a.Int("dim")),
		scale: float32(a.Float("scale"))}
	s.ids = c.out(0)
	grow(&c.p.work.scores, s.rows.layout.Positions)
	grow(&c.p.work.row, indexRows)
	c.emit(s)
	return nil
}

// sees returns how many rows the token of row i sees.
func (s *indexTop) sees(m *Machine, i int) int {
	return s.rows.visible(m.batch.Position + m.tokens - m.rows(s.head) + i)
}

func (s *indexTop) run(m *Machine) error {
	rows := m.rows(s.head)
	step := len(m.workers)
	if s.sees(m, rows-1) <= s.ids.width() {
		step = rows
	}
	for s.first = 0; s.first < rows; s.first += step {
		s.count = min(step, rows-s.first)
		if n := s.sees(m, s.first+s.count-1); n > s.ids.width() {
			s.blocks = ceilDiv(n, indexRows)
			m.parallel((*scoring)(s), s.count*s.blocks)
		}
		m.parallel(s, s.count)
	}
	return nil
}

// scoring computes the scores of some rows for one token.
type scoring indexTop

func (s *scoring) chunk(m *Machine, worker, chunk int) {
	token, from := chunk/s.blocks, chunk%s.blocks*indexRows
	n := min((*indexTop)(s).sees(m, s.first+token)-from, indexRows)
	if n <= 0 {
		return
	}
	scores, dots := m.workers[token].scores[from:][:n], m.workers[worker].row[:n]
	clear(scores)
	q, gate := m.floats(s.q, s.first+token), m.floats(s.gate, s.first+token)
	for h := range s.heads {
		s.rows.Scores(dots, q[h*s.dim:][:s.dim], 0, from)
		g := s.scale * gate[h]
		for b, d := range dots {
			scores[b] += g * max(0, d)
		}
	}
}

// chunk chooses the rows of one token.
func (s *indexTop) chunk(m *Machine, _, chunk int) {
	ids, n := m.ints(s.ids, s.first+chunk), s.sees(m, s.first+chunk)
	for i := range ids {
		ids[i] = int32(i)
		if i >= n {
			ids[i] = -1
		}
	}
	if n > len(ids) {
		best(ids, m.workers[chunk].scores[:n])
	}
}

// best fills ids with the places of the largest scores, in ascending order. There are at least as many scores.
func best(ids []int32, scores []float32) {
	// A heap whose root is the worst of those kept: the lowest score, of equal ones the last.
	worse := func(a, b int32) bool { return scores[a] < scores[b] || (scores[a] == scores[b] && a > b) }
	sift := func(i int) {
		for {
			child := 2*i + 1
			if child >= len(ids) {
				return
			}
			if child+1 < len(ids) && worse(ids[child+1], ids[child]) {
				child++
			}
			if !worse(ids[child], ids[i]) {
				return
			}
			ids[i], ids[child] = ids[child], ids[i]
			i = child
		}
	}
	for i := range ids {
		ids[i] = int32(i)
	}
	for i := len(ids)/2 - 1; i >= 0; i-- {
		sift(i)
	}
	for b := len(ids); b < len(scores); b++ {
		if worse(ids[0], int32(b)) {
			ids[0] = int32(b)
			sift(0)
		}
	}
	slices.Sort(ids)
}
