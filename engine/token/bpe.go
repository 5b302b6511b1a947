package token

import (
	"hash/maphash"
	"math"
	"unicode/utf8"
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
	syms  []sym
	queue []uint64 // min-heap of rank<<32 | position: lowest rank first, then leftmost
	key   []byte
}

// sym is one symbol of the piece being merged: a linked list threaded through the byte positions.
type sym struct {
	id         uint32
	prev, next int32  // -1 = none
	rank       uint32 // of the pair with the next symbol; noRank also marks a symbol that was swallowed
}

// piece appends the ids of one pre-tokenized piece. It takes n log n steps for n bytes, so a long run without spaces
// is no denial of service.
func (b *bpe) piece(ids []int32, piece string) []int32 {
	t := b.t
	if t.ignoreMerges {
		b.key = appendAlphabet(b.key[:0], piece)
		if id, ok := t.vocab.find(b.key); ok && int(id) < t.Vocab() {
			return append(ids, int32(id))
		}
	}
	b.syms = b.syms[:0]
	for i := 0; i < len(piece); i++ {
		b.syms = append(b.syms, sym{id: t.byteID[piece[i]], prev: int32(i - 1), next: int32(i + 1), rank: noRank})
	}
	b.syms[len(b.syms)-1].next = -1
	b.queue = b.queue[:0]
	for i := range len(b.syms) - 1 {
		b.offer(int32(i))
	}
	for len(b.queue) > 0 {
		top := b.pop()
		rank, at := uint32(top>>32), int32(uint32(top))
		left := &b.syms[at]
		if left.rank != rank {
			continue // the pair is gone; an equal rank is an equal pair
		}
		right := &b.syms[left.next]
		right.rank = noRank
		left.id, left.next = t.merges.list[rank].joined, right.next
		if left.next >= 0 {
			b.syms[left.next].prev = at
		}
		b.offer(at)
		if left.prev >= 0 {
			b.offer(left.prev)
		}
	}
	for i := int32(0); i >= 0; i = b.syms[i].next {
		ids = b.emit(ids, b.syms[i].id)
	}
	return ids
}

// offer computes the rank of the pair that starts at a position and queues it.
func (b *bpe) offer(at int32) {
	s := &b.syms[at]
	s.rank = noRank
	if s.next < 0 {
		return
	}
	if s.rank = b.t.merges.rank(s.id, b.syms[s.next].id); s.rank != noRank {
		b.push(uint64(s.rank)<<32 | uint64(uint32(at)))
	}
}

// emit appends the id of a symbol; a symbol that is no token is spelled by the tokens of its single runes, as far
// as they exist.
func (b *bpe) emit(ids []int32, symbol uint32) []int32 {
	n := uint32(b.t.Vocab())
	if symbol < n {
		return append(ids, int32(symbol))
	}
	text := b.t.vocab.textOf(symbol)
	for i := 0; i < len(text); {
		_, size := utf8.DecodeRune(text[i:])
		if id, ok := b.t.vocab.find(text[i : i+size]); ok && id < n {
			ids = append(ids, int32(id))
		}
		i += size
	}
	return ids
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
