package token

import (
	"bytes"
	"hash/maphash"
	"unicode/utf8"
)

// Type is the kind of a token, numbered as in GGUF (specs/tokenizers.md section 1).
type Type uint8

// The token types. Control and unknown tokens are matched in text only when the caller parses special tokens, and
// are hidden in output unless asked for; user-defined ones are always matched and always shown.
const (
	Undefined Type = iota
	Normal
	Unknown
	Control
	UserDefined
	Unused
	Byte
)

// vocab is the table of token texts. All texts lie in one buffer, exactly as the file spells them, so a vocabulary
// costs its bytes plus about 11 bytes a token. Ids from n on are symbols that merges produce but that are no tokens.
type vocab struct {
	text []byte
	end  []uint32 // the text of id i is text[end[i-1]:end[i]]
	typ  []Type   // of the n tokens
	ids  index    // text → id
	seed maphash.Seed
}

func newVocab(n int) *vocab {
	return &vocab{end: make([]uint32, 0, n), typ: make([]Type, n), ids: newIndex(n), seed: maphash.MakeSeed()}
}

// textOf returns the text of an id, not to be modified.
func (v *vocab) textOf(id uint32) []byte {
	start := uint32(0)
	if id > 0 {
		start = v.end[id-1]
	}
	return v.text[start:v.end[id]]
}

func (v *vocab) find(text []byte) (uint32, bool) {
	return v.ids.find(maphash.Bytes(v.seed, text), func(id uint32) bool { return bytes.Equal(v.textOf(id), text) })
}

// append gives text the next id. The caller has made sure that it has none yet.
func (v *vocab) append(text []byte) uint32 {
	id := uint32(len(v.end))
	v.text = append(v.text, text...)
	v.end = append(v.end, uint32(len(v.text)))
	v.ids.add(id, maphash.Bytes(v.seed, text), func(id uint32) uint64 { return maphash.Bytes(v.seed, v.textOf(id)) })
	return id
}

// symbol returns the id of text, token or not.
func (v *vocab) symbol(text []byte) uint32 {
	if id, ok := v.find(text); ok {
		return id
	}
	return v.append(text)
}

// size is the memory held, in bytes.
func (v *vocab) size() int {
	return cap(v.text) + 4*cap(v.end) + cap(v.typ) + 4*cap(v.ids.slots)
}

// The byte alphabet (specs/tokenizers.md section 3.1): every byte has a printable rune, so that texts of byte-level
// vocabularies are valid UTF-8 without spaces. Printable bytes stand for themselves, the others are moved up.
var (
	byteRune [256]rune
	runeByte [0x144]int16 // -1 = not in the alphabet
)

func init() {
	for i := range runeByte {
		runeByte[i] = -1
	}
	moved := rune(0x100)
	for b := range 256 {
		r := rune(b)
		if b < 0x21 || b > 0x7E && b < 0xA1 || b == 0xAD {
			r = moved
			moved++
		}
		byteRune[b] = r
		runeByte[r] = int16(b)
	}
}

// appendAlphabet appends the spelling of raw bytes in the byte alphabet.
func appendAlphabet(dst, raw []byte) []byte {
	for _, b := range raw {
		dst = utf8.AppendRune(dst, byteRune[b])
	}
	return dst
}

// appendBytes appends the bytes that a text in the byte alphabet stands for, or the text itself if it is not in
// that alphabet.
func appendBytes(dst, text []byte) []byte {
	start := len(dst)
	for i := 0; i < len(text); {
		r, n := utf8.DecodeRune(text[i:])
		if r >= rune(len(runeByte)) || runeByte[r] < 0 {
			return append(dst[:start], text...)
		}
		dst = append(dst, byte(runeByte[r]))
		i += n
	}
	return dst
}

// spaceMark is how vocabularies without the byte alphabet write a space.
const spaceMark = "\u2581"

// appendSpaced appends text with spaces for the marks.
func appendSpaced(dst, text []byte) []byte {
	for {
		before, after, found := bytes.Cut(text, []byte(spaceMark))
		dst = append(dst, before...)
		if !found {
			return dst
		}
		dst, text = append(dst, ' '), after
	}
}
