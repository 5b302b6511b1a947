package mailbox

import (
	"encoding/binary"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// page returns zeroed memory at a multiple of 64.
func page() []byte {
	b := make([]byte, Bytes+64)
	skip := -uintptr(unsafe.Pointer(&b[0])) % 64
	return b[skip : skip+Bytes]
}

func TestEveryFieldArrives(t *testing.T) {
	b := page()
	box, err := Format(b)
	require.NoError(t, err)
	engine := box.Engine()
	opened, err := Open(b)
	require.NoError(t, err)
	backend := opened.Backend()

	for _, m := range []Message{
		{Kind: Eval, Tokens: 512, Position: 1 << 40, All: true},
		{Kind: Wave, Slots: 77, More: true},
		{Kind: Error, Fault: 3, Text: "größer"},
		{Kind: Route, Bank: 47, K: 8, Tokens: 3},
		{Kind: Next},
	} {
		for _, ends := range [][2]*End{{engine, backend}, {backend, engine}} {
			from, to := ends[0], ends[1]
			require.False(t, to.Wait(0))
			from.Send(&m)
			require.True(t, to.Wait(time.Minute))
			got, err := to.Message()
			require.NoError(t, err)
			require.Equal(t, m, got)
		}
	}
}

func TestLongTextIsCutBetweenCharacters(t *testing.T) {
	box, err := Format(page())
	require.NoError(t, err)
	engine, backend := box.Engine(), box.Backend()
	for pad := range 5 {
		text := strings.Repeat("x", pad) + strings.Repeat("語", MaxText)
		engine.Send(&Message{Kind: Wave, Text: text})
		got, err := backend.Message()
		require.NoError(t, err)
		require.True(t, strings.HasPrefix(text, got.Text))
		require.Greater(t, len(got.Text), MaxText-3)
		require.NotContains(t, got.Text, "\ufffd")
		require.Zero(t, (len(got.Text)-pad)%len("語"))
	}
}

func TestWaitIsWokenByTheOtherSide(t *testing.T) {
	box, err := Format(page())
	require.NoError(t, err)
	engine, backend := box.Engine(), box.Backend()
	time.AfterFunc(20*time.Millisecond, func() { backend.Send(&Message{Kind: Done}) }) // likely after the wait began
	woken := make(chan struct{})
	go func() {
		for !engine.Wait(time.Hour) {
		}
		close(woken)
	}()
	select {
	case <-woken:
	case <-time.After(time.Minute):
		t.Fatal("not woken")
	}
	require.Equal(t, "done", func() string { m, _ := engine.Message(); return m.Kind.String() }())
	require.Equal(t, "message kind 99", Kind(99).String())
}

func TestFlags(t *testing.T) {
	box, err := Format(page())
	require.NoError(t, err)
	require.False(t, box.Cancelled())
	box.SetCancel(true)
	require.True(t, box.Cancelled())
	box.SetCancel(false)
	require.False(t, box.Cancelled())
	box.Heartbeat().Add(2)
	require.EqualValues(t, 2, box.Heartbeat().Load())
}

func TestBrokenPages(t *testing.T) {
	for name, spoil := range map[string]func(b []byte) []byte{
		"too short":     func(b []byte) []byte { return b[:Bytes-1] },
		"misaligned":    func(b []byte) []byte { return append(b, 0)[1:] },
		"wrong magic":   func(b []byte) []byte { b[0]++; return b },
		"wrong version": func(b []byte) []byte { b[atVersion]++; return b },
	} {
		b := page()
		_, err := Format(b)
		require.NoError(t, err)
		_, err = Open(spoil(b))
		require.Error(t, err, name)
	}
}

func TestBrokenMessages(t *testing.T) {
	b := page()
	box, err := Format(b)
	require.NoError(t, err)
	engine, backend := box.Engine(), box.Backend()
	engine.Send(&Message{Kind: Eval})
	engine.Send(&Message{Kind: Eval})
	_, err = backend.Message()
	require.ErrorContains(t, err, "message number 2, expected 1")

	box, err = Format(b)
	require.NoError(t, err)
	engine, backend = box.Engine(), box.Backend()
	engine.Send(&Message{Kind: Eval})
	binary.NativeEndian.PutUint32(b[atRequest+msgLength:], MaxText+1)
	_, err = backend.Message()
	require.ErrorContains(t, err, "text of 1025 bytes")
}

// FuzzMessage: whatever the other side writes into the page, it is a message that fits or an error.
func FuzzMessage(f *testing.F) {
	for _, msg := range []Message{
		{Kind: Done}, {Kind: Route, Tokens: 3, Bank: 1, K: 2}, {Kind: Error, Fault: 1, Text: "tensor is missing"},
		{Kind: Eval, Tokens: 7, Position: 1 << 40, All: true}, {Kind: Kind(200), Tokens: 1<<32 - 1, Text: strings.Repeat("x", MaxText)},
	} {
		b := page()
		box, err := Format(b)
		require.NoError(f, err)
		box.Backend().Send(&msg)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, written []byte) {
		b := page()
		copy(b, written)
		box, err := Open(b)
		if err != nil {
			return
		}
		msg, err := box.Engine().Message()
		if err == nil {
			require.LessOrEqual(t, len(msg.Text), MaxText)
			_ = msg.Kind.String()
		}
	})
}

// TestOffsets pins the wire format that docs/backend.md promises to other languages.
func TestOffsets(t *testing.T) {
	b := page()
	box, err := Format(b)
	require.NoError(t, err)
	box.Backend().Send(&Message{Kind: Route, Tokens: 2, Position: 3, All: true, Slots: 4, More: true, Bank: 5, K: 6, Fault: 7, Text: "t"})
	box.SetCancel(true)
	box.Heartbeat().Add(9)
	for off, want := range map[int]uint32{0: 0x426d4f45, 4: 1, 64: 0, 128: 1, 192: 1, 256: 9,
		2560: 5, 2564: 2, 2568: 3, 2576: 1, 2580: 4, 2584: 1, 2588: 5, 2592: 6, 2596: 7, 2600: 1, 2624: 't', 1024: 0} {
		require.Equal(t, want, binary.NativeEndian.Uint32(b[off:]), "offset %d", off)
	}
}
