package token

import (
	"strings"
	"unicode/utf8"
)

// Stream turns ids into text as they are generated. What it returns is always valid UTF-8 and never half a
// character: bytes that may still become one are held back, three at most. Bytes that can no longer become one are
// replaced by U+FFFD each. It keeps the whole text, of which the parts that it returns are pieces. Not safe for concurrent use.
type Stream struct {
	t           *Tokenizer
	showControl bool
	text        strings.Builder
	held        []byte
}

// Stream starts a new text. showControl makes control and unknown tokens visible.
func (t *Tokenizer) Stream(showControl bool) *Stream {
	return &Stream{t: t, showControl: showControl}
}

// Push adds one id and returns the text that is now certain, often empty. An id outside the vocabulary adds nothing.
func (s *Stream) Push(id int32) string {
	s.held = s.t.AppendPiece(s.held, id, s.showControl)
	return s.take(false)
}

// Flush ends the text: bytes still held are returned as U+FFFD. The stream can be used again afterwards.
func (s *Stream) Flush() string { return s.take(true) }

// Text returns all that Push and Flush have returned.
func (s *Stream) Text() string { return s.text.String() }

func (s *Stream) take(all bool) string {
	was, i := s.text.Len(), 0
	for i < len(s.held) && (all || utf8.FullRune(s.held[i:])) {
		r, n := utf8.DecodeRune(s.held[i:])
		s.text.WriteRune(r)
		i += n
	}
	s.held = append(s.held[:0], s.held[i:]...)
	return s.text.String()[was:]
}
