package policy

import "math"

// Ledger knows which keys are resident and what they weigh, and never lets them weigh more than the budget.
//
// A resident key can be held (a batch computes with it, a read is filling it); held keys are never evicted. Exactly the
// resident keys that nobody holds are in the heap, lowest rank on top.
type Ledger struct {
	policy      Policy
	routed      Routed // policy, if its ranks change with every route
	refreshed   uint64 // batch in which the ranks of the heap were last asked for
	bytes       []int64
	entries     []entry
	heap        []int32
	budgetBytes int64
	usedBytes   int64
	heldBytes   int64 // part of usedBytes that is held
	uses        uint64
	batch       uint64
}

type entry struct {
	rank     float64
	used     uint64 // when last ranked; breaks ties
	batch    uint64 // last batch that named the key; finds duplicates
	holds    int32
	heapPos  int32
	resident bool
}

// NewLedger returns an empty ledger for len(bytes) keys, bytes[k] being the weight of key k and layers[k] its layer. It resets
// p.
func NewLedger(bytes []int64, layers []int32, budgetBytes int64, p Policy) *Ledger {
	p.Reset(len(bytes))
	routed, _ := p.(Routed)
	if routed != nil {
		routed.Layers(layers)
	}
	return &Ledger{
		routed:      routed,
		policy:      p,
		bytes:       bytes,
		entries:     make([]entry, len(bytes)),
		heap:        make([]int32, 0, len(bytes)),
		budgetBytes: budgetBytes,
	}
}

// Wave is the part of a batch that fits at once. Admit reuses its slices.
type Wave struct {
	Keys    []int32 // admitted and now held, in the order asked, each once
	Hit     []bool  // Hit[i]: Keys[i] was resident already
	Rest    []int32 // asked for but without room until the wave is released
	Evicted []int32 // no longer resident
}

// Admit takes one batch of keys, duplicates allowed. It holds all that are resident, evicts the lowest ranks that the
// batch does not use until as many of the others fit as possible, makes those resident, holds them, and records one use
// of every admitted key in the order asked. The state after it is the one of a cache that inserts the whole batch first
// and evicts afterwards, never what the batch uses, unless the batch does not fit: then Rest is not empty. keys may be
// w.Rest.
func (l *Ledger) Admit(keys []int32, w *Wave) {
	w.Keys, w.Hit, w.Evicted = w.Keys[:0], w.Hit[:0], w.Evicted[:0]
	l.batch++
	for _, k := range keys {
		e := &l.entries[k]
		if e.batch == l.batch {
			continue
		}
		e.batch = l.batch
		w.Keys = append(w.Keys, k)
		if e.resident {
			l.Hold(k)
		}
	}
	w.Rest = w.Rest[:0]
	asked := w.Keys
	w.Keys = w.Keys[:0]
	roomBytes := l.budgetBytes - l.heldBytes
	var needBytes int64
	for _, k := range asked {
		hit := l.entries[k].resident
		if !hit {
			if needBytes+l.bytes[k] > roomBytes {
				w.Rest = append(w.Rest, k)
				continue
			}
			needBytes += l.bytes[k]
		}
		w.Keys = append(w.Keys, k)
		w.Hit = append(w.Hit, hit)
	}
	for l.usedBytes+needBytes > l.budgetBytes {
		l.refresh()
		k := l.heap[0]
		l.evict(k)
		w.Evicted = append(w.Evicted, k)
	}
	for i, k := range w.Keys {
		if !w.Hit[i] {
			l.insert(k)
		}
		l.rank(k, l.policy.Use(k))
	}
}

// Add makes key, for which there is room, resident and holds it. It records no use: key ranks by its past.
func (l *Ledger) Add(key int32) {
	l.insert(key)
	l.rank(key, l.policy.Peek(key))
}

// Speculate makes key resident and holds it ahead of its use, evicting the lowest ranks for it; it appends what it
// evicted to evicted. It records no use: until that happens, key ranks above everything. A mere guess about the layer after the next
// would be the first to go when the next one needs room. It returns false and changes nothing when there is no room.
func (l *Ledger) Speculate(key int32, evicted []int32) ([]int32, bool) {
	n := len(evicted)
	for l.usedBytes+l.bytes[key] > l.budgetBytes {
		l.refresh()
		if len(l.heap) == 0 || math.IsInf(l.entries[l.heap[0]].rank, 1) {
			for _, k := range evicted[n:] {
				l.undoEvict(k)
			}
			return evicted[:n], false
		}
		k := l.heap[0]
		l.evict(k)
		evicted = append(evicted, k)
	}
	l.insert(key)
	l.rank(key, math.Inf(1))
	return evicted, true
}

// Promise says that the next use of a resident key is certain: it ranks above everything until it happens.
func (l *Ledger) Promise(key int32) { l.rerank(key, math.Inf(1)) }

// Unpromise takes back that the use of a resident key is certain: it ranks by its past.
func (l *Ledger) Unpromise(key int32) {
	if math.IsInf(l.entries[key].rank, 1) {
		l.rerank(key, l.policy.Peek(key))
	}
}

func (l *Ledger) rerank(key int32, rank float64) {
	e := &l.entries[key]
	e.rank = rank
	if e.holds == 0 {
		l.fix(int(e.heapPos))
	}
}

// Route passes to the policy what each token of a batch picked: k keys per token, token by token. A batch is routed once, before it
// is first admitted, in however many waves that happens.
func (l *Ledger) Route(layer int32, k int, keys []int32) {
	if l.routed != nil {
		l.routed.Route(layer, k, keys)
	}
}

// Expect passes to the policy how often key was used per token in a past that it has not seen.
func (l *Ledger) Expect(key int32, rate float32) {
	if l.routed != nil {
		l.routed.Expect(key, rate)
	}
}

// Tick passes a token step to the policy.
func (l *Ledger) Tick() { l.policy.Tick() }

// Resident reports whether key is resident.
func (l *Ledger) Resident(key int32) bool { return l.entries[key].resident }

// UsedBytes is the weight of all resident keys.
func (l *Ledger) UsedBytes() int64 { return l.usedBytes }

// HeldBytes is the weight of the resident keys that are held.
func (l *Ledger) HeldBytes() int64 { return l.heldBytes }

// Hold protects a resident key from eviction until the matching Release.
func (l *Ledger) Hold(key int32) {
	e := &l.entries[key]
	if e.holds == 0 {
		l.heapRemove(key)
		l.heldBytes += l.bytes[key]
	}
	e.holds++
}

// Release undoes one Hold and reports whether it was the last.
func (l *Ledger) Release(key int32) bool {
	e := &l.entries[key]
	e.holds--
	if e.holds > 0 {
		return false
	}
	l.heldBytes -= l.bytes[key]
	l.heapPush(key)
	return true
}

// Remove makes a resident key that nobody holds not resident, whatever its rank.
func (l *Ledger) Remove(key int32) { l.evict(key) }

func (l *Ledger) insert(key int32) {
	e := &l.entries[key]
	e.resident, e.holds = true, 1
	l.usedBytes += l.bytes[key]
	l.heldBytes += l.bytes[key]
}

func (l *Ledger) evict(key int32) {
	l.heapRemove(key)
	l.entries[key].resident = false
	l.usedBytes -= l.bytes[key]
}

func (l *Ledger) undoEvict(key int32) {
	l.entries[key].resident = true
	l.usedBytes += l.bytes[key]
	l.heapPush(key)
}

func (l *Ledger) rank(key int32, rank float64) {
	l.uses++
	e := &l.entries[key]
	e.rank, e.used = rank, l.uses
}

// refresh brings the heap up to date with a policy whose ranks change, once in a batch. Promises keep their rank.
func (l *Ledger) refresh() {
	if l.routed == nil || l.refreshed == l.batch {
		return
	}
	l.refreshed = l.batch
	for _, k := range l.heap {
		if e := &l.entries[k]; !math.IsInf(e.rank, 1) {
			e.rank = l.routed.Rank(k)
		}
	}
	for i := len(l.heap)/2 - 1; i >= 0; i-- {
		l.sink(i, l.heap[i])
	}
}

// The heap is written out because container/heap would box every key, and the store must not allocate.

func (l *Ledger) less(a, b int32) bool {
	x, y := &l.entries[a], &l.entries[b]
	return x.rank < y.rank || x.rank == y.rank && x.used < y.used
}

func (l *Ledger) heapPush(key int32) {
	l.heap = append(l.heap, key)
	l.entries[key].heapPos = int32(len(l.heap) - 1)
	l.fix(len(l.heap) - 1)
}

func (l *Ledger) heapRemove(key int32) {
	i, last := int(l.entries[key].heapPos), len(l.heap)-1
	moved := l.heap[last]
	l.heap = l.heap[:last]
	if i < last {
		l.place(i, moved)
		l.fix(i)
	}
}

func (l *Ledger) place(i int, key int32) {
	l.heap[i] = key
	l.entries[key].heapPos = int32(i)
}

// fix moves the key at heap position i to where it belongs.
func (l *Ledger) fix(i int) {
	key := l.heap[i]
	for i > 0 && l.less(key, l.heap[(i-1)/2]) {
		l.place(i, l.heap[(i-1)/2])
		i = (i - 1) / 2
	}
	l.sink(i, key)
}

// sink puts key at heap position i or as far below as its rank demands.
func (l *Ledger) sink(i int, key int32) {
	for {
		c := 2*i + 1
		if c >= len(l.heap) {
			break
		}
		if c+1 < len(l.heap) && l.less(l.heap[c+1], l.heap[c]) {
			c++
		}
		if !l.less(l.heap[c], key) {
			break
		}
		l.place(i, l.heap[c])
		i = c
	}
	l.place(i, key)
}
