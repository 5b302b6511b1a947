package main

import (
	"encoding/binary"
	"errors"
	"os"
	"sync/atomic"
	"time"
	"unsafe"

	mmap "github.com/edsrzf/mmap-go"
)

// region is the shared memory.
type region struct{ bytes []byte }

func mapRegion() (*region, error) {
	f := os.NewFile(regionFD, "region")
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	bytes, err := mmap.MapRegion(f, int(info.Size()), mmap.RDWR, 0, 0)
	return &region{bytes}, err
}

func (r *region) word(at uint64) *atomic.Uint32 {
	return (*atomic.Uint32)(unsafe.Pointer(&r.bytes[at : at+4][0]))
}

// Offsets of docs/backend.md, Mailbox.
const (
	mailboxBytes = 4096
	slotBytes    = 40
	boxMagic     = 0x426d4f45

	toBackend, toEngine, cancel, heartbeat = 64, 128, 192, 256
	request, answer                        = 1024, 2560
)

// Kinds of messages.
const (
	kindEval = 1 + iota
	kindWave
	kindTrim
	kindClose
	kindRoute
	kindNext
	kindDone
	kindError
)

type mailbox struct {
	region *region
	at     uint64
	seen   uint32
}

func openMailbox(r *region, at uint64) (*mailbox, error) {
	b := &mailbox{region: r, at: at}
	if magic, version := b.get(0), b.get(4); magic != boxMagic || version != 1 {
		return nil, bugf("mailbox of version %d begins with %#x; mini speaks version 1, which begins with %#x", version, magic, boxMagic)
	}
	return b, nil
}

func (b *mailbox) get(at uint64) uint32 { return binary.NativeEndian.Uint32(b.region.bytes[b.at+at:]) }
func (b *mailbox) put(at uint64, v uint32) {
	binary.NativeEndian.PutUint32(b.region.bytes[b.at+at:], v)
}
func (b *mailbox) word(at uint64) *atomic.Uint32 { return b.region.word(b.at + at) }

// send posts a message whose fields other than kind and text are written already.
func (b *mailbox) send(kind uint32, err error) {
	text := ""
	if err != nil {
		if text = err.Error(); len(text) > 1024 {
			text = text[:1000]
		}
		b.put(answer+36, kindOf(err))
	}
	b.put(answer, kind)
	b.put(answer+40, uint32(len(text)))
	copy(b.region.bytes[b.at+answer+64:], text)
	w := b.word(toEngine)
	w.Add(1)
	wake(w)
}

// receive waits for the next message of the engine. If the engine goes away, the lifeline ends the process.
func (b *mailbox) receive() (kind uint32) {
	w := b.word(toBackend)
	for w.Load() == b.seen {
		wait(w, b.seen, time.Second)
	}
	if n := w.Load(); n != b.seen+1 {
		die("message number %d, expected %d", n, b.seen+1)
	}
	b.seen++
	return b.get(request)
}

// sequence is the text in progress.
type sequence struct {
	m       *model
	region  *region
	layout  *layout
	box     *mailbox
	at      int
	broken  bool // the last evaluation failed
	closed  atomic.Bool
	stalled time.Duration
}

func newSequence(m *model, r *region, l *layout, box *mailbox) *sequence {
	for _, s := range m.states {
		s.keys, s.values = make([]float32, m.context*s.keyWidth), make([]float32, m.context*s.valueWidth)
	}
	return &sequence{m: m, region: r, layout: l, box: box}
}

func (s *sequence) run() {
	for {
		kind := s.box.receive()
		var err error
		s.stalled = 0
		switch kind {
		case kindEval:
			if err = s.eval(); err != nil {
				s.broken = true
			}
		case kindTrim:
			err = s.trim(binary.NativeEndian.Uint64(s.region.bytes[s.box.at+request+8:]))
		case kindClose:
			s.m = nil
			s.closed.Store(true)
		default:
			die("message %d is no request", kind)
		}
		binary.NativeEndian.PutUint64(s.region.bytes[s.box.at+answer+48:], uint64(s.stalled))
		if err != nil {
			s.box.send(kindError, err)
		} else {
			s.box.send(kindDone, nil)
		}
		if kind == kindClose {
			return
		}
	}
}

func (s *sequence) trim(position uint64) error {
	if position > uint64(s.at) || s.broken && position > 0 {
		return bugf("trim to %d of %d positions", position, s.at)
	}
	s.at, s.broken = int(position), false
	return nil
}

// evaluation is one batch on its way through the plan.
type evaluation struct {
	s        *sequence
	tokens   []int32
	first    int // of tokens within the batch
	position int // of tokens[0]
	values   map[string][][]float32
}

func (s *sequence) eval() error {
	n, position := uint64(s.box.get(request+4)), binary.NativeEndian.Uint64(s.region.bytes[s.box.at+request+8:])
	all := s.box.get(request+16) != 0
	rows := uint64(1)
	if all {
		rows = n
	}
	switch {
	case n == 0 || n > s.m.batch || rows > s.m.logitRows:
		return bugf("batch of %d tokens and %d rows of logits, at most %d and %d", n, rows, s.m.batch, s.m.logitRows)
	case position != uint64(s.at) || s.broken:
		return bugf("batch at position %d, the sequence has %d", position, s.at)
	case position+n > s.m.context:
		return refuse(user, "%d positions do not fit the context of %d", position+n, s.m.context)
	}
	e := &evaluation{s: s, position: s.at, values: map[string][][]float32{}}
	for i := range n {
		e.tokens = append(e.tokens, int32(binary.NativeEndian.Uint32(s.region.bytes[s.layout.tokens+4*i:])))
	}
	for _, step := range s.m.layers {
		if err := step(e); err != nil {
			return err
		}
	}
	if !all { // from here on only the last token is wanted
		e.first = int(n) - 1
		e.position, e.tokens = e.position+e.first, e.tokens[e.first:]
		for name, rows := range e.values {
			e.values[name] = rows[e.first:]
		}
	}
	for _, step := range s.m.head {
		if err := step(e); err != nil {
			return err
		}
	}
	at := s.layout.logits
	for _, row := range e.values["logits"] {
		for _, v := range row {
			*(*float32)(unsafe.Pointer(&s.region.bytes[at])) = v
			at += 4
		}
	}
	s.at += int(n)
	return nil
}

// make makes a value with a row for each token.
func (e *evaluation) make(name string) [][]float32 {
	rows := make([][]float32, len(e.tokens))
	for t := range rows {
		rows[t] = make([]float32, e.s.m.widths[name])
	}
	e.values[name] = rows
	return rows
}

func (e *evaluation) matrix(w *weight) matrix {
	return matrix{typ: w.typ, in: w.shape[0], rowBytes: w.rowBytes, data: e.s.region.bytes[w.offset:][:w.rows()*w.rowBytes]}
}

// vector decodes a weight of one row, nil if there is none.
func (e *evaluation) vector(w *weight) []float32 {
	if w == nil {
		return nil
	}
	y := make([]float32, w.shape[0])
	decodeRow(w.typ, y, e.s.region.bytes[w.offset:][:w.rowBytes])
	return y
}

// slot is an expert in the region.
type slot struct {
	expert     int32
	word       *atomic.Uint32
	generation uint32
	part       [3]uint64
}

type wave struct {
	slots []*slot
	more  bool
}

// route tells the engine what was picked. factors come back as the engine wants them.
func (s *sequence) route(b *bank, k int, ids []int32, factors []float32) (wave, error) {
	bytes := s.region.bytes
	for i, id := range ids {
		binary.NativeEndian.PutUint32(bytes[s.layout.routes+4*uint64(i):], uint32(id))
		*(*float32)(unsafe.Pointer(&bytes[s.layout.routes+4*(s.layout.maxRoute+uint64(i))])) = factors[i]
	}
	s.box.put(answer+4, uint32(len(ids)/k))
	s.box.put(answer+28, uint32(b.index))
	s.box.put(answer+32, uint32(k))
	w, err := s.ask(kindRoute)
	for i := range ids {
		factors[i] = *(*float32)(unsafe.Pointer(&bytes[s.layout.routes+4*(s.layout.maxRoute+uint64(i))]))
	}
	return w, err
}

func (s *sequence) next() (wave, error) { return s.ask(kindNext) }

// ask sends ROUTE or NEXT and takes the wave.
func (s *sequence) ask(kind uint32) (w wave, err error) {
	s.box.word(heartbeat).Add(1)
	if s.box.word(cancel).Load() != 0 {
		return w, errors.New("cancelled")
	}
	s.box.send(kind, nil)
	if got := s.box.receive(); got != kindWave {
		die("message %d answers %d", got, kind)
	}
	if n := s.box.get(request + 40); n > 0 {
		text := string(s.region.bytes[s.box.at+request+64:][:min(n, 1024)])
		return w, refuse(s.box.get(request+36), "%s", text)
	}
	n := uint64(s.box.get(request + 20))
	if n > s.layout.maxWave {
		die("wave of %d slots, at most %d fit", n, s.layout.maxWave)
	}
	w.more = s.box.get(request+24) != 0
	for i := range n {
		b := s.region.bytes[s.layout.wave+slotBytes*i:]
		ready := uint64(binary.NativeEndian.Uint32(b[4:]))
		if ready >= s.layout.slots {
			return w, bugf("readiness word %d of %d", ready, s.layout.slots)
		}
		x := &slot{expert: int32(binary.NativeEndian.Uint32(b)), word: s.region.word(s.layout.ready + 4*ready), generation: binary.NativeEndian.Uint32(b[8:])}
		for p := range x.part {
			x.part[p] = binary.NativeEndian.Uint64(b[16+8*p:])
		}
		w.slots = append(w.slots, x)
	}
	return w, nil
}

const allParts = 7

func (s *sequence) landed(x *slot) bool {
	w := x.word.Load()
	return w>>8 == x.generation && w&16 == 0 && w&allParts == allParts
}

// wait returns when a part is in memory.
func (s *sequence) wait(x *slot, part uint32) error {
	for {
		w := x.word.Load()
		switch {
		case w>>8 != x.generation:
			return bugf("expert %d: its slot was given away", x.expert)
		case w&16 != 0:
			return refuse(failure, "expert %d: reading it failed", x.expert)
		case w&part != 0:
			return nil
		}
		s.box.word(heartbeat).Add(1)
		start := time.Now()
		wait(x.word, w, 50*time.Millisecond)
		s.stalled += time.Since(start)
	}
}
