package token_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/engine/token"
)

// checkStream pushes ids one by one: every result is valid UTF-8, and all together are the decoded bytes with
// U+FFFD for each that is not part of a character.
func checkStream(t testing.TB, tok *token.Tokenizer, ids []int32) {
	t.Helper()
	var got, want strings.Builder
	s := tok.Stream(true)
	for _, id := range ids {
		part := s.Push(id)
		require.True(t, utf8.ValidString(part), "%q", part)
		got.WriteString(part)
	}
	got.WriteString(s.Flush())
	var raw []byte // as Decode, but for the space before a text
	for _, id := range ids {
		raw = tok.AppendPiece(raw, id, true)
	}
	for _, r := range string(raw) {
		want.WriteRune(r)
	}
	require.Equal(t, want.String(), got.String())
	require.Equal(t, want.String(), s.Text())
}
