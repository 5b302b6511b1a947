package token_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/engine/token"
	"github.com/bigmoe/bigmoe/sdk/fault"
)

// spacedKeys describes a vocabulary that writes ▁ for a space: special tokens, the bytes, then words.
func spacedKeys(model string, special []string, words ...string) map[string]any {
	var tokens []string
	var types []int32
	add := func(typ token.Type, texts ...string) {
		tokens = append(tokens, texts...)
		types = append(types, slices.Repeat([]int32{int32(typ)}, len(texts))...)
	}
	add(token.Unknown, special[0])
	add(token.Control, special[1:]...)
	for b := range 256 {
		add(token.Byte, fmt.Sprintf("<0x%02X>", b))
	}
	add(token.Normal, words...)
	add(token.UserDefined, "<think>")
	add(token.Unused, "[PAD9]")
	return map[string]any{"tokenizer.ggml.model": model, "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types}
}

func tinyGemmaKeys() map[string]any {
	keys := spacedKeys("gemma4", []string{"<unk>", "<bos>", "<eos>", "<turn|>", "<|tool_response>"},
		"▁", "a", "b", "c", "é", "日", "\n", "\n\n", "\n\n\n", "▁a", "ab", "▁ab", "▁▁", "c▁a", "</s>")
	keys["tokenizer.ggml.merges"] = []string{"▁ ▁", "a b", "▁ ab", "▁ a", "c ▁a", "\n \n", "x y"}
	keys["tokenizer.ggml.bos_token_id"] = uint32(1)
	keys["tokenizer.ggml.eos_token_id"] = uint32(2)
	return keys
}

func tinyGemma(t testing.TB, change map[string]any) *token.Tokenizer {
	t.Helper()
	tok, err := load(t, changed(tinyGemmaKeys(), change))
	require.NoError(t, err)
	return tok
}

const tinySPMTokens = 3 + 256 + 15 + 2

func tinySPMKeys() map[string]any {
	keys := spacedKeys("llama", []string{"<unk>", "<s>", "</s>"},
		"▁", "a", "b", "c", "é", "日", "ab", "bc", "abc", "▁a", "▁ab", "▁▁", "▁▁▁", "ca", "caa")
	scores := make([]float32, tinySPMTokens)
	for i, s := range []float32{-20, -20, -20, -20, -20, -20, -3, -2, -9, -4, -5, -1, -1, 0.5, 7} {
		scores[3+256+i] = s
	}
	keys["tokenizer.ggml.scores"] = scores
	return keys
}

func tinySPM(t testing.TB, change map[string]any) *token.Tokenizer {
	t.Helper()
	tok, err := load(t, changed(tinySPMKeys(), change))
	require.NoError(t, err)
	return tok
}

// texts spells ids as the file does.
func texts(tok *token.Tokenizer, keys map[string]any, ids []int32) []string {
	out := []string{}
	for _, id := range ids {
		out = append(out, keys["tokenizer.ggml.tokens"].([]string)[id])
	}
	return out
}

func TestEncodeGemma(t *testing.T) {
	both := token.Options{AddSpecial: true, ParseSpecial: true}
	for _, tt := range []struct {
		name    string
		keys    map[string]any
		text    string
		options token.Options
		want    string // token texts, separated by spaces
	}{
		{"empty", nil, "", token.Options{}, ""},
		{"bos alone", nil, "", both, "<bos>"},
		{"bos whatever the file says", map[string]any{"add_bos_token": false}, "a", both, "<bos> a"},
		{"eos if the file says so", map[string]any{"add_eos_token": true}, "a", both, "<bos> a <eos>"},
		{"no space in front", nil, "ab ab", token.Options{}, "ab ▁ab"},
		{"space prefix is not for this one", map[string]any{"add_space_prefix": true}, "ab", token.Options{}, "ab"},
		{"spaces join first", nil, "a   ab", token.Options{}, "a ▁▁ ▁ab"},
		{"merges cross words", nil, "c a", token.Options{}, "c▁a"},
		{"a mark is a space", nil, "c▁a", token.Options{}, "c▁a"},
		{"characters", nil, "é日", token.Options{}, "é 日"},
		{"bytes of a stranger", nil, "aß日", token.Options{}, "a <0xC3> <0x9F> 日"},
		{"bytes of a joined stranger", nil, "xyab", token.Options{}, "<0x78> <0x79> ab"},
		{"ill-formed", nil, "a\xff", token.Options{}, "a <0xEF> <0xBF> <0xBD>"},
		{"special", nil, "a<think> b<eos>", token.Options{ParseSpecial: true}, "a <think> ▁ b <eos>"},
		{"user-defined alone", nil, "<think><eos>", token.Options{}, "<think> <0x3C> <0x65> <0x6F> <0x73> <0x3E>"},
		{"model gpt2", map[string]any{"model": "gpt2", "pre": "gemma4"}, "c a", both, "<bos> c▁a"},
		{"model llama", map[string]any{"model": "llama", "pre": "gemma4"}, "c a", both, "<bos> c▁a"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tok := tinyGemma(t, tt.keys)
			require.Equal(t, strings.Fields(tt.want), texts(tok, tinyGemmaKeys(), tok.Encode(tt.text, tt.options)))
		})
	}
	// A run of newlines is one token if there is one, whatever the merges lead to; otherwise it is merged.
	tok := tinyGemma(t, nil)
	require.Equal(t, []string{"a", "\n\n\n", "a", "\n\n", "\n\n", "b"}, texts(tok, tinyGemmaKeys(), tok.Encode("a\n\n\na\n\n\n\nb", token.Options{})))
}

func TestEncodeSPM(t *testing.T) {
	both := token.Options{AddSpecial: true, ParseSpecial: true}
	for _, tt := range []struct {
		name    string
		keys    map[string]any
		text    string
		options token.Options
		want    string // token texts, separated by spaces
	}{
		{"empty", nil, "", token.Options{}, ""},
		{"bos alone", nil, "", both, "<s>"},
		{"no bos", map[string]any{"add_bos_token": false}, "", both, ""},
		{"eos", map[string]any{"add_eos_token": true}, "", both, "<s> </s>"},
		{"space in front", nil, "b", token.Options{}, "▁ b"},
		{"no space in front", map[string]any{"add_space_prefix": false}, "b", token.Options{}, "b"},
		{"highest score first", nil, "abc", token.Options{}, "▁a bc"},
		{"then what that allows", nil, "babc", token.Options{}, "▁ b abc"},
		{"leftmost of equals", nil, "b     b", token.Options{}, "▁ b ▁▁▁ ▁▁ b"},
		{"positive scores", nil, "bcaa", token.Options{}, "▁ b caa"},
		{"space in front of every fragment", nil, "a<think>a</s>b", token.Options{ParseSpecial: true}, "▁a <think> ▁a </s> ▁ b"},
		{"bytes of a stranger", nil, "ß", token.Options{}, "▁ <0xC3> <0x9F>"},
		{"ill-formed bytes are kept", nil, "b\xff", token.Options{}, "▁ b <0xFF>"},
		{"an unfinished character takes what follows", nil, "\xe6b", token.Options{}, "▁ <0xE6> <0x62>"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tok := tinySPM(t, tt.keys)
			require.Equal(t, strings.Fields(tt.want), texts(tok, tinySPMKeys(), tok.Encode(tt.text, tt.options)))
		})
	}
}

// TestByteFallback: where a byte has no token of its own its character stands in, then <unk>.
func TestByteFallback(t *testing.T) {
	keys := tinySPMKeys()
	tokens := keys["tokenizer.ggml.tokens"].([]string)
	tokens[slices.Index(tokens, "<0x78>")], tokens[slices.Index(tokens, "<0x79>")] = "x", "?"
	tok, err := load(t, keys)
	require.NoError(t, err)
	require.Empty(t, tok.Warnings())
	require.Equal(t, []string{"▁", "x", "<unk>"}, texts(tok, keys, tok.Encode("xy", token.Options{})))

	keys = changed(tinyGemmaKeys(), nil)
	tokens = keys["tokenizer.ggml.tokens"].([]string)
	tokens[slices.Index(tokens, "<0x78>")] = "?"
	tok, err = load(t, keys)
	require.NoError(t, err)
	require.Contains(t, tok.Warnings()[0], "lacks 1 single bytes")
	require.Equal(t, []string{"<0x79>"}, texts(tok, keys, tok.Encode("xy", token.Options{})), "the merge of x and y is no token")
}

func TestDecodeSpaced(t *testing.T) {
	tok := tinySPM(t, nil)
	require.Equal(t, []int32{1, 2}, []int32{tok.BOS(), tok.EOS()}, "defaults")
	for _, text := range []string{"", "ab ab", " ab", "   ", "日é ß\xff"} {
		require.Equal(t, text, decode(t, tok, tok.Encode(text, token.Options{}), true), "%q", text)
	}
	ids := tok.Encode("a b", token.Options{AddSpecial: true})
	require.Equal(t, "<s> a b", decode(t, tok, ids, true), "as llama.cpp has it: the space in front is that of the first token alone")
	require.Equal(t, " a b", decode(t, tok, ids, false))
	require.Equal(t, " a b", decode(t, tinySPM(t, map[string]any{"add_space_prefix": false}), ids[1:], true), "its own space stays")
	s := tok.Stream(false)
	require.Equal(t, " a", s.Push(ids[1]), "a stream may continue a text")
}

func TestEndsGemma(t *testing.T) {
	tok := tinyGemma(t, nil)
	require.Equal(t, []int32{2, 3, 4}, tok.EOGs())
	word, ok := tok.Lookup("</s>")
	require.True(t, ok)
	require.Equal(t, token.Normal, tok.Type(word))
	require.Equal(t, "</s>", string(tok.AppendPiece(nil, word, false)))
	keys := tinyGemmaKeys()
	keys["tokenizer.ggml.tokens"].([]string)[4] = "<|tool>"
	tok, err := load(t, keys)
	require.NoError(t, err)
	require.Equal(t, []int32{2, 3, word}, tok.EOGs(), "</s> ends a text where nothing is handed over")
}

func TestRefusedSpaced(t *testing.T) {
	scores := func(last float64) []float32 {
		s := slices.Clone(tinySPMKeys()["tokenizer.ggml.scores"].([]float32))
		s[len(s)-1] = float32(last)
		return s
	}
	for _, tt := range []struct {
		name string
		keys map[string]any
		say  []string
	}{
		{"gemma without merges", changed(tinyGemmaKeys(), map[string]any{"merges": nil}), []string{"tokenizer.ggml.merges"}},
		{"gemma without bos", changed(tinyGemmaKeys(), map[string]any{"bos_token_id": nil}), []string{"tokenizer.ggml.bos_token_id"}},
		{"no scores", changed(tinySPMKeys(), map[string]any{"scores": nil}), []string{"tokenizer.ggml.scores"}},
		{"scores of words", changed(tinySPMKeys(), map[string]any{"scores": tinySPMKeys()["tokenizer.ggml.tokens"]}), []string{"tokenizer.ggml.scores", "number"}},
		{"score is not a number", changed(tinySPMKeys(), map[string]any{"scores": scores(math.NaN())}), []string{"tokenizer.ggml.scores", fmt.Sprint(tinySPMTokens - 1)}},
		{"unknown outside", changed(tinySPMKeys(), map[string]any{"unknown_token_id": uint32(9999)}), []string{"tokenizer.ggml.unknown_token_id"}},
		{"prefix is text", changed(tinySPMKeys(), map[string]any{"add_space_prefix": "x"}), []string{"tokenizer.ggml.add_space_prefix"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := load(t, tt.keys)
			requireSays(t, err, append(tt.say, "tiny.gguf"))
			require.Equal(t, fault.Corrupt, fault.KindOf(err))
		})
	}
	_, err := load(t, changed(tinySPMKeys(), map[string]any{"scores": scores(math.Inf(-1))}))
	require.NoError(t, err)
	_, err = load(t, changed(tinySPMKeys(), map[string]any{"scores": slices.Repeat([]int32{-3}, tinySPMTokens)}))
	require.NoError(t, err, "whole numbers are seen too")
}
