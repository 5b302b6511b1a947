package cpu_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"

	"github.com/bigmoe/bigmoe/sdk/compute"
	"github.com/bigmoe/bigmoe/sdk/compute/futex"
)

// host plays the engine: it brings experts into slots, in waves and in an order of its choosing.
type host struct {
	m       *model
	perWave int        // experts of one wave; 0: as many as there are slots
	shuffle *rand.Rand // nil: in the order of first use, in memory at once
	late    bool       // parts land one by one while the backend works already

	ids     [][]int32   // by bank: everything that was routed
	weights [][]float32 // likewise

	bank    int
	waiting []int32
	readers sync.WaitGroup
	fail    bool // every read fails
}

func newHost(m *model) *host {
	return &host{m: m, ids: make([][]int32, len(m.banks)), weights: make([][]float32, len(m.banks))}
}

func (h *host) Route(bank, k int, ids []int32, weights []float32) (compute.Wave, error) {
	if len(ids) != len(weights) || len(ids)%k != 0 {
		return compute.Wave{}, fmt.Errorf("%d ids, %d weights, k is %d", len(ids), len(weights), k)
	}
	h.ids[bank], h.weights[bank] = append(h.ids[bank], ids...), append(h.weights[bank], weights...)
	h.bank, h.waiting = bank, h.waiting[:0]
	seen := map[int32]bool{}
	for _, id := range ids {
		if !seen[id] {
			seen[id], h.waiting = true, append(h.waiting, id)
		}
	}
	if h.shuffle != nil {
		h.shuffle.Shuffle(len(h.waiting), func(i, j int) { h.waiting[i], h.waiting[j] = h.waiting[j], h.waiting[i] })
	}
	return h.Next()
}

func (h *host) Next() (compute.Wave, error) {
	h.readers.Wait()
	n := min(len(h.waiting), len(h.m.slots))
	if h.perWave > 0 {
		n = min(n, h.perWave)
	}
	parts := h.m.banks[h.bank]
	var w compute.Wave
	type read struct {
		word *atomic.Uint32
		dst  []byte
		src  []byte
		bit  uint32
	}
	var reads []read
	count := int(h.m.bound.Plan.Banks[h.bank].Experts)
	for i, expert := range h.waiting[:n] {
		h.m.gens[i] = (h.m.gens[i] + 1) & (1<<24 - 1)
		s := compute.Slot{Expert: expert, Ready: uint32(i), Gen: h.m.gens[i]}
		word := h.m.region.Word(s.Ready)
		word.Store(s.Gen << compute.GenShift)
		at := h.m.slots[i]
		for p, all := range parts {
			size := len(all) / count
			s.Part[p] = at
			reads = append(reads, read{word, h.m.region.Bytes[at:][:size], all[int(expert)*size:][:size], 1 << p})
			at += uint64(size) + 1 // odd places: files align nothing
		}
		w.Slots = append(w.Slots, s)
	}
	h.waiting = h.waiting[n:]
	w.More = len(h.waiting) > 0
	do := func(r read) {
		copy(r.dst, r.src)
		if h.fail {
			r.bit = compute.ReadyError
		}
		r.word.Or(r.bit)
		futex.Wake(r.word)
	}
	if h.shuffle != nil {
		h.shuffle.Shuffle(len(reads), func(i, j int) { reads[i], reads[j] = reads[j], reads[i] })
	}
	if !h.late {
		for _, r := range reads {
			do(r)
		}
		return w, nil
	}
	h.readers.Add(1)
	go func() {
		defer h.readers.Done()
		for _, r := range reads {
			do(r)
		}
	}()
	return w, nil
}
