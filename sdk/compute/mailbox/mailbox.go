package mailbox

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/bigmoe/bigmoe/sdk/compute/futex"
)

// Bytes is the size of a mailbox. It starts at a multiple of 64.
const Bytes = 4096

// Version of the wire format: of the mailbox and of everything that a compute.Layout places.
const Version = 1

const magic = 0x426d4f45 // "EOmB" in memory on little-endian machines

// Offsets in the page. Words that different processes write sit on cache lines of their own.
const (
	atMagic     = 0
	atVersion   = 4
	atToBackend = 64
	atToEngine  = 128
	atCancel    = 192
	atHeartbeat = 256
	atRequest   = 1024 // message to the backend
	atReply     = 2560 // message to the engine
)

// MaxText is the most bytes of Message.Text that are carried; longer ones are cut.
const MaxText = 1024

// Kind says what a message means.
type Kind uint32

// The kinds. Fields that are not listed are zero.
const (
	Eval  Kind = 1 // engine: run Tokens at Position, logits for All; answered by Route, Done or Error
	Wave  Kind = 2 // engine: answer to Route and Next: Slots records, More; or Text with Fault when it failed
	Trim  Kind = 3 // engine: forget from Position on; answered by Done or Error
	Close Kind = 4 // engine: free the sequence; answered by Done or Error, after which the mailbox is dead
	Route Kind = 5 // backend: Tokens x K picks of Bank; answered by Wave
	Next  Kind = 6 // backend: next wave; answered by Wave
	Done  Kind = 7 // backend: it worked
	Error Kind = 8 // backend: it failed, Text with Fault

	Predict Kind = 9 // backend: Tokens guesses of Bank, K is 1; answered by Wave without slots, the current wave goes on
)

// String returns the name used in messages.
func (k Kind) String() string {
	names := [...]string{"no message", "eval", "wave", "trim", "close", "route", "next", "done", "error", "predict"}
	if int(k) < len(names) {
		return names[k]
	}
	return fmt.Sprintf("message kind %d", uint32(k))
}

// Message is what travels. The engine and the backend each have one place for theirs.
type Message struct {
	Kind     Kind
	Tokens   uint32
	Position uint64
	All      bool
	Slots    uint32
	More     bool
	Bank     uint32
	K        uint32
	Fault    uint32 // number of a fault.Kind
	Predict  bool   // Eval: guesses are welcome
	Stall    uint64 // Done after Eval: nanoseconds that the backend waited for experts
	Text     string // UTF-8; an error if not empty
}

// Offsets in a message.
const (
	msgKind     = 0
	msgTokens   = 4
	msgPosition = 8
	msgAll      = 16
	msgSlots    = 20
	msgMore     = 24
	msgBank     = 28
	msgK        = 32
	msgFault    = 36
	msgLength   = 40
	msgPredict  = 44
	msgStall    = 48
	msgText     = 64
)

// Mailbox is the shared page.
type Mailbox struct{ page []byte }

// Format makes an empty mailbox of page, which the backend must not use yet.
func Format(page []byte) (*Mailbox, error) {
	m, err := at(page)
	if err != nil {
		return nil, err
	}
	clear(m.page)
	binary.NativeEndian.PutUint32(m.page[atVersion:], Version)
	binary.NativeEndian.PutUint32(m.page[atMagic:], magic)
	return m, nil
}

// Open returns the mailbox that the engine made in page.
func Open(page []byte) (*Mailbox, error) {
	m, err := at(page)
	if err != nil {
		return nil, err
	}
	if got := binary.NativeEndian.Uint32(m.page[atMagic:]); got != magic {
		return nil, fmt.Errorf("mailbox starts with %#x, expected %#x", got, magic)
	}
	if got := binary.NativeEndian.Uint32(m.page[atVersion:]); got != Version {
		return nil, fmt.Errorf("mailbox has version %d, expected %d", got, Version)
	}
	return m, nil
}

func at(page []byte) (*Mailbox, error) {
	if len(page) < Bytes || uintptr(unsafe.Pointer(&page[0]))%64 != 0 {
		return nil, fmt.Errorf("mailbox needs %d bytes at a multiple of 64, found %d", Bytes, len(page))
	}
	return &Mailbox{page[:Bytes:Bytes]}, nil
}

func (m *Mailbox) word(off int) *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Pointer(&m.page[off])) }

// SetCancel raises or lowers the flag that asks the backend to end the evaluation soon.
func (m *Mailbox) SetCancel(on bool) {
	v := uint32(0)
	if on {
		v = 1
	}
	m.word(atCancel).Store(v)
}

// Cancelled reports whether the engine wants the evaluation to end.
func (m *Mailbox) Cancelled() bool { return m.word(atCancel).Load() != 0 }

// Heartbeat is the word that the backend increments to show that it makes progress.
func (m *Mailbox) Heartbeat() *atomic.Uint32 { return m.word(atHeartbeat) }

// Nudge ends the current Wait of both sides early.
func (m *Mailbox) Nudge() {
	futex.Wake(m.word(atToBackend))
	futex.Wake(m.word(atToEngine))
}

// End is one side of a mailbox.
type End struct {
	in, out       *atomic.Uint32
	inbox, outbox []byte
	seen          uint32 // sequence number of the last message received
}

// Engine returns the side that asks.
func (m *Mailbox) Engine() *End {
	return &End{in: m.word(atToEngine), out: m.word(atToBackend), inbox: m.page[atReply:], outbox: m.page[atRequest:atReply]}
}

// Backend returns the side that answers.
func (m *Mailbox) Backend() *End {
	return &End{in: m.word(atToBackend), out: m.word(atToEngine), inbox: m.page[atRequest:atReply], outbox: m.page[atReply:]}
}

// Send posts msg and wakes the other side. The message sent before must have been answered.
func (e *End) Send(msg *Message) {
	b, text := e.outbox, msg.Text
	if len(text) > MaxText {
		text = cut(text)
	}
	put := func(off int, v uint32) { binary.NativeEndian.PutUint32(b[off:], v) }
	put(msgKind, uint32(msg.Kind))
	put(msgTokens, msg.Tokens)
	binary.NativeEndian.PutUint64(b[msgPosition:], msg.Position)
	put(msgAll, flag(msg.All))
	put(msgSlots, msg.Slots)
	put(msgMore, flag(msg.More))
	put(msgBank, msg.Bank)
	put(msgK, msg.K)
	put(msgFault, msg.Fault)
	put(msgLength, uint32(len(text)))
	put(msgPredict, flag(msg.Predict))
	binary.NativeEndian.PutUint64(b[msgStall:], msg.Stall)
	copy(b[msgText:], text)
	e.out.Add(1) // publishes everything above
	futex.Wake(e.out)
}

// cut shortens text to MaxText bytes between two characters.
func cut(text string) string {
	n := MaxText
	for n > MaxText-4 && text[n]&0xc0 == 0x80 {
		n--
	}
	return text[:n]
}

func flag(b bool) uint32 {
	if b {
		return 1
	}
	return 0
}

// Wait reports whether a message is there, waiting for at most the given time. It may return false earlier.
func (e *End) Wait(atMost time.Duration) bool { return e.wait(futex.Brief, atMost) }

// answerSpin is longer than an engine takes to answer a route. Who sleeps meanwhile leaves a core idle, and waking an idle core takes as long
// as the answer, on virtual machines longer (docs/experiments/spin.md).
const answerSpin = 200 * time.Microsecond

// WaitAnswer is Wait for a side that has nothing else to do until the other one answers, which takes microseconds.
func (e *End) WaitAnswer(atMost time.Duration) bool { return e.wait(answerSpin, atMost) }

func (e *End) wait(spin, atMost time.Duration) bool {
	return e.in.Load() != e.seen || futex.WaitSpin(e.in, e.seen, spin, atMost)
}

// Message takes the message that Wait found. It fails when the other side broke the format.
func (e *End) Message() (Message, error) {
	n := e.in.Load()
	if n != e.seen+1 {
		return Message{}, fmt.Errorf("mailbox: message number %d, expected %d", n, e.seen+1)
	}
	e.seen = n
	b := e.inbox
	get := func(off int) uint32 { return binary.NativeEndian.Uint32(b[off:]) }
	length := get(msgLength)
	if length > MaxText {
		return Message{}, fmt.Errorf("mailbox: text of %d bytes, at most %d fit", length, MaxText)
	}
	return Message{
		Kind:     Kind(get(msgKind)),
		Tokens:   get(msgTokens),
		Position: binary.NativeEndian.Uint64(b[msgPosition:]),
		All:      get(msgAll) != 0,
		Slots:    get(msgSlots),
		More:     get(msgMore) != 0,
		Bank:     get(msgBank),
		K:        get(msgK),
		Fault:    get(msgFault),
		Predict:  get(msgPredict) != 0,
		Stall:    binary.NativeEndian.Uint64(b[msgStall:]),
		Text:     string(b[msgText : msgText+length]),
	}, nil
}
