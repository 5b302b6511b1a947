package program

// convolution is short_conv (specs/lfm2moe.md 15, specs/qwen35moe.md D2, D3): with K taps, for every channel c
//
//	y[t][c] = act(sum over i < K of kernel[c][i] * x[t-(K-1)+i][c])
//
// Workers share the channels: each takes its own through all tokens of the batch and leaves the last K-1 inputs.
type convolution struct {
	x, out  ref
	kernel  *weight
	history *fixed // K-1 rows of channels, the oldest first
	silu    bool
}

// convChannels is how many channels one worker takes at a time.
const convChannels = 256

func shortConv(c *compiler) error {
	s := &convolution{x: c.inWhole(0), kernel: c.vector(0), history: c.fixedFor(0), silu: c.attrs.Text("activation") == "silu"}
	s.out = c.out(0)
	grow(&c.p.work.row, convChannels)
	c.emit(s)
	return nil
}

func (s *convolution) run(m *Machine) error {
	m.parallel(s, ceilDiv(s.x.width(), convChannels))
	return nil
}

func (s *convolution) chunk(m *Machine, worker, chunk int) {
	width, taps := s.x.width(), s.kernel.n
	from, to := chunk*convChannels, min((chunk+1)*convChannels, width)
	kernel := s.kernel.vec[from*taps : to*taps]
	// input returns the channels of a token of the batch, or of one before it.
	input := func(t int) []float32 {
		if t < 0 {
			return s.history.f32[(t+taps-1)*width:][from:to]
		}
		return m.floats(s.x, t)[from:to]
	}
	sum := m.workers[worker].row[:to-from]
	for t := range m.tokens {
		clear(sum)
		for i := range taps {
			x := input(t - (taps - 1) + i)
			for c := range sum {
				sum[c] += kernel[c*taps+i] * x[c]
			}
		}
		y := m.floats(s.out, t)[from:to]
		if s.silu {
			for c := range y {
				y[c] = 1
			}
			m.set.SwiGLU(y, sum, y)
		} else {
			copy(y, sum)
		}
	}
	for i := range taps - 1 { // in this order no row is needed after it was written
		copy(s.history.f32[i*width:][from:to], input(m.tokens-(taps-1)+i))
	}
}
