package optable

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bigmoe/bigmoe/sdk/compute"
	"github.com/bigmoe/bigmoe/sdk/compute/futex"
)

// Host plays the engine: it brings experts into slots, in waves and in an order of its choosing.
type Host struct {
	PerWave int           // experts of one wave; 0: as many as there are slots
	Shuffle *rand.Rand    // nil: in the order of first use, in memory at once
	Late    bool          // parts land one by one while the backend works already
	Delay   time.Duration // before each of them, when Late
	Fail    bool          // every read fails

	IDs     [][]int32   // by bank: everything that was routed
	Weights [][]float32 // likewise

	m       *Model
	bank    int
	waiting []int32
	readers sync.WaitGroup
}

// Wait returns when nothing is being read any more.
func (h *Host) Wait() { h.readers.Wait() }

// NewHost returns a host that has everything in memory at once.
func NewHost(m *Model) *Host {
	return &Host{m: m, IDs: make([][]int32, len(m.Banks)), Weights: make([][]float32, len(m.Banks))}
}

// Route implements [compute.Host].
func (h *Host) Route(bank, k int, ids []int32, weights []float32) (compute.Wave, error) {
	if len(ids) != len(weights) || len(ids)%k != 0 {
		return compute.Wave{}, fmt.Errorf("%d ids, %d weights, k is %d", len(ids), len(weights), k)
	}
	h.IDs[bank], h.Weights[bank] = append(h.IDs[bank], ids...), append(h.Weights[bank], weights...)
	h.bank, h.waiting = bank, h.waiting[:0]
	seen := map[int32]bool{}
	for _, id := range ids {
		if !seen[id] {
			seen[id], h.waiting = true, append(h.waiting, id)
		}
	}
	if h.Shuffle != nil {
		h.Shuffle.Shuffle(len(h.waiting), func(i, j int) { h.waiting[i], h.waiting[j] = h.waiting[j], h.waiting[i] })
	}
	return h.Next()
}

// Next implements [compute.Host].
func (h *Host) Next() (compute.Wave, error) {
	h.readers.Wait()
	n := min(len(h.waiting), len(h.m.slots))
	if h.PerWave > 0 {
		n = min(n, h.PerWave)
	}
	parts := h.m.Banks[h.bank]
	var w compute.Wave
	type read struct {
		word *atomic.Uint32
		dst  []byte
		src  []byte
		bit  uint32
	}
	var reads []read
	count := int(h.m.Bound.Plan.Banks[h.bank].Experts)
	for i, expert := range h.waiting[:n] {
		h.m.gens[i] = (h.m.gens[i] + 1) & (1<<24 - 1)
		s := compute.Slot{Expert: expert, Ready: uint32(i), Gen: h.m.gens[i]}
		word := h.m.Region.Word(s.Ready)
		word.Store(s.Gen << compute.GenShift)
		at := h.m.slots[i]
		for p, all := range parts {
			size := len(all) / count
			s.Part[p] = at
			reads = append(reads, read{word, h.m.Region.Bytes[at:][:size], all[int(expert)*size:][:size], 1 << p})
			at += uint64(size) + 1 // odd places: files align nothing
		}
		w.Slots = append(w.Slots, s)
	}
	h.waiting = h.waiting[n:]
	w.More = len(h.waiting) > 0
	do := func(r read) {
		copy(r.dst, r.src)
		if h.Fail {
			r.bit = compute.ReadyError
		}
		r.word.Or(r.bit)
		futex.Wake(r.word)
	}
	if h.Shuffle != nil {
		h.Shuffle.Shuffle(len(reads), func(i, j int) { reads[i], reads[j] = reads[j], reads[i] })
	}
	if !h.Late {
		for _, r := range reads {
			do(r)
		}
		return w, nil
	}
	h.readers.Add(1)
	go func() {
		defer h.readers.Done()
		for _, r := range reads {
			time.Sleep(h.Delay)
			do(r)
		}
	}()
	return w, nil
}
