package token

import (
	"hash/maphash"
	"math"
	"slices"
)

// family is what a vocabulary takes for the symbols of a text, and which neighbours it joins first.
type family uint8

const (
	byteLevel family = iota // "gpt2": bytes, spelled in the byte alphabet; by the rank of the pair among the merges
	ranked                  // "gemma4": characters, with ▁ for a space; by the rank of the pair among the merges
	scored                  // "llama", known as SPM: characters, with ▁ for a space; by the score of the token that a pair spells
)

// merges is the ranked list of pairs that byte-pair encoding joins (specs/tokenizers.md section 3.2).
type merges struct {
	list []merge // by rank
	pair index   // (left, right) → rank
	salt uint64
}

type merge struct{ left, right, joined uint32 }

func newMerges(n int) *merges {
	salt := maphash.String(maphash.MakeSeed(), "")
	return &merges{list: make([]merge, 0, n), pair: newIndex(n), salt: salt | 1}
}

// hash is salted so that a file cannot be built to make the table slow.
func (m *merges) hash(left, right uint32) uint64 {
	h := (uint64(left)<<32 | uint64(right)) * m.salt
	h ^= h >> 32
	h *= m.salt
	return h ^ h>>32
}

const noRank = math.MaxUint32

func (m *merges) rank(left, right uint32) uint32 {
	r, ok := m.pair.find(m.hash(left, right), func(r uint32) bool {
		e := &m.list[r]
		return e.left == left && e.right == right
	})
	if !ok {
		return noRank
	}
	return r
}

// add appends the next rank. A pair listed twice keeps its first rank.
func (m *merges) add(left, right, joined uint32) {
	rank := uint32(len(m.list))
	known := m.rank(left, right) != noRank
	m.list = append(m.list, merge{left, right, joined})
	if !known {
		m.pair.add(rank, m.hash(left, right), func(r uint32) uint64 { return m.hash(m.list[r].left, m.list[r].right) })
	}
}

// size is the memory held, in bytes.
func (m *merges) size() int { return 12*cap(m.list) + 4*cap(m.pair.slots) }

// bpe holds the working memory of one Encode call.
type bpe struct {
	t     *Tokenizer
	text  []byte   // the piece being merged
	syms  []sym    // by the position of their first byte
	queue []uint64 // min-heap of rank<<32 | position: lowest rank first, then leftmost
	key   []byte
}

// sym is one symbol of the piece: a linked list threaded through the byte positions.
type sym struct {
	id         uint32
	prev, next int32  // positions; -1 and the length of the piece are the ends
	rank       uint32 // of the pair with the next symbol; noRank also marks a symbol that was swallowed
	joined     uint32 // what that pair becomes
}

// noSymbol is the id of a character that the vocabulary does not know.
const noSymbol = math.MaxUint32

// piece appends the ids of one pre-tokenized piece. It takes n log n steps for n bytes, so a long run without spaces
// is no denial of service.
func (b *bpe) piece(ids []int32, piece string) []int32 {
	b.text = append(b.text[:0], piece...)
	if id, ok := b.whole(); ok {
		return append(ids, id)
	}
	end := int32(len(b.text))
	b.syms = slices.Grow(b.syms[:0], len(b.text))[:len(b.text)]
	for at, prev := int32(0), int32(-1); at < end; {
		id, n := b.first(b.text[at:])
		b.syms[at] = sym{id: id, prev: prev, next: at + n, rank: noRank}
		prev, at = at, at+n
	}
	b.queue = b.queue[:0]
	for at := int32(0); at < end; at = b.syms[at].next {
		b.offer(at)
	}
	for len(b.queue) > 0 {
		top := b.pop()
		rank, at := uint32(top>>32), int32(uint32(top))
		left := &b.syms[at]
		if left.rank != rank {
			continue // the pair that was queued is gone; one of equal rank in its place is as good
		}
		right := &b.syms[left.next]
		right.rank = noRank
		left.id, left.next = left.joined, right.next
		if left.next < end {
			b.syms[left.next].prev = at
		}
		b.offer(at)
		if left.prev >= 0 {
			b.offer(left.prev)
		}
	}
	n := uint32(b.t.Vocab())
	for at := int32(0); at < end; at = b.syms[at].next {
		if s := b.syms[at]; s.id < n {
			ids = append(ids, int32(s.id))
			continue
		}
		for _, c := range b.text[at:b.syms[at].next] { // no token: spelled by those of its bytes, as far as they exist
			if id := b.t.byteID[c]; id < n {
				ids = append(ids, int32(id))
			}
		}
	}
	return ids
}

// whole returns the token that spells the piece, where the vocabulary has those taken before any merging.
func (b *bpe) whole() (int32, bool) {
	t := b.t
	key := b.text
	switch {
	case t.family == byteLevel && t.ignoreMerges:
		b.key = appendAlphabet(b.key[:0], b.text)
		key = b.key
	case t.family == ranked && b.text[0] == '\n': // a run of newlines (specs/gemma4.md section 6.4)
	default:
		return 0, false
	}
	id, ok := t.vocab.find(key)
	return int32(id), ok && int(id) < t.Vocab()
}

// first returns the symbol that text begins with and its length in bytes, before any merging.
func (b *bpe) first(text []byte) (id uint32, n int32) {
	if b.t.family == byteLevel {
		return b.t.byteID[text[0]], 1
	}
	n = min(charBytes(text[0]), int32(len(text)))
	if id, ok := b.t.vocab.find(text[:n]); ok {
		return id, n
	}
	return noSymbol, n
}

// charBytes is how long the character is whose first byte is lead, in ill-formed text too.
func charBytes(lead byte) int32 {
	switch {
	case lead < 0xC0:
		return 1
	case lead < 0xE0:
		return 2
	case lead < 0xF0:
		return 3
	}
	return 4
}

// offer computes the rank of the pair that starts at a position and queues it.
func (b *bpe) offer(at int32) {
	s := &b.syms[at]
	s.rank = noRank
	if int(s.next) == len(b.text) {
		return
	}
	t, next := b.t, &b.syms[s.next]
	if t.family == scored {
		if id, ok := t.vocab.find(b.text[at:next.next]); ok {
			s.rank, s.joined = t.scores[id], id
		}
	} else if rank := t.merges.rank(s.id, next.id); rank != noRank {
		s.rank, s.joined = rank, t.merges.list[rank].joined
	}
	if s.rank != noRank {
		b.push(uint64(s.rank)<<32 | uint64(uint32(at)))
	}
}

func (b *bpe) push(x uint64) {
	q := append(b.queue, x)
	i := len(q) - 1
	for i > 0 {
		up := (i - 1) / 2
		if q[up] <= x {
			break
		}
		q[i] = q[up]
		i = up
	}
	q[i] = x
	b.queue = q
}

func (b *bpe) pop() uint64 {
	q := b.queue
	top, x := q[0], q[len(q)-1]
	q = q[:len(q)-1]
	for i := 0; len(q) > 0; {
		down := 2*i + 1
		if down+1 < len(q) && q[down+1] < q[down] {
			down++
		}
		if down >= len(q) || q[down] >= x {
			q[i] = x
			break
		}
		q[i] = q[down]
		i = down
	}
	b.queue = q
	return top
}
