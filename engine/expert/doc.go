// Package expert keeps the routed experts of a Mixture-of-Experts model on the SSD and the few that matter in a bounded
// cache in shared memory (architecture.md section 6).
//
//	layout, err := expert.Plan(banks, topK, 4000<<20)       // how much memory, how many slots
//	store, err := expert.Open(expert.Config{Banks: banks, Arena: arena, Ready: words, ...})
//	...
//	var b expert.Batch
//	err := store.Route(layer, k, routed)                    // what each token picked: the policy learns from it
//	for rest := routed; len(rest) > 0; rest = b.Rest {      // one wave, unless the batch exceeds the budget
//		if err := store.Acquire(layer, rest, &b); err != nil { ... }
//		compute(b.Slots)                                      // waits on each slot's readiness word
//		err := store.Err(&b)                                  // what a slot's error bit means
//		store.Release(&b)
//	}
//
// # Slots and readiness
//
// The arena is one range of virtual memory, cut into slots of a few size classes, because layers differ in
// quantisation. A slot has one address for its life. Each part of an expert has room for the whole blocks around it, so
// that a direct read lands in place: the payload starts at the region's base plus the file offset's remainder.
//
// Each slot has a readiness word: bits 0..3 are set one by one as the parts land, bit 4 when the expert could not be
// read, bits 8..31 count the slot's uses ([Generation]). The word is reset with the next generation before a read for
// the next use is queued, so whoever compares the generation too never mistakes an old answer for a new one.
//
// # Memory
//
// BudgetBytes bounds the payload of all experts that are resident or being read, to the byte. Each class has virtual
// slots for the whole budget; a slot gets physical memory when it is first read into, or a little before (Config.Back),
// and keeps it when it is freed, so the steady state maps and unmaps nothing. Only when a class grows at another's expense is a free slot of the other
// given back, through Config.Discard, which keeps physical memory within [Layout].PhysicalBytes. That is the budget, the
// room around the parts, and, with several classes, 2 % of spare slots, which make this rare.
//
// # Reads
//
// At most one read per expert part is under way, whoever wants it. Demands go before prefetches, and
// what [Store.Warm] fills free room with comes last, while no batch is held and none was released lately;
// within a batch experts are read whole, in file order, parts in the order in which the compute needs them, so that the
// first expert can be computed while the others arrive. Interrupted and short reads continue; a disk error is
// tried three times. After that the batch has an error that names everything, the slot's error bit is set, and nothing
// of the expert stays: the next batch reads afresh.
//
// # Caveats
//
// Slots belong to the batch until Release. Release after the compute has finished, and always exactly once.
//
// # Concurrency
//
// A Store is safe for concurrent use, a Batch is not. Acquire does not wait for its reads. It waits for another call that
// takes slots, and, when there is no room for a single expert, for reads under way to end: those of an aborted batch or
// of a prefetch make room then. If none does, other batches hold the budget, and it returns [ErrBusy].
package expert
