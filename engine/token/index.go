package token

// index is an open-addressed hash set of small integers that stand for entries kept elsewhere. It costs 4 bytes a
// slot and at most two slots an entry are empty, a quarter of what a Go map of the same entries takes; the
// vocabulary and the merges are the largest things a tokenizer holds. The caller brings the hash and the comparison.
type index struct {
	slots []uint32 // entry + 1, 0 = free; the length is a power of two
	used  int
}

// newIndex returns an index with room for n entries without growing.
func newIndex(n int) index {
	size := 16
	for size*3 < n*4 {
		size *= 2
	}
	return index{slots: make([]uint32, size)}
}

// find returns the entry with this hash for which same holds.
func (x *index) find(hash uint64, same func(entry uint32) bool) (uint32, bool) {
	mask := uint64(len(x.slots) - 1)
	for i := hash & mask; ; i = (i + 1) & mask {
		e := x.slots[i]
		if e == 0 {
			return 0, false
		}
		if same(e - 1) {
			return e - 1, true
		}
	}
}

// add stores an entry that is known to be absent. rehash gives the hash of any stored entry, for growing.
func (x *index) add(entry uint32, hash uint64, rehash func(entry uint32) uint64) {
	if (x.used+1)*4 > len(x.slots)*3 {
		old := x.slots
		x.slots = make([]uint32, 2*len(old))
		for _, e := range old {
			if e != 0 {
				x.put(e, rehash(e-1))
			}
		}
	}
	x.put(entry+1, hash)
	x.used++
}

func (x *index) put(slot uint32, hash uint64) {
	mask := uint64(len(x.slots) - 1)
	i := hash & mask
	for x.slots[i] != 0 {
		i = (i + 1) & mask
	}
	x.slots[i] = slot
}
