package token

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/dlclark/regexp2"
	"github.com/stretchr/testify/require"
)

// The patterns of specs/tokenizers.md section 4, which the scanners stand for.
const (
	patternContraction = `(?i:'s|'t|'re|'ve|'m|'ll|'d)`
	patternSpace       = `\s*[\r\n]+|\s+(?!\S)|\s+`
	patternQwen2       = patternContraction + `|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|` + patternSpace
	patternGPT2        = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
	patternEastAsian   = `[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+`
	setUpper           = `[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]`
	setLower           = `[\p{Ll}\p{Lm}\p{Lo}\p{M}]`
)

func o200k(contraction, digits string) string {
	return `[^\r\n\p{L}\p{N}]?` + setUpper + `*` + setLower + `+` + contraction +
		`|[^\r\n\p{L}\p{N}]?` + setUpper + `+` + setLower + `*` + contraction +
		`|` + digits + `| ?[^\s\p{L}\p{N}]+[\r\n/]*|` + patternSpace
}

func casedSet() string {
	var b strings.Builder
	for _, r := range cased {
		b.WriteRune(r[0])
		b.WriteByte('-')
		b.WriteRune(r[1])
	}
	return b.String()
}

var patterns = map[string][]string{
	"gpt-2":      {patternGPT2},
	"qwen2":      {patternQwen2},
	"bailingmoe": {strings.Replace(patternQwen2, `\s*[\r\n]+`, `\s*[\r\n]`, 1)},
	"qwen35": {patternContraction + `|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|` +
		patternSpace},
	"llama-bpe": {strings.Replace(patternQwen2, `|\p{N}|`, `|\p{N}{1,3}|`, 1)},
	"gpt-4o":    {o200k(patternContraction+"?", `\p{N}{1,3}`)},
	"tekken":    {o200k("", `\p{N}`)},
	"deepseek-v3": {`\p{N}{1,3}`, `[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+`,
		"[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|" + patternSpace},
	"deepseek-llm": {`[\r\n]`, `\s?[` + casedSet() + `]+`, `\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+`,
		`\s+\z`, patternEastAsian, `\p{N}+`},
	"deepseek-coder": {`[\r\n]`, `\s?\p{L}+`, `\s?\p{P}+`, patternEastAsian, `\p{N}`},
	"laguna":         {`[^\n]+|[\n]+`, patternQwen2},
	"default":        {`[\p{P}\$\+<=>\^~\|]+`, patternGPT2, `\p{N}+`, `[0-9][0-9][0-9]`},
}

func compile(t testing.TB) map[string][]*regexp2.Regexp {
	out := map[string][]*regexp2.Regexp{}
	for name, list := range patterns {
		for _, p := range list {
			re, err := regexp2.Compile(p, regexp2.None)
			require.NoError(t, err, name)
			out[name] = append(out[name], re)
		}
	}
	return out
}

// splitByPattern applies each pattern to all pieces so far and keeps matches and gaps.
func splitByPattern(t testing.TB, list []*regexp2.Regexp, s string) []string {
	pieces := []string{s}
	for _, re := range list {
		var next []string
		keep := func(r []rune) {
			if len(r) > 0 {
				next = append(next, string(r))
			}
		}
		for _, p := range pieces {
			runes, gap := []rune(p), 0
			m, err := re.FindStringMatch(p)
			for ; m != nil && err == nil; m, err = re.FindNextMatch(m) {
				keep(runes[gap:m.Index])
				keep(runes[m.Index : m.Index+m.Length])
				gap = m.Index + m.Length
			}
			require.NoError(t, err)
			keep(runes[gap:])
		}
		pieces = next
	}
	return pieces
}

func splitByName(t testing.TB, name, s string) []string {
	p, ok := pretokenizers(name)
	require.True(t, ok, name)
	var out []string
	split(p.stages, s, func(piece string) { out = append(out, piece) })
	return out
}

// TestSplitGolden holds the splits of specs/tokenizers.md section 4.3.
func TestSplitGolden(t *testing.T) {
	tests := []struct {
		text string
		want map[string][]string
	}{
		{"Hello, world!  It's 2024: don't PANIC.\n\n  \tEnd  ", map[string][]string{
			"llama-bpe deepseek-v3": {"Hello", ",", " world", "!", " ", " It", "'s", " ", "202", "4", ":", " don", "'t", " PANIC", ".\n\n", "  ", "\tEnd", "  "},
			"qwen2 qwen35":          {"Hello", ",", " world", "!", " ", " It", "'s", " ", "2", "0", "2", "4", ":", " don", "'t", " PANIC", ".\n\n", "  ", "\tEnd", "  "},
			"gpt-4o":                {"Hello", ",", " world", "!", " ", " It's", " ", "202", "4", ":", " don't", " PANIC", ".\n\n", "  ", "\tEnd", "  "}}},
		{"x = foo(bar[10], 1234567);\n\n    return x\n", map[string][]string{
			"llama-bpe gpt-4o deepseek-v3": {"x", " =", " foo", "(bar", "[", "10", "],", " ", "123", "456", "7", ");\n\n", "   ", " return", " x", "\n"},
			"qwen2 qwen35":                 {"x", " =", " foo", "(bar", "[", "1", "0", "],", " ", "1", "2", "3", "4", "5", "6", "7", ");\n\n", "   ", " return", " x", "\n"}}},
		{"HTTPServer parseURL's iPhone15 I'LL he'd", map[string][]string{
			"llama-bpe deepseek-v3": {"HTTPServer", " parseURL", "'s", " iPhone", "15", " I", "'LL", " he", "'d"},
			"qwen2 qwen35":          {"HTTPServer", " parseURL", "'s", " iPhone", "1", "5", " I", "'LL", " he", "'d"},
			"gpt-4o":                {"HTTPServer", " parse", "URL's", " i", "Phone", "15", " I'LL", " he'd"}}},
		{"Ünïcödé ÀÉîõ СССРия ПриветМир", map[string][]string{
			"llama-bpe qwen2 qwen35 deepseek-v3": {"Ünïcödé", " ÀÉîõ", " СССРия", " ПриветМир"},
			"gpt-4o":                             {"Ünïcödé", " ÀÉîõ", " СССРия", " Привет", "Мир"}}},
		{"e\u0301a\u0308 नमस्ते दुनिया 한국어 テスト漢字かな12345", map[string][]string{
			"llama-bpe":   {"e", "\u0301a", "\u0308", " नमस", "्त", "े", " द", "ुन", "िय", "ा", " 한국어", " テスト漢字かな", "123", "45"},
			"qwen2":       {"e", "\u0301a", "\u0308", " नमस", "्त", "े", " द", "ुन", "िय", "ा", " 한국어", " テスト漢字かな", "1", "2", "3", "4", "5"},
			"qwen35":      {"e\u0301a\u0308", " नमस्ते", " दुनिया", " 한국어", " テスト漢字かな", "1", "2", "3", "4", "5"},
			"gpt-4o":      {"e\u0301a\u0308", " नमस्ते", " दुनिया", " 한국어", " テスト漢字かな", "123", "45"},
			"deepseek-v3": {"e\u0301a\u0308", " नमस्ते", " दुनिया", " 한국어", " ", "テスト漢字かな", "123", "45"}}},
		{"a\u3000\u3000b\u00a0c\u2028d  \u0085e", map[string][]string{
			"llama-bpe qwen2 qwen35 gpt-4o deepseek-v3": {"a", "\u3000", "\u3000b", "\u00a0c", "\u2028d", "  ", "\u0085e"}}},
		{"½ ² ٣٤ Ⅳ ①②③④", map[string][]string{
			"llama-bpe gpt-4o deepseek-v3": {"½", " ", "²", " ", "٣٤", " ", "Ⅳ", " ", "①②③", "④"},
			"qwen2 qwen35":                 {"½", " ", "²", " ", "٣", "٤", " ", "Ⅳ", " ", "①", "②", "③", "④"}}},
		{"🙂🙂 👩\u200d💻!? -- /path/to/file\r\n\r\n---\r\n", map[string][]string{
			"llama-bpe qwen2 qwen35 gpt-4o": {"🙂🙂", " 👩\u200d💻!?", " --", " /", "path", "/to", "/file", "\r\n\r\n", "---\r\n"},
			"deepseek-v3":                   {"🙂🙂", " 👩", "\u200d", "💻!?", " --", " /", "path", "/to", "/file", "\r\n\r\n", "---\r\n"}}},
		{"   leading\n \n  x\t\ty ", map[string][]string{
			"llama-bpe qwen2 qwen35 gpt-4o deepseek-v3": {"  ", " leading", "\n \n", " ", " x", "\t", "\ty", " "}}},
		{"'Tis 'tis rock'n'roll 's 'ſ", map[string][]string{
			"llama-bpe qwen2 qwen35": {"'T", "is", " '", "tis", " rock", "'n", "'roll", " '", "s", " '", "ſ"},
			"gpt-4o deepseek-v3":     {"'Tis", " '", "tis", " rock", "'n", "'roll", " '", "s", " '", "ſ"}}},
		{"$100.50 #tag @user <|im_start|> _under_score__", map[string][]string{
			"llama-bpe gpt-4o deepseek-v3": {"$", "100", ".", "50", " #", "tag", " @", "user", " <|", "im", "_start", "|>", " _", "under", "_score", "__"},
			"qwen2 qwen35":                 {"$", "1", "0", "0", ".", "5", "0", " #", "tag", " @", "user", " <|", "im", "_start", "|>", " _", "under", "_score", "__"}}},
	}
	for _, tt := range tests {
		for names, want := range tt.want {
			for _, name := range strings.Fields(names) {
				require.Equal(t, want, splitByName(t, name, tt.text), "%s: %q", name, tt.text)
			}
		}
	}
}

// TestLongS: ſ folds to s where a pattern folds case. The engine behind FuzzSplit does not know that.
func TestLongS(t *testing.T) {
	require.Equal(t, []string{"a", "'ſ", "x"}, splitByName(t, "qwen2", "a'ſx"))
	require.Equal(t, []string{"a'ſ", "x"}, splitByName(t, "gpt-4o", "a'ſx"))
	require.Equal(t, []string{"a", "'", "ſx"}, splitByName(t, "gpt-2", "a'ſx"))
}

func FuzzSplit(f *testing.F) {
	for _, s := range []string{
		"", " ", "\n", "\r\n \n\tx", "I'LL they've 'd '", "HTTPServer camelCase ǅ ʰ", "1234 ½²Ⅳ", "  a\u3000\u3000!\u0301\u0301 \u0301",
		"日本語カナ한국어かな", "//\n/\n\r/a", "$x<|y|>^`~", "\u200d\ufeff\x00\x7f", "a\u00a0\u2028b \u0085", "!a !1 \tb\u0301", "ⴀⲀꭰ\U0001E900 ø",
		"A\u0301B\u0301c\u0301DE", " \u3000。\u3000x", "12345678 1 23456\n\n9",
	} {
		f.Add(s)
	}
	compiled := compile(f)
	f.Fuzz(func(t *testing.T, s string) {
		if !utf8.ValidString(s) || strings.ContainsRune(s, 'ſ') || len(s) > 300 {
			return
		}
		for name, list := range compiled {
			require.Equal(t, splitByPattern(t, list, s), splitByName(t, name, s), "%s: %q", name, s)
		}
	})
}
