package token_test

import (
	"math"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/engine/token"
)

// FuzzRoundtrip: whatever is encoded decodes to itself, but for bytes that are no character.
func FuzzRoundtrip(f *testing.F) {
	for _, s := range []string{"", "hello world", "<|im_start|>a<think>!b<|im_end", "\xff\xe2\x82日", "   \n\n é\x00", "øø<think><think>!", "\u0100\u0143"} {
		f.Add(s)
	}
	toks := []*token.Tokenizer{tinyGemma(f, nil), tiny(f, nil), tiny(f, map[string]any{"pre": "llama-bpe", "add_bos_token": false}),
		tiny(f, map[string]any{"pre": "gpt-4o", "merges": []string{"x y", "xy z"}})}
	f.Fuzz(func(t *testing.T, s string) {
		var want strings.Builder
		for _, r := range s {
			want.WriteRune(r)
		}
		for _, tok := range toks {
			for _, o := range modes {
				ids := tok.Encode(s, o)
				got := decode(t, tok, ids, true)
				if bos := tok.BOS(); o.AddSpecial && tok.AddsBOS() {
					got = strings.TrimPrefix(got, string(tok.Piece(bos)))
				}
				if tok == toks[0] { // a mark in the text is taken for the space it stands for
					want := strings.ReplaceAll(want.String(), "▁", " ")
					require.Equal(t, want, got)
					continue
				}
				require.Equal(t, want.String(), got)
			}
		}
	})
}

// FuzzScores holds the heap against the definition: of all neighbours that spell a token, join those of the highest
// score, leftmost first.
func FuzzScores(f *testing.F) {
	f.Add("abcabc", "aabbccabcabc", []byte{1, 2, 3})
	f.Add("aaaa", "aaaaaaa", []byte{7})
	f.Add("abacbd", "ddccbbaaabcd\xff", []byte{0, 0, 200})
	f.Fuzz(func(t *testing.T, words, text string, scores []byte) {
		words, text = words[:min(len(words), 64)], text[:min(len(text), 200)]
		keys := changed(tinySPMKeys(), map[string]any{"add_space_prefix": false})
		tokens, weights := keys["tokenizer.ggml.tokens"].([]string), keys["tokenizer.ggml.scores"].([]float32)
		for i := 0; i < len(words) && len(scores) > 0; i += 2 {
			word := strings.Map(func(r rune) rune { return 'a' + r%4 }, words[i:min(len(words), i+2+i%3)])
			if utf8.ValidString(word) && !slices.Contains(tokens, word) {
				tokens, weights = append(tokens, word), append(weights, float32(int8(scores[i%len(scores)])))
			}
		}
		keys["tokenizer.ggml.tokens"], keys["tokenizer.ggml.scores"] = tokens, weights
		keys["tokenizer.ggml.token_type"] = append(keys["tokenizer.ggml.token_type"].([]int32), slices.Repeat([]int32{1}, len(tokens)-tinySPMTokens)...)
		tok, err := load(t, keys)
		require.NoError(t, err)

		text = strings.Map(func(r rune) rune { return 'a' + r%4 }, text)
		want := strings.Split(text, "")
		for {
			best, at := float32(math.Inf(-1)), -1
			for i := range len(want) - 1 {
				if id := slices.Index(tokens, want[i]+want[i+1]); id >= 0 && weights[id] > best {
					best, at = weights[id], i
				}
			}
			if at < 0 {
				break
			}
			want = slices.Replace(want, at, at+2, want[at]+want[at+1])
		}
		got := []string{}
		for _, id := range tok.Encode(text, token.Options{}) {
			got = append(got, string(tok.Piece(id)))
		}
		require.Equal(t, want, got)
	})
}

// FuzzStream pushes arbitrary tokens, most of which are single bytes and beginnings of characters.
func FuzzStream(f *testing.F) {
	f.Add([]byte("hello"))
	f.Add([]byte{0xE6, 0x97, 0xA5, 0xE6, 0x97, 'a', 0xF0, 0x9F, 0x98})
	f.Add([]byte{0xC0, 0x80, 0xED, 0xA0, 0x80, 0xF4, 0x90, 0x80, 0x80, 0xFF})
	f.Add([]byte{1, 0, 1, 5, 0xF0, 0x9F, 1, 20, 0x98, 0x80})
	tok := tiny(f, nil)
	f.Fuzz(func(t *testing.T, data []byte) {
		var ids []int32
		for i := 0; i < len(data); i++ {
			id := int32(data[i])
			if data[i] == 1 && i+1 < len(data) { // beyond the single bytes
				i++
				id = (256 + int32(data[i])) % int32(tok.Vocab())
			}
			ids = append(ids, id)
		}
		checkStream(t, tok, ids)
	})
}

// FuzzMerge holds the heap against the definition: of all adjacent pairs, join the one of lowest rank, leftmost first.
func FuzzMerge(f *testing.F) {
	f.Add("abcabc", "aabbccabcabc")
	f.Add("aaaa", "aaaaaaa")
	f.Add("abacbd", "ddccbbaaabcd")
	f.Fuzz(func(t *testing.T, rules, text string) {
		letters := func(s string, most int) string {
			out := []byte(s[:min(len(s), most)])
			for i := range out {
				out[i] = 'a' + out[i]%4
			}
			return string(out)
		}
		rules, text = letters(rules, 64), letters(text, 200)
		// Two bytes of rules make a pair: each names a symbol that exists so far.
		symbols := []string{"a", "b", "c", "d"}
		var list [][2]string
		var spelled []string
		for i := 0; i+1 < len(rules); i += 2 {
			left := symbols[(int(rules[i])*7+i)%len(symbols)]
			right := symbols[(int(rules[i+1])*5+i)%len(symbols)]
			if len(left+right) > 12 {
				continue
			}
			list = append(list, [2]string{left, right})
			spelled = append(spelled, left+" "+right)
			if !slices.Contains(symbols, left+right) {
				symbols = append(symbols, left+right)
			}
		}
		keys := changed(tinyKeys(), map[string]any{"merges": append([]string{"y z"}, spelled...)})
		tokens := keys["tokenizer.ggml.tokens"].([]string)
		for _, s := range symbols {
			if !slices.Contains(tokens, s) {
				tokens = append(tokens, s)
			}
		}
		keys["tokenizer.ggml.tokens"] = tokens
		delete(keys, "tokenizer.ggml.token_type")
		tok, err := load(t, keys)
		require.NoError(t, err)

		want := strings.Split(text, "")
		for len(want) > 1 {
			best, at := len(list), 0
			for i := range len(want) - 1 {
				if r := slices.Index(list, [2]string{want[i], want[i+1]}); r >= 0 && r < best {
					best, at = r, i
				}
			}
			if best == len(list) {
				break
			}
			want = slices.Replace(want, at, at+2, want[at]+want[at+1])
		}
		got := []string{}
		for _, id := range tok.Encode(text, token.Options{}) {
			got = append(got, string(tok.Piece(id)))
		}
		require.Equal(t, want, got)
	})
}

func BenchmarkNew(b *testing.B) {
	for _, name := range []string{"qwen2", "gpt-oss", "gemma-4"} {
		b.Run(name, func(b *testing.B) {
			f := file(b, name)
			defer f.Close()
			b.ReportAllocs()
			for b.Loop() {
				tok, err := token.New(f)
				require.NoError(b, err)
				b.ReportMetric(float64(tok.SizeBytes())/(1<<20), "MiB")
			}
		})
	}
}

func BenchmarkEncode(b *testing.B) {
	english := strings.Repeat("The quick brown fox jumps over the lazy dog; it didn't look back 42 times.\n", 200)
	for _, vocabulary := range []string{"qwen2", "gemma-4", "llama-spm"} {
		tok := open(b, vocabulary)
		for name, text := range map[string]string{"english": english, "word": strings.Repeat("pneumono", 2000), "spaces": strings.Repeat(" ", 16000)} {
			b.Run(vocabulary+"/"+name, func(b *testing.B) {
				b.SetBytes(int64(len(text)))
				for b.Loop() {
					tok.Encode(text, token.Options{})
				}
			})
		}
	}
}
