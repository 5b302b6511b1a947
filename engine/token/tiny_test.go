package token_test

import (
	"bytes"
	"encoding/binary"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/engine/gguf"
	"github.com/bigmoe/bigmoe/engine/token"
	"github.com/bigmoe/bigmoe/sdk/fault"
)

// alphabet spells bytes as vocabulary texts do.
func alphabet(raw string) string {
	var b strings.Builder
	for _, c := range []byte(raw) {
		switch r := rune(c); {
		case c < 0x21:
			b.WriteRune(0x100 + r)
		case c >= 0x7F && c <= 0xA0:
			b.WriteRune(0x121 + r - 0x7F)
		case c == 0xAD:
			b.WriteRune(0x143)
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// tinyWords are joined from the left: "hello" needs "he", "hel" and "hell", which get lower ranks.
var tinyWords = []string{"hello", " world", "  ", "\n\n", "...", "日本", "é", "ll", "lo", " w", "😀"}

const (
	tinyBytes   = 256
	tinyStart   = "<|im_start|>"
	tinyEnd     = "<|im_end|>"
	tinyThink   = "<think>"
	tinyThinkEx = "<think>!"
	tinyAccent  = "ø" // in the byte alphabet, but user-defined: stands for itself
)

// tinyKeys describes a vocabulary of the single bytes, tinyWords and their beginnings, and five special tokens.
func tinyKeys() map[string]any {
	var tokens, mergeList []string
	for b := range tinyBytes {
		tokens = append(tokens, alphabet(string([]byte{byte(b)})))
	}
	for _, word := range tinyWords {
		for n := 2; n <= len(word); n++ {
			joined := alphabet(word[:n])
			mergeList = append(mergeList, alphabet(word[:n-1])+" "+alphabet(word[n-1:n]))
			if !slices.Contains(tokens, joined) {
				tokens = append(tokens, joined)
			}
		}
	}
	types := make([]int32, len(tokens))
	for i := range types {
		types[i] = int32(token.Normal)
	}
	tokens = append(tokens, tinyStart, tinyEnd, tinyThink, tinyThinkEx, "[PAD9]")
	types = append(types, int32(token.Control), int32(token.Control), int32(token.UserDefined), int32(token.UserDefined), int32(token.Unused))
	// The text of byte 0xF8 is "ø": a token of its own would be a duplicate, so this one takes the byte's place.
	types[slices.Index(tokens, tinyAccent)] = int32(token.UserDefined)
	return map[string]any{
		"tokenizer.ggml.model":        "gpt2",
		"tokenizer.ggml.pre":          "qwen2",
		"tokenizer.ggml.tokens":       tokens,
		"tokenizer.ggml.token_type":   types,
		"tokenizer.ggml.merges":       mergeList,
		"tokenizer.ggml.eos_token_id": uint32(slices.Index(tokens, tinyEnd)),
		"tokenizer.ggml.bos_token_id": uint32(slices.Index(tokens, tinyStart)),
	}
}

// writeGGUF writes a file without tensors.
func writeGGUF(t testing.TB, keys map[string]any) string {
	t.Helper()
	var b bytes.Buffer
	le := func(values ...any) {
		for _, v := range values {
			require.NoError(t, binary.Write(&b, binary.LittleEndian, v))
		}
	}
	text := func(s string) { le(uint64(len(s))); b.WriteString(s) }
	b.WriteString("GGUF")
	le(uint32(3), uint64(0), uint64(len(keys)))
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		text(key)
		switch v := keys[key].(type) {
		case string:
			le(gguf.String)
			text(v)
		case bool:
			le(gguf.Bool, v)
		case uint32:
			le(gguf.Uint32, v)
		case []int32:
			le(gguf.Array, gguf.Int32, uint64(len(v)), v)
		case []float32:
			le(gguf.Array, gguf.Float32, uint64(len(v)), v)
		case []string:
			le(gguf.Array, gguf.String, uint64(len(v)))
			for _, s := range v {
				text(s)
			}
		default:
			require.Fail(t, "unknown type", "%T", v)
		}
	}
	path := filepath.Join(t.TempDir(), "tiny.gguf")
	require.NoError(t, os.WriteFile(path, b.Bytes(), 0o600))
	return path
}

func load(t testing.TB, keys map[string]any) (*token.Tokenizer, error) {
	t.Helper()
	f, err := gguf.Open(writeGGUF(t, keys))
	require.NoError(t, err)
	defer f.Close()
	return token.New(f)
}

// tiny loads the tiny vocabulary with some keys changed; a nil value removes a key.
func tiny(t testing.TB, change map[string]any) *token.Tokenizer {
	t.Helper()
	tok, err := load(t, changed(tinyKeys(), change))
	require.NoError(t, err)
	return tok
}

func changed(keys, change map[string]any) map[string]any {
	for key, v := range change {
		if v == nil {
			delete(keys, "tokenizer.ggml."+key)
		} else {
			keys["tokenizer.ggml."+key] = v
		}
	}
	return keys
}

func TestEncode(t *testing.T) {
	both := token.Options{AddSpecial: true, ParseSpecial: true}
	tests := []struct {
		name    string
		keys    map[string]any
		text    string
		options token.Options
		want    []string // token texts, words in raw bytes
	}{
		{"empty", nil, "", token.Options{}, []string{}},
		{"merged", nil, "hello world", token.Options{}, []string{"hello", " world"}},
		{"lowest rank first", nil, "hellos llo", token.Options{}, []string{"hello", "s", " ", "ll", "o"}},
		{"two merges, left first", nil, "lll", token.Options{}, []string{"ll", "l"}},
		{"space goes to the word", nil, "a   hello", token.Options{}, []string{"a", "  ", " ", "hello"}},
		{"no merge across a piece", nil, ".\n\n.", token.Options{}, []string{".", "\n\n", "."}},
		{"one digit a piece", nil, "12", token.Options{}, []string{"1", "2"}},
		{"bytes of a rune", nil, "日本é😀", token.Options{}, []string{"日本", "é", "😀"}},
		{"ill-formed bytes one by one", nil, "\xff\xe2\x82", token.Options{}, []string{"\xef", "\xbf", "\xbd", "\xef", "\xbf", "\xbd", "\xef", "\xbf", "\xbd"}},
		{"control as text", nil, "<|im_end|>", token.Options{}, strings.Split("<|im_end|>", "")},
		{"control parsed", nil, "hello<|im_end|>", token.Options{ParseSpecial: true}, []string{"hello", tinyEnd}},
		{"user-defined always", nil, "a<think>b", token.Options{}, []string{"a", tinyThink, "b"}},
		{"longest special", nil, "<think>!<think>", token.Options{}, []string{tinyThinkEx, tinyThink}},
		{"special cut short", nil, "<thin", token.Options{}, strings.Split("<thin", "")},
		{"bos only if asked for by the file", nil, "a", both, []string{"a"}},
		{"bos", map[string]any{"add_bos_token": true}, "a", both, []string{tinyStart, "a"}},
		{"bos without asking", map[string]any{"add_bos_token": true}, "a", token.Options{}, []string{"a"}},
		{"bos and eos", map[string]any{"add_bos_token": true, "add_eos_token": true}, "", both, []string{tinyStart, tinyEnd}},
		{"bos by pre-tokenizer", map[string]any{"pre": "llama-bpe"}, "a", both, []string{tinyStart, "a"}},
		{"pre-tokenizer overruled", map[string]any{"pre": "llama-bpe", "add_bos_token": false}, "a", both, []string{"a"}},
		{"no bos in glm4", map[string]any{"pre": "glm4", "add_bos_token": true}, "a", both, []string{"a"}},
		{"whole piece without merges", map[string]any{"pre": "llama-bpe", "merges": []string{"l l"}}, "hello hell", token.Options{},
			[]string{"hello", " ", "h", "e", "ll"}},
		{"merges alone", map[string]any{"merges": []string{"l l"}}, "hello", token.Options{}, []string{"h", "e", "ll", "o"}},
		{"joined text that is no token", map[string]any{"merges": []string{"x y"}}, "axy", token.Options{}, []string{"a", "x", "y"}},
		{"pair listed twice", map[string]any{"merges": []string{"l o", "l l", "l o"}}, "llo", token.Options{}, []string{"l", "lo"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tok := tiny(t, tt.keys)
			got := []string{}
			for _, id := range tok.Encode(tt.text, tt.options) {
				got = append(got, string(tok.Piece(id)))
			}
			require.Equal(t, tt.want, got)
		})
	}
}

func TestDecode(t *testing.T) {
	tok := tiny(t, nil)
	id := func(text string) int32 {
		id, ok := tok.Lookup(text)
		require.True(t, ok, text)
		return id
	}
	ids := []int32{id(tinyStart), id("hello"), id(tinyThink), id("[PAD9]"), id(tinyAccent), id(alphabet(" world")), id(tinyEnd)}
	require.Equal(t, "hello<think>ø world", decode(t, tok, ids, false))
	require.Equal(t, "<|im_start|>hello<think>ø world<|im_end|>", decode(t, tok, ids, true))
	for _, bad := range []int32{-1, int32(tok.Vocab())} {
		_, err := tok.Decode([]int32{0, bad}, true)
		require.ErrorContains(t, err, "number 2 of 2")
		require.Equal(t, fault.User, fault.KindOf(err))
		require.Empty(t, tok.Piece(bad))
		require.Equal(t, token.Undefined, tok.Type(bad))
		require.False(t, tok.EOG(bad))
	}
	_, ok := tok.Lookup("xy")
	require.False(t, ok)
	_, ok = tiny(t, map[string]any{"merges": []string{"x y"}}).Lookup("xy") // a symbol, not a token
	require.False(t, ok)
}

func TestEnds(t *testing.T) {
	tests := []struct {
		name  string
		texts []string // appended to the tiny vocabulary as control tokens
		keys  map[string]any
		eog   []string
		shown []string // not hidden in output
	}{
		{"by key and text", nil, nil, []string{tinyEnd}, nil},
		{"by text alone", []string{"<|endoftext|>"}, map[string]any{"eos_token_id": nil}, []string{"<|endoftext|>", tinyEnd}, nil},
		{"fill-in-the-middle", []string{"<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<|fim_prefix|>"}, nil,
			[]string{tinyEnd, "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"}, nil},
		{"first candidate only", []string{"<fim-pad>", "<fim_pad>"}, nil, []string{tinyEnd, "<fim-pad>"}, nil},
		{"a key beats the texts", []string{"<fim-pad>"}, map[string]any{"fim_pad_token_id": uint32(7)}, []string{tinyEnd, alphabet("\x07")}, nil},
		{"gpt-oss", []string{"<|return|>", "<|call|>", "<|end|>", "<|channel|>", "<|message|>"}, nil,
			[]string{tinyEnd, "<|return|>", "<|call|>"}, []string{"<|end|>", "<|channel|>", "<|message|>"}},
		{"end without return ends", []string{"<|end|>"}, nil, []string{tinyEnd, "<|end|>"}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			keys := changed(tinyKeys(), tt.keys)
			for _, text := range tt.texts {
				keys["tokenizer.ggml.tokens"] = append(keys["tokenizer.ggml.tokens"].([]string), text)
				keys["tokenizer.ggml.token_type"] = append(keys["tokenizer.ggml.token_type"].([]int32), int32(token.Control))
			}
			tok, err := load(t, keys)
			require.NoError(t, err)
			want := []int32{}
			for _, text := range tt.eog {
				id, ok := tok.Lookup(text)
				require.True(t, ok)
				require.True(t, tok.EOG(id))
				require.Equal(t, token.Control, tok.Type(id))
				want = append(want, id)
			}
			require.ElementsMatch(t, want, tok.EOGs())
			for _, text := range tt.shown {
				id, ok := tok.Lookup(text)
				require.True(t, ok)
				require.Equal(t, text, string(tok.AppendPiece(nil, id, false)))
			}
		})
	}
}

// TestFalconDefault: a file without ids means token 11, if that can be meant to end a text.
func TestFalconDefault(t *testing.T) {
	none := map[string]any{"eos_token_id": nil, "bos_token_id": nil}
	tok := tiny(t, none)
	require.Equal(t, []int32{-1, -1}, []int32{tok.BOS(), tok.EOS()})
	keys := changed(tinyKeys(), none)
	keys["tokenizer.ggml.token_type"].([]int32)[11] = int32(token.Control)
	tok, err := load(t, keys)
	require.NoError(t, err)
	require.Equal(t, []int32{11, 11}, []int32{tok.BOS(), tok.EOS()})
	require.True(t, tok.EOG(11))
}

func TestWarnings(t *testing.T) {
	require.Empty(t, tiny(t, nil).Warnings())
	require.Contains(t, tiny(t, map[string]any{"pre": nil}).Warnings()[0], "tokenizer.ggml.pre")
	keys := changed(tinyKeys(), nil)
	keys["tokenizer.ggml.tokens"].([]string)['q'] = "not q"
	tok, err := load(t, keys)
	require.NoError(t, err)
	require.Contains(t, tok.Warnings()[0], "lacks 1 single bytes")
	require.Equal(t, "a", decode(t, tok, tok.Encode("aq", token.Options{}), true))
}

func TestRefused(t *testing.T) {
	n := len(tinyKeys()["tokenizer.ggml.tokens"].([]string))
	tests := []struct {
		name string
		keys map[string]any
		kind fault.Kind
		say  []string
	}{
		{"no model", map[string]any{"model": nil}, fault.Corrupt, []string{"tokenizer.ggml.model"}},
		{"wordpiece", map[string]any{"model": "bert"}, fault.Unsupported, []string{"bert"}},
		{"pre-tokenizer", map[string]any{"pre": "guess"}, fault.Unsupported, []string{"guess"}},
		{"no tokens", map[string]any{"tokens": nil}, fault.Corrupt, []string{"tokenizer.ggml.tokens"}},
		{"tokens are numbers", map[string]any{"tokens": []int32{1}}, fault.Corrupt, []string{"tokenizer.ggml.tokens", "string"}},
		{"token twice", map[string]any{"tokens": []string{"a", "b", "a"}}, fault.Corrupt, []string{"duplicate", "0", "2"}},
		{"renamed token twice", map[string]any{"tokens": []string{"[EMPTY_1]", ""}}, fault.Corrupt, []string{"duplicate"}},
		{"scores", map[string]any{"scores": []float32{1}}, fault.Corrupt, []string{"tokenizer.ggml.scores", "1", "tokens"}},
		{"types short", map[string]any{"token_type": []int32{1}}, fault.Corrupt, []string{"tokenizer.ggml.token_type"}},
		{"type unknown", map[string]any{"token_type": append(make([]int32, n-1), 7)}, fault.Corrupt, []string{"tokenizer.ggml.token_type", "7"}},
		{"no merges", map[string]any{"merges": nil}, fault.Corrupt, []string{"tokenizer.ggml.merges"}},
		{"merge of one", map[string]any{"merges": []string{"l l", "ll"}}, fault.Corrupt, []string{"tokenizer.ggml.merges", "entry 1", `"ll"`}},
		{"merge without left", map[string]any{"merges": []string{" l"}}, fault.Corrupt, []string{"entry 0"}},
		{"merge without right", map[string]any{"merges": []string{"l "}}, fault.Corrupt, []string{"entry 0"}},
		{"merge empty", map[string]any{"merges": []string{""}}, fault.Corrupt, []string{"entry 0"}},
		{"eos outside", map[string]any{"eos_token_id": uint32(n)}, fault.Corrupt, []string{"tokenizer.ggml.eos_token_id"}},
		{"bos is text", map[string]any{"bos_token_id": "x"}, fault.Corrupt, []string{"tokenizer.ggml.bos_token_id"}},
		{"flag is text", map[string]any{"add_bos_token": "x"}, fault.Corrupt, []string{"tokenizer.ggml.add_bos_token"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := load(t, changed(tinyKeys(), tt.keys))
			requireSays(t, err, append(tt.say, "tiny.gguf"))
			require.Equal(t, tt.kind, fault.KindOf(err))
		})
	}
}

// requireSays checks that a message holds each string of say, of which a|b means one.
func requireSays(t testing.TB, err error, say []string) {
	t.Helper()
	require.Error(t, err)
	message := strings.ToLower(err.Error())
	for _, all := range say {
		require.True(t, slices.ContainsFunc(strings.Split(strings.ToLower(all), "|"), func(one string) bool {
			return strings.Contains(message, one)
		}), "%v lacks %s", err, all)
	}
}
