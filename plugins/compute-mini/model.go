package main

import "math/bits"

const planSchema = 1

// Field numbers follow docs/backend.md's control.proto and docs/plan.md's plan.proto.

type weight struct {
	name             string
	shape            []uint64
	byRows           bool
	rowIndex         int // among those by rows
	typ              uint64
	rowBytes, offset uint64
}

// rows is the number of rows of shape[0] elements.
func (w *weight) rows() uint64 {
	n := uint64(1)
	for _, d := range w.shape[1:] {
		n *= d
	}
	return n
}

type part struct {
	role, in, out, typ, rowBytes uint64
}

type bank struct {
	name    string
	index   int
	experts uint64
	parts   []*part
}

type state struct {
	kind, keyWidth, valueWidth uint64
	keys, values               []float32 // by position
}

type model struct {
	recipe                            string
	weights                           map[string]*weight
	order                             []*weight
	banks                             map[string]*bank
	banksInOrder                      []*bank
	states                            map[string]*state
	context, batch, logitRows, logits uint64
	picks                             uint64 // most picks of a token
	widths                            map[string]int
	layers, head                      []step // of all blocks but the head, and of the head
	scratch                           uint64 // floats of all values of a token
}

// newModel understands a Model message, or refuses it.
func newModel(b []byte) (*model, error) {
	msg, err := parse(b)
	if err != nil {
		return nil, err
	}
	p, err := parse(msg.bytes(1))
	if err != nil {
		return nil, bugf("plan: %v", err)
	}
	if n := p.uint(1); n > planSchema {
		return nil, lackf("plan of schema %d; mini reads schemas up to %d", n, planSchema)
	}
	m := &model{recipe: p.text(3), weights: map[string]*weight{}, banks: map[string]*bank{}, states: map[string]*state{}, widths: map[string]int{}}
	for _, f := range []func(msg, p message) error{m.options, m.readWeights, m.readBanks, m.readStates, m.readBlocks} {
		if err := f(msg, p); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *model) options(msg, p message) error {
	o, err := parse(msg.bytes(4))
	if err != nil {
		return err
	}
	m.context, m.batch, m.logitRows = o.uint(1), o.uint(2), o.uint(3)
	if m.context == 0 || m.batch == 0 || m.batch > 1<<20 || m.logitRows == 0 || m.logitRows > m.batch {
		return bugf("options: context %d, batch %d, %d rows of logits", m.context, m.batch, m.logitRows)
	}
	sizes, err := parse(p.bytes(5))
	m.logits = sizes.uint(3)
	return err
}

func (m *model) readWeights(msg, p message) error {
	byRows := 0
	err := p.each(6, func(w message) error {
		x := &weight{name: w.text(1), shape: w.uints(3), byRows: w.uint(4) == 1}
		if len(x.shape) == 0 {
			return bugf("weight %q has no shape", x.name)
		}
		if x.byRows {
			x.rowIndex, byRows = byRows, byRows+1
		}
		m.order, m.weights[x.name] = append(m.order, x), x
		return nil
	})
	if err != nil {
		return err
	}
	if len(m.order) != len(msg[2]) {
		return bugf("%d weights are bound, the plan has %d", len(msg[2]), len(m.order))
	}
	i := 0
	return msg.each(2, func(b message) error {
		w := m.order[i]
		i++
		w.typ, w.rowBytes, w.offset = b.uint(1), b.uint(2), b.uint(3)
		return rowFits("weight", w.name, w.typ, w.shape[0], w.rowBytes)
	})
}

// rowFits checks the type and the bytes of a row of n elements.
func rowFits(what, name string, typ, n, rowBytes uint64) error {
	block, ok := blocks[typ]
	if !ok {
		return lackf("%s %q has type %d; mini has F32 (0), F16 (1) and Q8_0 (8)", what, name, typ)
	}
	if n == 0 || n%block.elems != 0 || n/block.elems*block.bytes != rowBytes {
		return bugf("%s %q: rows of %d elements of type %d in %d bytes", what, name, n, typ, rowBytes)
	}
	return nil
}

func (m *model) readBanks(msg, p message) error {
	err := p.each(7, func(b message) error {
		x := &bank{name: b.text(1), index: len(m.banksInOrder), experts: b.uint(3)}
		m.banks[x.name], m.banksInOrder = x, append(m.banksInOrder, x)
		return b.each(4, func(p message) error {
			x.parts = append(x.parts, &part{role: p.uint(1), in: p.uint(3), out: p.uint(4)})
			return nil
		})
	})
	if err != nil {
		return err
	}
	if len(m.banksInOrder) != len(msg[3]) {
		return bugf("%d banks are bound, the plan has %d", len(msg[3]), len(m.banksInOrder))
	}
	i := 0
	return msg.each(3, func(b message) error {
		x, j := m.banksInOrder[i], 0
		i++
		if len(b[1]) != len(x.parts) {
			return bugf("bank %q: %d parts are bound, the plan has %d", x.name, len(b[1]), len(x.parts))
		}
		return b.each(1, func(q message) error {
			part := x.parts[j]
			j++
			part.typ, part.rowBytes = q.uint(1), q.uint(2)
			return rowFits("bank", x.name, part.typ, part.in, part.rowBytes)
		})
	})
}

const stateKV = 1

func (m *model) readStates(_, p message) error {
	return p.each(8, func(s message) error {
		x := &state{kind: s.uint(2), keyWidth: s.uint(3), valueWidth: s.uint(4)}
		if x.kind != stateKV {
			return lackf("state %q is of kind %d; mini has KV (1)", s.text(1), x.kind)
		}
		m.states[s.text(1)] = x
		return nil
	})
}

const blockHead = 3

func (m *model) readBlocks(_, p message) error {
	err := p.each(9, func(b message) error {
		return b.each(3, func(o message) error {
			s, err := m.compile(o)
			if err != nil {
				return err
			}
			if b.uint(1) == blockHead {
				m.head = append(m.head, s)
			} else {
				m.layers = append(m.layers, s)
			}
			return nil
		})
	})
	if err != nil {
		return err
	}
	if m.widths["logits"] != int(m.logits) {
		return bugf("logits are %d wide, the vocabulary has %d", m.widths["logits"], m.logits)
	}
	return nil
}

// stateBytes is the caches, which are 32-bit floats whatever was asked for.
func (m *model) stateBytes() (n uint64) {
	for _, s := range m.states {
		n += 4 * m.context * (s.keyWidth + s.valueWidth)
	}
	return n
}

// scratchBytes is every value of a batch, twice: the garbage collector is behind.
func (m *model) scratchBytes() uint64 { return 2 * 4 * m.batch * m.scratch }

// layout is where things are in the region.
type layout struct {
	mailbox, tokens, logits, routes, maxRoute, wave, maxWave, ready, slots uint64
	rows                                                                   []uint64 // of each weight by rows
}

func newLayout(f message, m *model, size uint64) (*layout, error) {
	region := f.uint(1)
	if region > size {
		return nil, bugf("layout needs %d bytes, the region has %d", region, size)
	}
	l := &layout{mailbox: f.uint(2), tokens: f.uint(3), logits: f.uint(4), routes: f.uint(5), maxRoute: f.uint(6), wave: f.uint(7),
		maxWave: f.uint(8), ready: f.uint(10), slots: f.uint(11)}
	var err error
	place := func(what string, at, n, unit uint64) {
		high, bytes := bits.Mul64(n, unit)
		if err == nil && (high != 0 || at > region || bytes > region-at || at%4 != 0) {
			err = bugf("layout: %s: %d x %d bytes at %d of a region of %d", what, n, unit, at, region)
		}
	}
	place("mailbox", l.mailbox, 1, mailboxBytes)
	place("tokens", l.tokens, m.batch, 4)
	place("logits", l.logits, m.logitRows*m.logits, 4)
	place("routes", l.routes, l.maxRoute, 8)
	place("wave", l.wave, l.maxWave, slotBytes)
	place("ready", l.ready, l.slots, 4)
	if need := m.batch * m.picks; l.maxRoute < need {
		return nil, bugf("layout: room for %d picks, a batch makes %d", l.maxRoute, need)
	}
	at := f.uint(9)
	for _, w := range m.order {
		if !w.byRows {
			place("weight "+w.name, w.offset, w.rows(), w.rowBytes)
			continue
		}
		place("rows of "+w.name, at, m.batch, w.rowBytes)
		l.rows = append(l.rows, at)
		at = (at + m.batch*w.rowBytes + 63) &^ 63
	}
	return l, err
}
