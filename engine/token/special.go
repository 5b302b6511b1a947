package token

import (
	"bytes"
	"slices"
	"sort"
)

// specials finds token texts that stand for themselves in a prompt. It is a sorted list searched like a trie: each
// further byte narrows the range of candidates, so a position costs the length of the longest candidate there.
type specials struct {
	vocab *vocab
	ids   []uint32 // by text
	first [256]bool
}

func newSpecials(v *vocab, types ...Type) *specials {
	s := &specials{vocab: v}
	for id, typ := range v.typ {
		if text := v.textOf(uint32(id)); len(text) > 0 && slices.Contains(types, typ) {
			s.ids = append(s.ids, uint32(id))
			s.first[text[0]] = true
		}
	}
	slices.SortFunc(s.ids, func(a, b uint32) int { return bytes.Compare(v.textOf(a), v.textOf(b)) })
	return s
}

// next returns where the leftmost special text starts and ends, the longest one if several start there, and its id.
// Start is len(text) if there is none.
func (s *specials) next(text string) (start, end int, id uint32) {
	if len(s.ids) > 0 {
		for p := 0; p < len(text); p++ {
			if !s.first[text[p]] {
				continue
			}
			if id, n := s.longest(text[p:]); n > 0 {
				return p, p + n, id
			}
		}
	}
	return len(text), len(text), 0
}

// longest returns the longest special text that text begins with; length 0 if there is none.
func (s *specials) longest(text string) (id uint32, length int) {
	lo, hi := 0, len(s.ids)
	for d := 0; lo < hi; d++ {
		if t := s.vocab.textOf(s.ids[lo]); len(t) == d { // the shortest sorts first; texts are distinct
			id, length = s.ids[lo], d
			lo++
		}
		if d == len(text) {
			break
		}
		c := text[d]
		at := func(i int) byte { return s.vocab.textOf(s.ids[i])[d] }
		from := lo + sort.Search(hi-lo, func(i int) bool { return at(lo+i) >= c })
		to := from + sort.Search(hi-from, func(i int) bool { return at(from+i) > c })
		lo, hi = from, to
	}
	return id, length
}

// size is the memory held, in bytes.
func (s *specials) size() int { return 4*cap(s.ids) + len(s.first) }
