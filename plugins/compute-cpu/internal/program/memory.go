package program

import (
	"sort"

	"github.com/bigmoe/bigmoe/plugins/compute-cpu/internal/arena"
)

// buffer is the place of one value, or of something derived from one: a row of rowBytes bytes for every token of a
// batch, or for every row of wanted logits when it belongs to the head.
type buffer struct {
	rowBytes    int
	head        bool
	first, last int     // steps that write it first and use it last
	over        *buffer // it may take the place of this one, which has the same shape, if that one dies in step first

	root *buffer // where it really lives, after layout
	off  int
	raw  []byte
	f32  []float32
	i32  []int32
}

// ref is a buffer as one step sees it.
type ref struct {
	*buffer
	late bool // a step of the head reads a value of the whole batch: row 0 is the first wanted token
}

func (b *buffer) width() int { return b.rowBytes / 4 }

// layout gives buffers whose lives overlap different places and returns the size of all: the largest first, each at the
// lowest offset that is free for as long as it lives.
func layout(buffers []*buffer, batch, logitRows int) (size int) {
	var roots []*buffer
	for _, b := range buffers { // in order of first
		b.root = b
		if o := b.over; o != nil && o.last == b.first && o.rowBytes == b.rowBytes && o.head == b.head {
			b.root = o.root
			b.root.last = max(b.root.last, b.last)
			continue
		}
		roots = append(roots, b)
	}
	bytes := func(b *buffer) int {
		rows := batch
		if b.head {
			rows = logitRows
		}
		return roundUp(rows*b.rowBytes, arena.Align)
	}
	sort.SliceStable(roots, func(i, j int) bool { return bytes(roots[i]) > bytes(roots[j]) })
	var placed []*buffer // by offset
	for _, b := range roots {
		b.off = 0
		for _, o := range placed {
			if b.first > o.last || b.last < o.first {
				continue
			}
			if b.off+bytes(b) <= o.off {
				break
			}
			b.off = max(b.off, o.off+bytes(o))
		}
		i := sort.Search(len(placed), func(i int) bool { return placed[i].off > b.off })
		placed = append(placed, nil)
		copy(placed[i+1:], placed[i:])
		placed[i] = b
		size = max(size, b.off+bytes(b))
	}
	return size
}

// bind points the buffers into mem.
func bind(buffers []*buffer, mem []byte, batch, logitRows int) {
	for _, b := range buffers {
		rows := batch
		if b.head {
			rows = logitRows
		}
		b.raw = mem[b.root.off:][:rows*b.rowBytes]
		if b.rowBytes%4 == 0 {
			b.f32 = arena.Cast[float32](b.raw, rows*b.rowBytes/4)
			b.i32 = arena.Cast[int32](b.raw, rows*b.rowBytes/4)
		}
	}
}

func roundUp(n, to int) int { return (n + to - 1) / to * to }
