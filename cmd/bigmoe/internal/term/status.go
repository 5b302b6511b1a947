package term

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

// Status is a line at the bottom of a terminal that is written over. On anything else it shows nothing.
type Status struct {
	mu       sync.Mutex
	w        io.Writer
	terminal bool
	shown    bool
	last     time.Time
}

// NewStatus returns a status line on w.
func NewStatus(w io.Writer) *Status { return &Status{w: w, terminal: Is(w)} }

// interval keeps a fast loop from spending its time on the terminal.
const interval = 100 * time.Millisecond

// Set shows a line, cut to the width of the terminal, at most ten times a second.
func (s *Status) Set(line func() string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.terminal || time.Since(s.last) < interval {
		return
	}
	s.last, s.shown = time.Now(), true
	text := Clean(line())
	for n := width(s.w) - 1; utf8.RuneCountInString(text) > n; {
		_, size := utf8.DecodeLastRuneInString(text)
		text = text[:len(text)-size]
	}
	io.WriteString(s.w, "\r"+text+eraseToEnd)
}

const eraseToEnd = "\x1b[K"

// Clear takes the line away.
func (s *Status) Clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clear()
	s.last = time.Time{}
}

func (s *Status) clear() {
	if s.shown {
		s.shown = false
		io.WriteString(s.w, "\r"+eraseToEnd)
	}
}

// Write lets other lines pass: it takes the status line away before it writes p, cleaned for a terminal.
func (s *Status) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clear()
	if s.terminal {
		return safe{s.w}.Write(p)
	}
	return s.w.Write(p)
}

// Bar draws how far something is: [######..............].
func Bar(done, total int64) string {
	const cells = 20
	n := 0
	if total > 0 {
		n = int(min(max(done, 0), total) * cells / total)
	}
	return fmt.Sprintf("[%s%s]", strings.Repeat("#", n), strings.Repeat(".", cells-n))
}
