package expert

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sort"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/bigmoe/bigmoe/engine/expert/policy"
	"github.com/bigmoe/bigmoe/engine/vfs"
	"github.com/bigmoe/bigmoe/sdk/fault"
)

// Bits of a readiness word.
const (
	ReadyMask  = 1<<MaxParts - 1 // bit p: part p has landed
	ReadyError = 1 << 4          // the expert could not be read; parts that have not landed never will
)

// Generation is the use count of a slot in bits 8..31 of its readiness word.
func Generation(word uint32) uint32 { return word >> 8 }

// Priority orders reads. A demand is a batch's, and there is no call to make one.
type Priority uint8

const (
	warm      Priority = iota // see Warm
	Guess                     // may never be used
	Committed                 // will be used
	demand
	priorities
)

// IOMode says how to read.
type IOMode string

const (
	Auto         IOMode = "auto" // direct where it works
	DirectOnly   IOMode = "direct"
	BufferedOnly IOMode = "buffered"
)

// ErrClosed is what calls return after Close, and what batches get whose reads Close took back.
var ErrClosed = errors.New("expert store is closed")

// ErrBusy means that other batches hold so much of the budget that not one expert fits. Release one first.
var ErrBusy = errors.New("expert store: the whole budget is held by other batches")

// DefaultReaders is the number of reads under way at once if Config does not say.
const DefaultReaders = 4

// Config describes a store.
type Config struct {
	FS    vfs.FS   // nil: vfs.OS()
	Files []string // Location.File is an index into these
	Banks []Bank
	TopK  int // experts of one token in one layer

	Arena     []byte   // Layout.ArenaBytes; page-aligned; may be sparse
	ArenaBase uint64   // what to add to an arena offset to get the region offset in Slot.Parts and Discard
	Ready     []uint32 // one readiness word per slot

	BudgetBytes int64
	Policy      policy.Policy // nil: forecast; belongs to the store from now on
	Readers     int           // 0: DefaultReaders
	Mode        IOMode        // "": Auto

	// Wake is called, without locks held, after bits of a readiness word were set. nil: nobody sleeps on words.
	Wake func(word *uint32)
	// Back is called, without locks held, before a range of the region is read into: it may prepare the memory. nil: it comes with use.
	Back func(off uint64, n int64)
	// Discard gives the physical memory of a region range back; it reads as anything afterwards. nil: memory is never given
	// back, and can grow to Layout.ArenaBytes.
	Discard func(off uint64, n int64) error
}

// Slot is where an expert is, or will be.
type Slot struct {
	Expert int32
	Hit    bool             // it was resident or on the way before the batch
	Ready  uint32           // number of its readiness word
	Gen    uint32           // generation of the readiness word
	Parts  [MaxParts]uint64 // region offsets of the payloads
}

// Batch is one wave of experts of one layer. The zero value is ready for Acquire; reuse it, it keeps its memory.
type Batch struct {
	Layer int
	Slots []Slot  // in the order asked for, each expert once
	Rest  []int32 // experts that did not fit: Acquire them after Release

	wave policy.Wave
	keys []int32 // asked for
	ask  []int32 // those of keys that can be asked of the ledger now
	held []int32 // slot numbers, until Release
}

// Store is the expert cache. See the package comment.
type Store struct {
	cfg        Config
	layout     Layout
	banks      []bank
	byLayer    []int32 // layer → index in banks, -1: none
	files      []*vfs.Source
	mode       string
	modeReason string
	background sync.WaitGroup

	// admission serialises the calls that allocate slots, so that memory can be given back without mu. Taken before mu.
	admission sync.Mutex
	evicted   []int32 // scratch of Prefetch and Warm
	picks     []int32 // scratch of Route
	discards  []int32 // slots taken off their class, to be discarded before the next read is queued

	mu          sync.Mutex
	work        sync.Cond // a read was queued, or the store closed
	landed      sync.Cond // a read ended, or a batch was released
	closed      bool
	interrupted error // why nobody waits at present: see Interrupt
	ledger      *policy.Ledger
	slotOf      []int32 // key → slot, meaningful while the ledger has the key
	slots       []slot
	classes     []class
	backedBytes int64
	queues      [priorities]queue
	held        int       // batches
	usedAt      time.Time // when a batch was released last
	lull        *time.Timer
	cold        []int32   // keys to be warmed
	drained     sync.Cond // a slot with memory was taken, or the store closed
	thawed      sync.Cond // there are keys to be warmed and none is queued, or the store closed
	readers     int       // goroutines
	running     int       // reads under way
	busySince   time.Time // when running left 0
	stats       Stats
}

// bank is a Bank with what the store derives from it.
type bank struct {
	Bank
	firstKey int32
	bytes    int64
	class    int
	partOff  [MaxParts]int64 // of each part's region in a slot
}

// class is the free slots of a size class, as stacks.
type class struct {
	Class
	experts int     // of all its banks
	free    []int32 // with physical memory
	bare    []int32 // without
}

// slot is the state of a slot and of the expert in it.
type slot struct {
	key        int32
	bank       int32
	expert     int32
	gen        uint32
	class      int32
	next, prev int32 // in its queue
	pins       int32 // batches
	prio       Priority
	queued     bool // has parts to start, and is in queues[prio]
	prefetched bool // and no batch has asked for it yet
	started    int8 // parts whose read has begun
	landed     int8 // parts read
	running    int8 // parts being read
	err        error
}

// Open checks cfg, opens and probes the files and starts the readers. The caller must Close the store.
func Open(cfg Config) (*Store, error) {
	if cfg.FS == nil {
		cfg.FS = vfs.OS()
	}
	if cfg.Policy == nil {
		cfg.Policy = policy.NewForecast()
	}
	if cfg.Readers == 0 {
		cfg.Readers = DefaultReaders
	}
	if cfg.Mode == "" {
		cfg.Mode = Auto
	}
	layout, err := Plan(cfg.Banks, cfg.TopK, cfg.BudgetBytes)
	if err != nil {
		return nil, err
	}
	if err := cfg.check(layout); err != nil {
		return nil, err
	}
	s := &Store{cfg: cfg, layout: layout}
	s.work.L, s.landed.L, s.thawed.L, s.drained.L = &s.mu, &s.mu, &s.mu, &s.mu
	if err := s.addBanks(); err != nil {
		return nil, err
	}
	if err := s.openFiles(); err != nil {
		return nil, errors.Join(err, s.closeFiles())
	}
	if err := s.checkRanges(); err != nil {
		return nil, errors.Join(err, s.closeFiles())
	}
	s.addSlots()
	s.lull = time.AfterFunc(lull, s.work.Broadcast)
	s.SetReaders(cfg.Readers)
	s.background.Go(s.warmer)
	if cfg.Back != nil {
		s.background.Go(s.backAhead)
	}
	return s, nil
}

// SetReaders changes how many reads are under way at most. Reads under way go on.
func (s *Store) SetReaders(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.cfg.Readers = n
	for ; s.readers < n; s.readers++ {
		s.background.Go(s.reader)
	}
	s.work.Broadcast() // some may have to end
}

func (cfg *Config) check(l Layout) error {
	switch {
	case cfg.Mode != Auto && cfg.Mode != DirectOnly && cfg.Mode != BufferedOnly:
		return fault.Userf("io mode %q: choose %s, %s or %s", cfg.Mode, Auto, DirectOnly, BufferedOnly)
	case cfg.Readers < 0 || cfg.Readers > 1024:
		return fault.Userf("%d readers: choose 1 to 1024", cfg.Readers)
	case cfg.BudgetBytes < l.MinBudgetBytes:
		return fault.Userf("expert cache of %d bytes is too small: one token uses %d experts of a layer, %d bytes",
			cfg.BudgetBytes, cfg.TopK, l.MinBudgetBytes)
	case int64(len(cfg.Arena)) < l.ArenaBytes:
		return fault.Bugf("expert store: arena of %d bytes, layout needs %d", len(cfg.Arena), l.ArenaBytes)
	case len(cfg.Ready) < l.Slots:
		return fault.Bugf("expert store: %d readiness words, layout needs %d", len(cfg.Ready), l.Slots)
	case uintptr(unsafe.Pointer(unsafe.SliceData(cfg.Arena)))%vfs.Align != 0:
		return fault.Bugf("expert store: arena is not aligned to %d bytes", vfs.Align)
	}
	return nil
}

func (s *Store) addBanks() error {
	layers := 0
	for i := range s.cfg.Banks {
		layers = max(layers, s.cfg.Banks[i].Layer+1)
	}
	if layers > 1<<20 {
		return fault.Unsupportedf("expert store: layer %d", layers-1)
	}
	s.byLayer = make([]int32, layers)
	for i := range s.byLayer {
		s.byLayer[i] = -1
	}
	var keys int32
	for i, b := range s.cfg.Banks {
		if s.byLayer[b.Layer] >= 0 {
			return fault.Bugf("expert store: two banks for layer %d", b.Layer)
		}
		s.byLayer[b.Layer] = int32(i)
		d := bank{Bank: b, firstKey: keys, bytes: b.ExpertBytes()}
		d.class = slices.IndexFunc(s.layout.Classes, func(c Class) bool { return c.SlotBytes == b.slotBytes() })
		var off int64
		for p := range b.Parts {
			d.partOff[p] = off
			off += vfs.RegionBytes(b.Parts[p].Bytes)
		}
		s.banks = append(s.banks, d)
		keys += int32(b.Experts)
	}
	bytes, layerOf := make([]int64, 0, keys), make([]int32, 0, keys)
	for i := range s.banks {
		for range s.banks[i].Experts {
			bytes, layerOf = append(bytes, s.banks[i].bytes), append(layerOf, int32(s.banks[i].Layer))
		}
	}
	s.ledger = policy.NewLedger(bytes, layerOf, s.layout.BudgetBytes, s.cfg.Policy)
	s.slotOf = make([]int32, keys)
	return nil
}

func (s *Store) addSlots() {
	s.slots = make([]slot, s.layout.Slots)
	for i, c := range s.layout.Classes {
		d := class{Class: c, free: make([]int32, 0, c.Slots), bare: make([]int32, 0, c.Slots)}
		for n := c.First + c.Slots - 1; n >= c.First; n-- {
			s.slots[n].class = int32(i)
			d.bare = append(d.bare, int32(n))
		}
		for j := range s.banks {
			if s.banks[j].class == i {
				d.experts += s.banks[j].Experts
			}
		}
		s.classes = append(s.classes, d)
	}
	for i := range s.queues {
		s.queues[i] = queue{head: none, tail: none}
	}
}

// Layout returns the layout the store uses.
func (s *Store) Layout() Layout { return s.layout }

// Acquire starts a batch: the distinct experts that one layer needs now, in b.Slots. Duplicates are dropped. It records
// one use of each, evicts what the budget demands but nothing that a batch holds, and queues a read for each that is
// missing. It does not wait for those reads: see the readiness words, or Wait.
//
// Experts that do not fit into the budget together with the rest are left in b.Rest, resident ones being taken first;
// acquire them after releasing b; b.Rest may be passed as experts. Acquire always takes at least one expert, unless it
// returns an error: [ErrBusy], [ErrClosed], the cause of an [Store.Interrupt], a layer or expert that does not exist, or a
// batch not released. Then it has taken none, and after ErrBusy b.Rest is all that was asked for.
func (s *Store) Acquire(layer int, experts []int32, b *Batch) error {
	s.admission.Lock()
	defer s.admission.Unlock()
	if len(b.held) > 0 {
		return fault.Bugf("layer %d: batch still holds %d experts of layer %d", layer, len(b.held), b.Layer)
	}
	b.keys = b.keys[:0]
	bi, err := s.bankOf(layer)
	if err != nil {
		return err
	}
	bk := &s.banks[bi]
	for _, e := range experts {
		if e < 0 || int(e) >= bk.Experts {
			return fault.Bugf("layer %d: expert %d of %d was asked for", layer, e, bk.Experts)
		}
		b.keys = append(b.keys, bk.firstKey+e)
	}

	s.mu.Lock()
	err = s.admit(b)
	for i := range b.Rest {
		b.Rest[i] -= bk.firstKey
	}
	if err != nil {
		s.mu.Unlock()
		return err
	}
	b.Layer = layer
	if len(b.wave.Keys) > 0 {
		s.held++
	}
	b.held, b.Slots = b.held[:0], b.Slots[:0]
	for _, k := range b.wave.Evicted {
		s.free(k)
		s.stats.Evictions.add(s.bytesOf(k))
	}
	for i, k := range b.wave.Keys {
		var n int32
		s.stats.Requested.add(bk.bytes)
		if b.wave.Hit[i] {
			n = s.slotOf[k]
			s.hit(n, bk.bytes)
		} else {
			n = s.alloc(k, bi, k-bk.firstKey)
			s.slots[n].prio = demand
			s.stats.Misses.add(bk.bytes)
		}
		s.slots[n].pins++
		b.held = append(b.held, n)
		b.Slots = append(b.Slots, s.describe(n))
		b.Slots[i].Hit = b.wave.Hit[i]
	}
	s.discardPending()

	// Queue in file order, whatever the order asked for, so that the disk sees one sweep per batch; but first what was begun.
	sorted := b.wave.Keys
	slices.SortFunc(sorted, func(x, y int32) int {
		a, c := bk.Parts[0].at(x-bk.firstKey), bk.Parts[0].at(y-bk.firstKey)
		begun := func(k int32) int { return int(min(s.slots[s.slotOf[k]].started, 1)) }
		return cmp.Or(cmp.Compare(begun(y), begun(x)), cmp.Compare(a.File, c.File), cmp.Compare(a.Offset, c.Offset))
	})
	parts := 0
	for _, k := range sorted {
		n := s.slotOf[k]
		s.raise(n, demand)
		if s.unstarted(n) && !s.slots[n].queued {
			s.enqueue(n)
			parts += len(bk.Parts)
		}
	}
	s.mu.Unlock()
	s.wakeReaders(parts)
	return nil
}

// admit fills b.wave from b.keys, and b.Rest with the keys left over.
func (s *Store) admit(b *Batch) error {
	for {
		b.ask, b.Rest = b.ask[:0], b.Rest[:0]
		if s.closed {
			return ErrClosed
		}
		if s.interrupted != nil {
			return s.interrupted
		}
		for _, k := range b.keys {
			if s.failing(k) {
				b.Rest = append(b.Rest, k)
			} else {
				b.ask = append(b.ask, k)
			}
		}
		s.ledger.Admit(b.ask, &b.wave)
		b.Rest = append(b.Rest, b.wave.Rest...)
		if len(b.wave.Keys) > 0 || len(b.keys) == 0 {
			return nil
		}
		if s.running == 0 {
			return ErrBusy
		}
		s.landed.Wait()
	}
}

// failing reports whether key failed for a batch that is gone, while another part of it is still being read: it cannot
// start afresh in its slot until that read has ended.
func (s *Store) failing(key int32) bool {
	if !s.ledger.Resident(key) {
		return false
	}
	sl := &s.slots[s.slotOf[key]]
	return sl.err != nil && sl.pins == 0
}

// hit accounts for a batch that found slot n taken by the expert it wants.
func (s *Store) hit(n int32, bytes int64) {
	sl := &s.slots[n]
	s.stats.Hits.add(bytes)
	if !s.complete(n) {
		s.stats.Joins.add(bytes)
	}
	if sl.prefetched {
		s.stats.Used.add(bytes)
		sl.prefetched = false
	}
}

// raise gives slot n at least priority p.
func (s *Store) raise(n int32, p Priority) {
	sl := &s.slots[n]
	if sl.prio >= p {
		return
	}
	if !sl.queued {
		sl.prio = p
		return
	}
	s.unqueue(n)
	sl.prio = p
	s.enqueue(n)
}

// Release ends a batch: its experts may be evicted from now on. Reads that nobody else wants and that have not started
// are taken back. Releasing a batch twice, or one that was never acquired, does nothing.
func (s *Store) Release(b *Batch) {
	s.mu.Lock()
	for _, n := range b.held {
		s.slots[n].pins--
		s.unhold(n)
	}
	if len(b.held) > 0 {
		s.held--
	}
	s.usedAt = time.Now()
	if s.held == 0 && s.queues[warm].head != none {
		s.lull.Reset(lull)
	}
	s.mu.Unlock()
	s.landed.Broadcast()
	b.held, b.Slots = b.held[:0], b.Slots[:0]
}

// Err returns why an expert of b could not be read, or nil as long as none failed. It names the first in batch order.
func (s *Store) Err(b *Batch) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range b.held {
		if err := s.slots[n].err; err != nil {
			return err
		}
	}
	return nil
}

// Interrupt ends all waiting, so that whoever computes with a batch gives up at once however long a read takes: what batches hold
// and has not landed gets the error bit, Err and Acquire return cause. Reads under way go on, and what they bring is not
// kept. It lasts until Resume.
func (s *Store) Interrupt(cause error) {
	s.mu.Lock()
	s.interrupted = cause
	var words []*uint32
	for i := range s.slots {
		if n := int32(i); s.slots[n].pins > 0 && s.slots[n].err == nil && !s.complete(n) {
			s.forsake(n, cause)
			words = append(words, &s.cfg.Ready[n])
		}
	}
	s.mu.Unlock()
	s.landed.Broadcast()
	for _, w := range words {
		s.wake(w)
	}
}

// Resume ends an interruption. Batches acquired before it are of no use any more: release them.
func (s *Store) Resume() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.interrupted = nil
}

// Wait returns when all parts of sl, a slot of a batch not yet released, have landed or one cannot, or when ctx ends.
// Other processes wait on the readiness word instead.
func (s *Store) Wait(ctx context.Context, sl Slot) error {
	stop := context.AfterFunc(ctx, func() {
		s.mu.Lock() // or the broadcast could fall between the check of ctx and the wait
		defer s.mu.Unlock()
		s.landed.Broadcast()
	})
	defer stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	n := int32(sl.Ready)
	if n < 0 || int(n) >= len(s.slots) {
		return fault.Bugf("expert store: wait for slot %d of %d", n, len(s.slots))
	}
	for {
		switch st := &s.slots[n]; {
		case st.gen != sl.Gen || st.pins == 0:
			return fault.Bugf("expert store: wait for slot %d, which was released", n)
		case st.err != nil:
			return st.err
		case s.complete(n):
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		}
		s.landed.Wait()
	}
}

// Prefetch queues reads of experts that a layer will need (Committed) or may need (Guess), and returns how many it
// queued. It records no use and never evicts what is held. A guess evicts only what the policy ranks below it. Experts
// without room are dropped. A committed expert stays until a batch has asked for it or Cancel takes the promise back.
func (s *Store) Prefetch(layer int, experts []int32, p Priority) (int, error) {
	s.admission.Lock()
	defer s.admission.Unlock()
	bi, err := s.bankOf(layer)
	if err != nil {
		return 0, err
	}
	if p != Guess && p != Committed {
		return 0, fault.Bugf("expert store: prefetch of priority %d", p)
	}
	s.mu.Lock()
	bk := &s.banks[bi]
	count := 0
	for _, e := range experts {
		if s.closed {
			err = ErrClosed
			break
		}
		if e < 0 || int(e) >= bk.Experts {
			err = fault.Bugf("layer %d: expert %d of %d was prefetched", layer, e, bk.Experts)
			break
		}
		if s.prefetch(bi, e, p) {
			count++
		}
	}
	s.mu.Unlock()
	s.wakeReaders(count * len(bk.Parts))
	return count, err
}

func (s *Store) prefetch(bi int32, expert int32, p Priority) bool {
	bk := &s.banks[bi]
	key := bk.firstKey + expert
	if s.ledger.Resident(key) {
		n := s.slotOf[key]
		if s.slots[n].err != nil {
			return false
		}
		if p == Committed {
			s.ledger.Promise(key)
		}
		s.raise(n, p)
		if s.unstarted(n) && !s.slots[n].queued {
			s.enqueue(n)
		}
		return false
	}
	var ok bool
	s.evicted, ok = s.ledger.Speculate(key, p == Committed, s.evicted[:0])
	if !ok {
		s.stats.Dropped.add(bk.bytes)
		return false
	}
	for _, k := range s.evicted {
		s.free(k)
		s.stats.Evictions.add(s.bytesOf(k))
	}
	n := s.alloc(key, bi, expert)
	s.slots[n].prio, s.slots[n].prefetched = p, true
	s.stats.Prefetched.add(bk.bytes)
	s.discardPending()
	s.enqueue(n)
	s.ledger.Release(key) // the hold of Speculate: a queued prefetch may be evicted
	return true
}

// Cancel takes prefetches back: reads that have not started are dropped, unless a batch has joined them, and committed
// experts lose their protection. Reads under way go on.
func (s *Store) Cancel(layer int, experts []int32) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	bi, err := s.bankOf(layer)
	if err != nil {
		return err
	}
	bk := &s.banks[bi]
	for _, e := range experts {
		if e < 0 || int(e) >= bk.Experts {
			return fault.Bugf("layer %d: prefetch of expert %d of %d was cancelled", layer, e, bk.Experts)
		}
		key := bk.firstKey + e
		if !s.ledger.Resident(key) {
			continue
		}
		s.ledger.Unpromise(key)
		n := s.slotOf[key]
		sl := &s.slots[n]
		if sl.prio == demand || !sl.queued {
			continue
		}
		s.unqueue(n)
		if sl.running == 0 {
			s.ledger.Remove(key)
			s.free(key)
		}
	}
	return nil
}

// Route tells the policy what each token of a batch picked in a layer, k experts per token, token by token, the one that the router
// likes best first. It comes before the Acquire of the batch. Without it the default policy sees no uses and is no better than LRU.
func (s *Store) Route(layer, k int, experts []int32) error {
	s.admission.Lock()
	defer s.admission.Unlock()
	bi, err := s.bankOf(layer)
	if err != nil {
		return err
	}
	bk := &s.banks[bi]
	if k <= 0 || len(experts)%k != 0 {
		return fault.Bugf("layer %d: %d picks, %d of each token", layer, len(experts), k)
	}
	s.picks = s.picks[:0]
	for _, e := range experts {
		if e < 0 || int(e) >= bk.Experts {
			return fault.Bugf("layer %d: expert %d of %d was picked", layer, e, bk.Experts)
		}
		s.picks = append(s.picks, bk.firstKey+e)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ledger.Route(int32(layer), k, s.picks)
	return nil
}

// Expect tells the policy how often, per token, an expert was used in the past that it has not seen. It is for a store that nothing
// was asked of yet.
func (s *Store) Expect(layer int, expert int32, rate float32) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	bi, err := s.bankOf(layer)
	if err != nil {
		return err
	}
	bk := &s.banks[bi]
	if expert < 0 || int(expert) >= bk.Experts {
		return fault.Bugf("layer %d: expert %d of %d is expected", layer, expert, bk.Experts)
	}
	s.ledger.Expect(bk.firstKey+expert, rate)
	return nil
}

// Tick tells the policy that a token step begins: a decode step, or a prefill batch.
func (s *Store) Tick() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ledger.Tick()
}

// Close takes back all reads that have not started, waits for those that have, and closes the files. Batches that
// waited for what was taken back get ErrClosed. A second Close does nothing.
func (s *Store) Close() error {
	s.admission.Lock()
	defer s.admission.Unlock()
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	var words []*uint32
	for p := range s.queues {
		for n := s.queues[p].head; n != none; n = s.queues[p].head {
			switch sl := &s.slots[n]; {
			case sl.pins > 0:
				s.fail(n, ErrClosed)
				words = append(words, &s.cfg.Ready[n])
			case sl.running > 0:
				s.unqueue(n) // goes when that read ends
			default:
				s.ledger.Remove(sl.key)
				s.free(sl.key)
			}
		}
	}
	s.mu.Unlock()
	s.work.Broadcast()
	s.landed.Broadcast()
	s.thawed.Signal()
	s.drained.Signal()
	for _, w := range words {
		s.wake(w)
	}
	s.background.Wait()
	return s.closeFiles()
}

func (s *Store) bankOf(layer int) (int32, error) {
	if layer < 0 || layer >= len(s.byLayer) || s.byLayer[layer] < 0 {
		return 0, fault.Bugf("layer %d has no experts", layer)
	}
	return s.byLayer[layer], nil
}

// bankOfKey returns the bank that key belongs to.
func (s *Store) bankOfKey(key int32) int32 {
	i := sort.Search(len(s.banks), func(i int) bool { return s.banks[i].firstKey > key })
	return int32(i - 1)
}

func (s *Store) bytesOf(key int32) int64 { return s.banks[s.slots[s.slotOf[key]].bank].bytes }

func (s *Store) parts(n int32) int8 { return int8(len(s.banks[s.slots[n].bank].Parts)) }

func (s *Store) complete(n int32) bool { return s.slots[n].landed == s.parts(n) }

// unstarted reports whether parts of slot n still have to be read, and nothing stands against it.
func (s *Store) unstarted(n int32) bool {
	return s.slots[n].err == nil && s.slots[n].started < s.parts(n)
}

// alloc gives key a free slot and starts a new generation of its readiness word. The ledger has made the room.
func (s *Store) alloc(key, bank, expert int32) int32 {
	c := &s.classes[s.banks[bank].class]
	var n int32
	if last := len(c.free) - 1; last >= 0 {
		n, c.free = c.free[last], c.free[:last]
		s.drained.Signal()
	} else {
		last = len(c.bare) - 1
		n, c.bare = c.bare[last], c.bare[:last]
		s.backedBytes += c.SlotBytes
		s.makePhysicalRoom()
	}
	old := &s.slots[n]
	s.slots[n] = slot{key: key, bank: bank, expert: expert, class: old.class, gen: (old.gen + 1) & 0xffffff}
	s.slotOf[key] = n
	atomic.StoreUint32(&s.cfg.Ready[n], s.slots[n].gen<<8)
	return n
}

// makePhysicalRoom chooses free slots to discard until what is backed is within bounds again. It always finds some:
// the slots in use are within bounds by themselves, and slots of the growing class are not free, or it would not grow.
func (s *Store) makePhysicalRoom() {
	if s.cfg.Discard == nil {
		return
	}
	for s.backedBytes > s.layout.PhysicalBytes {
		var from *class
		var most int64
		for i := range s.classes {
			c := &s.classes[i]
			if free := int64(len(c.free)) * c.SlotBytes; free > most {
				from, most = c, free
			}
		}
		if from == nil {
			return
		}
		// The bottom of the stack has been free for longest, but any will do: none of them is in use.
		n := from.free[len(from.free)-1]
		from.free = from.free[:len(from.free)-1]
		s.backedBytes -= from.SlotBytes
		s.discards = append(s.discards, n)
	}
}

// discardPending gives back the memory of the chosen slots, without mu, before reads into other slots can be queued.
// Until it is done nobody else allocates, because the caller holds admission.
func (s *Store) discardPending() {
	if len(s.discards) == 0 {
		return
	}
	s.mu.Unlock()
	failures := int64(0)
	for _, n := range s.discards {
		off, _ := s.slotRange(n)
		if err := s.cfg.Discard(s.cfg.ArenaBase+uint64(off), s.classes[s.slots[n].class].SlotBytes); err != nil {
			failures++
		}
	}
	s.mu.Lock()
	for _, n := range s.discards {
		c := &s.classes[s.slots[n].class]
		c.bare = append(c.bare, n)
	}
	s.stats.Discards += int64(len(s.discards))
	s.stats.DiscardErrors += failures
	s.discards = s.discards[:0]
}

// slotRange returns the arena offset and size of slot n.
func (s *Store) slotRange(n int32) (off, bytes int64) {
	c := &s.classes[s.slots[n].class]
	return c.Offset + int64(int(n)-c.First)*c.SlotBytes, c.SlotBytes
}

// describe returns what a batch needs to know about slot n.
func (s *Store) describe(n int32) Slot {
	sl := &s.slots[n]
	bk := &s.banks[sl.bank]
	base, _ := s.slotRange(n)
	out := Slot{Expert: sl.expert, Ready: uint32(n), Gen: sl.gen}
	for p := range bk.Parts {
		remainder := bk.Parts[p].at(sl.expert).Offset % vfs.Align
		out.Parts[p] = s.cfg.ArenaBase + uint64(base+bk.partOff[p]+remainder)
	}
	return out
}

// free puts the slot of key, which has just left the ledger, back on its class.
func (s *Store) free(key int32) {
	n := s.slotOf[key]
	sl := &s.slots[n]
	if sl.queued {
		s.unqueue(n)
	}
	if sl.prefetched && sl.started == 0 {
		s.stats.Cancelled.add(s.banks[sl.bank].bytes)
	}
	c := &s.classes[sl.class]
	c.free = append(c.free, n)
}

// unhold ends one hold of slot n and clears away what is of no use once nobody holds it: a failed expert, and reads
// that only a released batch wanted or that were cancelled half-way.
func (s *Store) unhold(n int32) {
	sl := &s.slots[n]
	if !s.ledger.Release(sl.key) {
		return
	}
	if sl.err != nil || s.unstarted(n) && (!sl.queued || sl.prio == demand) {
		s.ledger.Remove(sl.key)
		s.free(sl.key)
	}
}

// fail is forsake for a slot whose expert cannot be read, and counts it.
func (s *Store) fail(n int32, err error) {
	if s.slots[n].err == nil {
		s.stats.Failures.add(s.bytesOf(s.slots[n].key))
	}
	s.forsake(n, err)
}

// forsake records the first error of slot n, takes back its other reads and sets the error bit. The caller wakes the word.
func (s *Store) forsake(n int32, err error) {
	sl := &s.slots[n]
	if sl.queued {
		s.unqueue(n)
	}
	if sl.err == nil {
		sl.err = err
		atomic.OrUint32(&s.cfg.Ready[n], ReadyError)
	}
}

func (s *Store) wake(word *uint32) {
	if s.cfg.Wake != nil {
		s.cfg.Wake(word)
	}
}
