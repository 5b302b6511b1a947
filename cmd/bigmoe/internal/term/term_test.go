package term

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestClean(t *testing.T) {
	for in, want := range map[string]string{
		"":                           "",
		"plain\ttext\n":              "plain\ttext\n",
		"grüße, 世界 🐌":                "grüße, 世界 🐌",
		"\x1b[31mred\x1b[0m":         "␛[31mred␛[0m",
		"\x1b]0;title\x07":           "␛]0;title␇",
		"\u009b31mred":               "\ufffd31mred", // the eight-bit form of the same
		"a\rb\r\n":                   "ab\n",
		"back\b\x7f\x00":             "back␈␡␀",
		"half \xe4\xb8 character":    "half \ufffd\ufffd character",
		"\x9b is also a raw C1 byte": "\ufffd is also a raw C1 byte",
	} {
		require.Equal(t, want, Clean(in), "%q", in)
	}
}

func FuzzClean(f *testing.F) {
	f.Add("\x1b[2J\x9b\u009b")
	f.Fuzz(func(t *testing.T, s string) {
		got := Clean(s)
		require.False(t, strings.ContainsFunc(got, control))
		require.Equal(t, got, Clean(got))
		require.Equal(t, strings.Count(s, "\n"), strings.Count(got, "\n"))
	})
}

func TestText(t *testing.T) {
	var out bytes.Buffer
	text := NewText(&out)
	require.NoError(t, text.EndLine())
	for _, s := range []string{"one", "", " two\n", "\x1b[0mthree", ""} {
		_, err := text.WriteString(s)
		require.NoError(t, err)
	}
	require.NoError(t, text.EndLine())
	require.NoError(t, text.EndLine())
	require.Equal(t, "one two\n\x1b[0mthree\n", out.String(), "no terminal: nothing is changed")
}

func TestSafe(t *testing.T) {
	var out bytes.Buffer
	require.Equal(t, &out, Safe(&out), "no terminal")
	n, err := safe{&out}.Write([]byte("\x1b[2Jhello"))
	require.NoError(t, err)
	require.Equal(t, 9, n)
	require.Equal(t, "␛[2Jhello", out.String())
}

func TestStatus(t *testing.T) {
	var out bytes.Buffer
	s := &Status{w: &out, terminal: true}
	s.Set(func() string { return strings.Repeat("ü", 200) })
	s.Set(func() string { t.Fatal("too soon"); return "" })
	require.Equal(t, "\r"+strings.Repeat("ü", 79)+"\x1b[K", out.String())
	out.Reset()
	_, err := s.Write([]byte("a line\x07\n"))
	require.NoError(t, err)
	s.Clear()
	require.Equal(t, "\r\x1b[Ka line␇\n", out.String(), "taken away once")
	out.Reset()
	s.Set(func() string { return "again" })
	s.Clear()
	require.Equal(t, "\ragain\x1b[K\r\x1b[K", out.String())
}

func TestStatusWithoutTerminal(t *testing.T) {
	var out bytes.Buffer
	s := NewStatus(&out)
	s.Set(func() string { return "progress" })
	_, err := s.Write([]byte("a line\n"))
	require.NoError(t, err)
	s.Clear()
	require.Equal(t, "a line\n", out.String())
}

func TestBar(t *testing.T) {
	require.Equal(t, "[....................]", Bar(0, 0))
	require.Equal(t, "[##########..........]", Bar(1, 2))
	require.Equal(t, "[####################]", Bar(7, 3))
}
