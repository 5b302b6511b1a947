package program

// rowwise is a step that computes every row on its own.
type rowwise struct {
	head bool
	cost int // operations of one row, about
	row  func(m *Machine, worker, i int)
}

// grain is how many operations are worth handing to another thread.
const grain = 8 << 10

func (s *rowwise) perChunk() int { return max(1, grain/max(s.cost, 1)) }

func (s *rowwise) run(m *Machine) error {
	m.parallel(s, ceilDiv(m.rows(s.head), s.perChunk()))
	return nil
}

func (s *rowwise) chunk(m *Machine, worker, chunk int) {
	per := s.perChunk()
	for i := chunk * per; i < min((chunk+1)*per, m.rows(s.head)); i++ {
		s.row(m, worker, i)
	}
}

func ceilDiv(a, b int) int { return (a + b - 1) / b }
