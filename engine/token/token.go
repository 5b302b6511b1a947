package token

import (
	"bytes"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/bigmoe/bigmoe/sdk/fault"
)

// Tokenizer is a vocabulary with the rules that it applies to text. Make one with [New].
type Tokenizer struct {
	family       family
	vocab        *vocab
	merges       *merges     // nil if scored
	scores       []uint32    // of the tokens, best first: nil unless scored
	byteID       [256]uint32 // the symbol that spells each byte where nothing longer does; noSymbol if none
	special      *specials   // control, unknown and user-defined
	userDefined  *specials
	stages       []matcher
	ignoreMerges bool
	spacePrefix  bool  // text is encoded as if a space preceded it
	bos, eos     int32 // -1 = none
	addBOS       bool
	addEOS       bool
	eog          []int32 // ascending
	warnings     []string
}

// Options of [Tokenizer.Encode].
type Options struct {
	AddSpecial   bool // begin and end with BOS and EOS where the model wants them
	ParseSpecial bool // text that spells a control or unknown token becomes that token
}

// Encode returns the ids of text (specs/tokenizers.md sections 2, 3, 5 and 6).
func (t *Tokenizer) Encode(text string, o Options) []int32 {
	if t.family != scored {
		text = wellFormed(text)
	}
	ids := make([]int32, 0, len(text)/3+2)
	if o.AddSpecial && t.addBOS && t.bos >= 0 {
		ids = append(ids, t.bos)
	}
	cut := t.userDefined
	if o.ParseSpecial {
		cut = t.special
	}
	b := bpe{t: t}
	for text != "" {
		start, end, id := cut.next(text) // what precedes is the first fragment or follows a special token
		split(t.stages, t.normalize(text[:start]), func(piece string) { ids = b.piece(ids, piece) })
		if end > start {
			ids = append(ids, int32(id))
		}
		text = text[end:]
	}
	if o.AddSpecial && t.addEOS && t.eos >= 0 {
		ids = append(ids, t.eos)
	}
	return ids
}

// normalize writes the spaces of a fragment as the vocabulary does.
func (t *Tokenizer) normalize(fragment string) string {
	if t.family == byteLevel || fragment == "" {
		return fragment
	}
	fragment = strings.ReplaceAll(fragment, " ", spaceMark)
	if t.spacePrefix {
		fragment = spaceMark + fragment
	}
	return fragment
}

// wellFormed replaces every byte that is not part of well-formed UTF-8 by U+FFFD, one for each.
func wellFormed(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		b.WriteRune(r)
	}
	return b.String()
}

// Decode returns the bytes that ids, a whole text, stand for; they need not be valid UTF-8. The space that Encode puts
// before a text of some vocabularies is taken away; to continue a text, use a [Stream] or [Tokenizer.AppendPiece]. An
// id outside the vocabulary is a mistake of the user.
func (t *Tokenizer) Decode(ids []int32, showControl bool) ([]byte, error) {
	out := make([]byte, 0, 4*len(ids))
	for i, id := range ids {
		if !t.has(id) {
			return nil, fault.Userf("token id %d (number %d of %d) is outside the vocabulary of %d tokens", id, i+1, len(ids), t.Vocab())
		}
		out = t.AppendPiece(out, id, showControl)
	}
	if t.spacePrefix && len(ids) > 0 && t.Type(ids[0]) == Normal {
		out = bytes.TrimPrefix(out, []byte(" "))
	}
	return out, nil
}

// Piece returns the bytes of one token, control tokens included; nothing for an id outside the vocabulary.
func (t *Tokenizer) Piece(id int32) []byte { return t.AppendPiece(nil, id, true) }

// AppendPiece appends the bytes of one token (specs/tokenizers.md section 7). Without showControl, control and
// unknown tokens have none; unused tokens and ids outside the vocabulary never have any.
func (t *Tokenizer) AppendPiece(dst []byte, id int32, showControl bool) []byte {
	if !t.has(id) {
		return dst
	}
	text := t.vocab.textOf(uint32(id))
	switch t.vocab.typ[id] {
	case Normal:
		if t.family == byteLevel {
			return appendBytes(dst, text)
		}
		return appendSpaced(dst, text)
	case Control, Unknown:
		if !showControl {
			return dst
		}
		return append(dst, text...)
	case UserDefined:
		return append(dst, text...)
	case Byte:
		if b, ok := byteValue(text); ok {
			return append(dst, b)
		}
		return append(dst, text...)
	}
	return dst
}

// byteValue reads <0xHH>.
func byteValue(text []byte) (byte, bool) {
	if len(text) != 6 || string(text[:3]) != "<0x" || text[5] != '>' {
		return 0, false
	}
	b, err := strconv.ParseUint(string(text[3:5]), 16, 8)
	return byte(b), err == nil
}

func (t *Tokenizer) has(id int32) bool { return id >= 0 && int(id) < len(t.vocab.typ) }

// Vocab returns the number of tokens; ids run from 0 to Vocab()-1.
func (t *Tokenizer) Vocab() int { return len(t.vocab.typ) }

// Lookup returns the id whose text in the file is text: a control token as it is written, a normal token as the
// vocabulary spells it, with Ġ (byte-level) or ▁ for a space.
func (t *Tokenizer) Lookup(text string) (id int32, ok bool) {
	sym, ok := t.vocab.find([]byte(text))
	if !ok || int(sym) >= t.Vocab() {
		return 0, false
	}
	return int32(sym), true
}

// Type returns the type of a token after the corrections of specs/tokenizers.md section 1.1, or [Undefined] for an
// id outside the vocabulary.
func (t *Tokenizer) Type(id int32) Type {
	if !t.has(id) {
		return Undefined
	}
	return t.vocab.typ[id]
}

// BOS returns the id of the begin-of-text token, or -1.
func (t *Tokenizer) BOS() int32 { return t.bos }

// EOS returns the id of the end-of-text token, or -1. Generation ends at any token of [Tokenizer.EOG].
func (t *Tokenizer) EOS() int32 { return t.eos }

// AddsBOS says whether AddSpecial puts BOS first. A prompt that begins with the text of BOS would then have two.
func (t *Tokenizer) AddsBOS() bool { return t.addBOS && t.bos >= 0 }

// EOG says whether id ends a generation.
func (t *Tokenizer) EOG(id int32) bool {
	_, ok := slices.BinarySearch(t.eog, id)
	return ok
}

// EOGs returns all ids that end a generation, ascending.
func (t *Tokenizer) EOGs() []int32 { return slices.Clone(t.eog) }

// Warnings returns what is odd about the vocabulary but no reason to refuse it.
func (t *Tokenizer) Warnings() []string { return slices.Clone(t.warnings) }

// SizeBytes returns the memory the tokenizer holds.
func (t *Tokenizer) SizeBytes() int64 {
	n := t.vocab.size() + 4*cap(t.scores) + t.special.size() + t.userDefined.size()
	if t.merges != nil {
		n += t.merges.size()
	}
	return int64(n)
}
