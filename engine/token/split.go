package token

import (
	"unicode"
	"unicode/utf8"
)

// The pre-tokenizers (specs/tokenizers.md section 4) are regular expressions run by hand: several times faster than
// a regular-expression engine, linear for every input, and with look-ahead, which Go's engine lacks. The tests hold
// each against the pattern itself.

// A matcher tries to match at the start of s, which is not empty. If it matches, n bytes belong to the match;
// otherwise no match starts in the first n bytes. n is at least 1 and ends on a rune boundary.
type matcher func(s string) (n int, ok bool)

// split cuts s by the first stage into matches and the gaps between them, each of those by the next stage, and so on.
func split(stages []matcher, s string, emit func(piece string)) {
	if s == "" {
		return
	}
	if len(stages) == 0 {
		emit(s)
		return
	}
	gap := 0
	for p := 0; p < len(s); {
		n, ok := stages[0](s[p:])
		if ok {
			split(stages[1:], s[gap:p], emit)
			split(stages[1:], s[p:p+n], emit)
			gap = p + n
		}
		p += n
	}
	split(stages[1:], s[gap:], emit)
}

// class is a set of general categories; every rune has one or none.
type class uint16

const (
	upper    class = 1 << iota // Lu, Lt
	lower                      // Ll
	caseless                   // Lm, Lo
	mark                       // M
	number                     // N
	punct                      // P
	symbol                     // S
	newline                    // \r \n
	blank                      // the rest of White_Space
	letter   = upper | lower | caseless
	space    = newline | blank
)

var latin1 [256]class

func init() {
	for r := range rune(256) {
		latin1[r] = classify(r)
	}
}

func classify(r rune) class {
	switch {
	case unicode.Is(unicode.Lu, r), unicode.Is(unicode.Lt, r):
		return upper
	case unicode.Is(unicode.Ll, r):
		return lower
	case unicode.IsLetter(r):
		return caseless
	case unicode.IsMark(r):
		return mark
	case unicode.IsNumber(r):
		return number
	case unicode.IsPunct(r):
		return punct
	case unicode.IsSymbol(r):
		return symbol
	case r == '\r' || r == '\n':
		return newline
	case unicode.IsSpace(r):
		return blank
	}
	return 0
}

// classAt returns the class and the length of the first rune of s; length 0 at the end.
func classAt(s string) (class, int) {
	if s == "" {
		return 0, 0
	}
	if s[0] < utf8.RuneSelf {
		return latin1[s[0]], 1
	}
	r, n := utf8.DecodeRuneInString(s)
	if r < rune(len(latin1)) {
		return latin1[r], n
	}
	return classify(r), n
}

// run returns the length of the leading runes of s that are in set.
func run(s string, set class) int {
	return runWhile(s, len(s), func(c class) bool { return c&set != 0 })
}

// runNot is run for the complement of set.
func runNot(s string, set class) int {
	return runWhile(s, len(s), func(c class) bool { return c&set == 0 })
}

func runWhile(s string, maxRunes int, in func(class) bool) int {
	p := 0
	for range maxRunes {
		c, n := classAt(s[p:])
		if n == 0 || !in(c) {
			break
		}
		p += n
	}
	return p
}

// runBytes returns the length of the leading bytes of s that are among the ASCII characters of set.
func runBytes(s, set string) int {
	for i := 0; i < len(s); i++ {
		found := false
		for j := 0; j < len(set) && !found; j++ {
			found = s[i] == set[j]
		}
		if !found {
			return i
		}
	}
	return len(s)
}

// whitespace matches \s*[\r\n]+|\s+(?!\S)|\s+ at a white-space rune; without lines, only the last two.
func whitespace(s string, lines bool) int {
	end, last, afterLine := 0, 0, 0
	for {
		c, n := classAt(s[end:])
		if c&space == 0 {
			break
		}
		last = end
		end += n
		if c&newline != 0 {
			afterLine = end
		}
	}
	switch {
	case lines && afterLine > 0:
		return afterLine
	case end == len(s) || last == 0:
		return end
	}
	return last // leave one to start the next piece
}

// contraction matches 's|'t|'re|'ve|'m|'ll|'d; with fold in any case, where ſ counts as s.
func contraction(s string, fold bool) int {
	if len(s) < 2 || s[0] != '\'' {
		return 0
	}
	low := func(i int) byte {
		if fold && s[i] >= 'A' && s[i] <= 'Z' {
			return s[i] + 'a' - 'A'
		}
		return s[i]
	}
	switch low(1) {
	case 's', 't', 'm', 'd':
		return 2
	}
	if len(s) < 3 {
		return 0
	}
	switch string([]byte{low(1), low(2)}) {
	case "re", "ve", "ll":
		return 3
	case "ſ":
		if fold {
			return 3
		}
	}
	return 0
}

// optSpace returns 1 if s starts with a space, to be followed by what the caller requires.
func optSpace(s string) int {
	if s[0] == ' ' {
		return 1
	}
	return 0
}

// words is the pattern of llama-bpe, qwen2 and qwen35, which differ in what a word is made of (letters; letters and
// marks) and in how many digits stay together.
func words(word class, digits int) matcher {
	return func(s string) (int, bool) {
		if n := contraction(s, true); n > 0 {
			return n, true
		}
		c, n := classAt(s)
		if c&word != 0 {
			return n + run(s[n:], word), true
		}
		if c&(newline|number) == 0 {
			if k := run(s[n:], word); k > 0 {
				return n + k, true
			}
		}
		if c&number != 0 {
			return runWhile(s, digits, func(c class) bool { return c&number != 0 }), true
		}
		sp := optSpace(s)
		if k := runNot(s[sp:], space|word|number); k > 0 {
			n := sp + k
			return n + run(s[n:], newline), true
		}
		return whitespace(s, true), true
	}
}

// gpt2 is the pattern of GPT-2.
func gpt2(s string) (int, bool) {
	if n := contraction(s, false); n > 0 {
		return n, true
	}
	sp := optSpace(s)
	for _, set := range [...]class{letter, number} {
		if k := run(s[sp:], set); k > 0 {
			return sp + k, true
		}
	}
	if k := runNot(s[sp:], space|letter|number); k > 0 {
		return sp + k, true
	}
	return whitespace(s, false), true
}

// gpt4o is the pattern of o200k (with contractions) and of tekken (without): a word is upper case, then lower case,
// so that HTTPServer stays whole and camelCase is cut.
func gpt4o(contractions bool, digits int) matcher {
	return func(s string) (int, bool) {
		c, n := classAt(s)
		starts := [...]int{n, 0} // with an optional leading rune, then without
		if c&(newline|letter|number) != 0 {
			starts[0] = 0
		}
		for _, alternative := range [...]func(string) int{upperLower, upperOnly} {
			for _, start := range starts {
				if k := alternative(s[start:]); k > 0 {
					k += start
					if contractions {
						k += contraction(s[k:], true)
					}
					return k, true
				}
			}
		}
		if c&number != 0 {
			return runWhile(s, digits, func(c class) bool { return c&number != 0 }), true
		}
		sp := optSpace(s)
		if k := runNot(s[sp:], space|letter|number); k > 0 {
			k += sp
			return k + runBytes(s[k:], "\r\n/"), true
		}
		return whitespace(s, true), true
	}
}

const (
	upperish = upper | caseless | mark
	lowerish = lower | caseless | mark
)

// upperLower matches upperish* lowerish+. The first loop takes all it can and gives back down to the last rune that
// both sets hold.
func upperLower(s string) int {
	p, both := 0, 0
	for {
		c, n := classAt(s[p:])
		if c&upperish == 0 {
			break
		}
		p += n
		if c&lowerish != 0 {
			both = p
		}
	}
	if k := run(s[p:], lowerish); k > 0 {
		return p + k
	}
	return both
}

// upperOnly matches upperish+ where upperLower does not match, that is, where no lowerish rune follows.
func upperOnly(s string) int { return run(s, upperish) }

// deepseekWords is the third pattern of deepseek-v3.
func deepseekWords(s string) (int, bool) {
	c, n := classAt(s)
	if s[0] < utf8.RuneSelf && c&(punct|symbol) != 0 {
		k := 1
		for k < len(s) && (s[k]|0x20) >= 'a' && (s[k]|0x20) <= 'z' {
			k++
		}
		if k > 1 {
			return k, true
		}
	}
	if c&(letter|mark) != 0 {
		return run(s, letter|mark), true
	}
	if c&(newline|punct|symbol) == 0 {
		if k := run(s[n:], letter|mark); k > 0 {
			return n + k, true
		}
	}
	sp := optSpace(s)
	if k := run(s[sp:], punct|symbol); k > 0 {
		k += sp
		return k + run(s[k:], newline), true
	}
	if c&space != 0 {
		return whitespace(s, true), true
	}
	return n, false
}

// upTo matches one to max runes of a set.
func upTo(max int, set class) matcher {
	return func(s string) (int, bool) {
		if n := runWhile(s, max, func(c class) bool { return c&set != 0 }); n > 0 {
			return n, true
		}
		_, n := classAt(s)
		return n, false
	}
}

// runOf matches in+, or \s?in+ with optBlank.
func runOf(optBlank bool, in func(rune) bool) matcher {
	return func(s string) (int, bool) {
		c, first := classAt(s)
		p := 0
		if optBlank && c&space != 0 {
			p = first
		}
		start := p
		for p < len(s) {
			r, n := utf8.DecodeRuneInString(s[p:])
			if !in(r) {
				break
			}
			p += n
		}
		if p > start {
			return p, true
		}
		if start > 0 && in(firstRune(s)) { // the blank itself may be in the set
			return start, true
		}
		return first, false
	}
}

func firstRune(s string) rune {
	r, _ := utf8.DecodeRuneInString(s)
	return r
}

// blanksAtEnd matches \s+$.
func blanksAtEnd(s string) (int, bool) {
	n := run(s, space)
	if n == len(s) {
		return n, true
	}
	if n == 0 {
		_, n = classAt(s)
	}
	return n, false
}

// lineRuns matches [^\n]+|[\n]+.
func lineRuns(s string) (int, bool) {
	n := 1
	for n < len(s) && (s[n] == '\n') == (s[0] == '\n') {
		n++
	}
	return n, true
}

func isKanji(r rune) bool { // with kana
	return r >= 0x4E00 && r <= 0x9FA5 || r >= 0x3040 && r <= 0x30FF
}

func isEastAsian(r rune) bool { return r >= 0x800 && r <= 0x9FA5 || r >= 0xAC00 && r <= 0xD7FF }

// isDeepseekPunct is the set [!-/:-~！-／：-～‘-‟　-。] of deepseek-llm. It holds the ASCII letters, which an earlier
// stage has taken.
func isDeepseekPunct(r rune) bool {
	return r >= '!' && r <= '/' || r >= ':' && r <= '~' || r >= 0xFF01 && r <= 0xFF0F || r >= 0xFF1A && r <= 0xFF5E ||
		r >= 0x2018 && r <= 0x201F || r >= 0x3000 && r <= 0x3002
}

// isDefaultPunct is [\p{P}\$\+<=>\^~\|].
func isDefaultPunct(r rune) bool {
	switch r {
	case '$', '+', '<', '=', '>', '^', '~', '|':
		return true
	}
	return unicode.IsPunct(r)
}

func isDigit(r rune) bool { return r >= '0' && r <= '9' }

// threeDigits matches [0-9][0-9][0-9].
func threeDigits(s string) (int, bool) {
	if len(s) >= 3 && isDigit(rune(s[0])) && isDigit(rune(s[1])) && isDigit(rune(s[2])) {
		return 3, true
	}
	_, n := classAt(s)
	return n, false
}

// pretokenizer is what a value of tokenizer.ggml.pre stands for.
type pretokenizer struct {
	stages       []matcher
	addBOS       bool // unless the file says otherwise
	ignoreMerges bool // a piece that is a token is not merged
	clearBOS     bool // the file's begin-of-text id is not used
}

// pretokenizers returns what a name stands for; false if it is not known.
func pretokenizers(name string) (pretokenizer, bool) {
	switch name {
	case "gpt-2", "olmo":
		return pretokenizer{stages: []matcher{gpt2}}, true
	case "qwen2", "deepseek-r1-qwen", "megrez", "bailingmoe", "bailingmoe2", "llada-moe":
		// The newline alternative of the bailingmoe names, \s*[\r\n], takes the same text as \s*[\r\n]+.
		return pretokenizer{stages: []matcher{words(letter, 1)}}, true
	case "qwen35":
		return pretokenizer{stages: []matcher{words(letter|mark, 1)}}, true
	case "llama-bpe", "llama3", "llama-v3", "lfm2":
		return pretokenizer{stages: []matcher{words(letter, 3)}, addBOS: true, ignoreMerges: true}, true
	case "dbrx", "smaug-bpe":
		return pretokenizer{stages: []matcher{words(letter, 3)}}, true
	case "glm4":
		return pretokenizer{stages: []matcher{words(letter, 3)}, clearBOS: true}, true
	case "gpt-4o", "llama4", "kanana2":
		return pretokenizer{stages: []matcher{gpt4o(true, 3)}}, true
	case "tekken":
		return pretokenizer{stages: []matcher{gpt4o(false, 1)}, addBOS: true, ignoreMerges: true}, true
	case "deepseek-v3", "deepseek-v4", "joyai-llm", "hunyuan-dense", "hy_v4":
		return pretokenizer{stages: []matcher{upTo(3, number), runOf(false, isKanji), deepseekWords}}, true
	case "deepseek-llm":
		return pretokenizer{stages: []matcher{upTo(1, newline), runOf(true, isCased), runOf(true, isDeepseekPunct),
			blanksAtEnd, runOf(false, isEastAsian), runOf(false, unicode.IsNumber)}}, true
	case "deepseek-coder":
		return pretokenizer{stages: []matcher{upTo(1, newline), runOf(true, unicode.IsLetter), runOf(true, unicode.IsPunct),
			runOf(false, isEastAsian), upTo(1, number)}}, true
	case "laguna":
		return pretokenizer{stages: []matcher{lineRuns, words(letter, 1)}}, true
	case "default":
		return pretokenizer{stages: []matcher{runOf(false, isDefaultPunct), gpt2, runOf(false, unicode.IsNumber), threeDigits}}, true
	}
	return pretokenizer{}, false
}
