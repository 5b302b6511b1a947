package term

import (
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"golang.org/x/term"
)

// Is reports whether f, a reader or writer, is a terminal.
func Is(f any) bool {
	if s, ok := f.(safe); ok {
		f = s.w
	}
	file, ok := f.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

// width returns the columns of a terminal, 80 when it does not say.
func width(w io.Writer) int {
	if file, ok := w.(*os.File); ok {
		if n, _, err := term.GetSize(int(file.Fd())); err == nil && n > 0 {
			return n
		}
	}
	return 80
}

// Clean makes text from a model or file harmless on a terminal: escape, backspace, bell and all other control
// characters become visible signs, so that no escape sequence, seven-bit or eight-bit, remains. Newlines and tabs stay;
// carriage returns, which would let text hide text, go.
func Clean(s string) string {
	return strings.Map(visible, s) // bytes that are not UTF-8 come out as U+FFFD
}

func control(r rune) bool {
	return (r < ' ' && r != '\n' && r != '\t') || (r >= 0x7F && r <= 0x9F)
}

func visible(r rune) rune {
	switch {
	case !control(r):
		return r
	case r == '\r':
		return -1
	case r < ' ':
		return 0x2400 + r // the control picture, such as ␛
	case r == 0x7F:
		return '␡'
	}
	return utf8.RuneError
}

// Safe returns w; if that is a terminal, one that cleans what is written to it. A character must be written at once.
func Safe(w io.Writer) io.Writer {
	if Is(w) {
		return safe{w}
	}
	return w
}

type safe struct{ w io.Writer }

func (s safe) Write(p []byte) (int, error) {
	if _, err := io.WriteString(s.w, Clean(string(p))); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Text writes what a model says.
type Text struct {
	w    io.Writer
	open bool // the last line has no newline yet
}

// NewText returns a Text that writes to w.
func NewText(w io.Writer) *Text { return &Text{w: w} }

// WriteString writes s at once.
func (t *Text) WriteString(s string) (int, error) {
	if s == "" {
		return 0, nil
	}
	t.open = !strings.HasSuffix(s, "\n")
	return io.WriteString(t.w, s)
}

// EndLine ends the line if there is something on it.
func (t *Text) EndLine() error {
	if !t.open {
		return nil
	}
	t.open = false
	_, err := io.WriteString(t.w, "\n")
	return err
}
