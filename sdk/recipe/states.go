package recipe

// State names what a layer remembers of earlier positions. The empty State leaves an optional operand out.
type State string

const (
	kvState          = 1
	compressedState  = 2
	convolutionState = 3
	recurrentState   = 4

	trim     = 0
	snapshot = 1
)

// KV declares a cache with one entry for each position: keyWidth elements and valueWidth more, or none if the key is
// the value too. Only the last window positions stay; 0 keeps all. Going back forgets the tail.
func (b *Builder) KV(name string, keyWidth, valueWidth, window int) State {
	return b.state(name, kvState, keyWidth, valueWidth, window, 0, 0, trim)
}

// Compressed declares a cache with one entry of width elements for each ratio positions.
func (b *Builder) Compressed(name string, width, ratio int) State {
	return b.state(name, compressedState, width, 0, 0, ratio, 0, trim)
}

// Convolution declares the last taps-1 inputs of a convolution, elements in all. Going back needs a snapshot.
func (b *Builder) Convolution(name string, elements int) State {
	return b.state(name, convolutionState, 0, 0, 0, 0, elements, snapshot)
}

// Recurrent declares a fixed number of values that every token changes. Going back needs a snapshot.
func (b *Builder) Recurrent(name string, elements int) State {
	return b.state(name, recurrentState, 0, 0, 0, 0, elements, snapshot)
}

func (b *Builder) state(name string, kind, keyWidth, valueWidth, window, ratio, elements, rewind int) State {
	name = b.prefix + name
	start := b.states.open(8)
	b.states.text(1, name)
	for i, n := range []int{kind, keyWidth, valueWidth, window, ratio, elements, rewind} {
		b.states.uint(i+2, uint64(n))
	}
	b.states.close(start)
	return State(name)
}
