package expert

import (
	"errors"
	"slices"
	"sort"
	"sync"
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

// priority orders reads.
type priority uint8

const (
	warm   priority = iota // see Warm
	ahead                  // see Prefetch
	demand                 // of a batch
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

// Close takes back all reads that have not started, waits for those that have, and closes the files. Batches that
// waited for what was taken back get ErrClosed. A second Close does nothing.
func (s *Store) Close() error {
	words, closed := s.close()
	if closed {
		return nil
	}
	s.work.Broadcast()
	s.landed.Broadcast()
	s.thawed.Signal()
	s.drained.Signal()
	for _, w := range words {
		s.wake(w)
	}
	s.background.Wait() // without admission, which the warmer may be about to take
	return s.closeFiles()
}

// close empties the queues and returns the words of who waits for what was in them, and whether the store was closed before.
func (s *Store) close() (words []*uint32, closed bool) {
	s.admission.Lock()
	defer s.admission.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, true
	}
	s.closed = true
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
	return words, false
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
