package expert

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/engine/expert/policy"
	"github.com/bigmoe/bigmoe/engine/expert/replay"
	"github.com/bigmoe/bigmoe/engine/vfs"
	"github.com/bigmoe/bigmoe/engine/vfs/errfs"
	"github.com/bigmoe/bigmoe/sdk/fault"
)

// model is two files of random bytes with three layers of experts: two stacked ones of different sizes at odd offsets,
// and one whose experts lie about in both files, the last one at the very end of a file that is no multiple of a block.
type model struct {
	names []string
	data  [][]byte
	banks []Bank
}

const testTopK = 3

// hang is what nothing below takes, however busy the machine is, unless it waits for what never comes.
const hang = time.Minute

func newModel(t testing.TB) *model {
	m := &model{}
	rnd := rand.NewChaCha8([32]byte{7})
	dir := t.TempDir()
	for i, size := range []int{700_001, 300_017} {
		b := make([]byte, size)
		_, _ = rnd.Read(b)
		name := filepath.Join(dir, fmt.Sprintf("model-%d.gguf", i))
		require.NoError(t, os.WriteFile(name, b, 0o600))
		m.names, m.data = append(m.names, name), append(m.data, b)
	}
	var at []Location
	for e := range 8 {
		at = append(at, Location{File: e % 2, Offset: int64(150_000 + e*10_007)})
	}
	at[7] = Location{File: 1, Offset: 300_017 - 5000}
	m.banks = []Bank{
		{Layer: 0, Experts: 16, Parts: []Part{
			{Name: "blk.0.ffn_gate_exps.weight", Offset: 512, Bytes: 4096, Stride: 4096},
			{Name: "blk.0.ffn_up_exps.weight", Offset: 70_144, Bytes: 4096, Stride: 4096},
			{Name: "blk.0.ffn_down_exps.weight", Offset: 140_001, Bytes: 5000, Stride: 5120}}},
		{Layer: 2, Experts: 16, Parts: []Part{
			{Name: "blk.2.ffn_gate_up_exps.weight", Offset: 300_000, Bytes: 12_000, Stride: 12_000},
			{Name: "blk.2.ffn_down_exps.weight", Offset: 500_100, Bytes: 100, Stride: 100}}},
		{Layer: 3, Experts: 8, Parts: []Part{
			{Name: "blk.3.ffn_up.weight", Bytes: 5000, At: at}}},
	}
	return m
}

func (m *model) minBudget() int64 { return 3 * 13_192 }

// want returns the payload of a part as it is in the file.
func (m *model) want(bank int, part int, expert int32) []byte {
	p := &m.banks[bank].Parts[part]
	at := p.at(expert)
	return m.data[at.File][at.Offset:][:p.Bytes]
}

const arenaBase = 1 << 20

// memory is the shared memory of a store under test; it watches the contract of Discard and Wake.
type memory struct {
	cfg   Config
	wakes atomic.Int64
}

func (m *model) config(t testing.TB, budget int64) *memory {
	l, err := Plan(m.banks, testTopK, budget)
	require.NoError(t, err)
	mem := &memory{}
	arena := vfs.AlignedBuffer(int(l.ArenaBytes))
	mem.cfg = Config{
		Files: m.names, Banks: m.banks, TopK: testTopK, BudgetBytes: budget,
		Arena: arena, ArenaBase: arenaBase, Ready: make([]uint32, l.Slots),
		Wake: func(*uint32) { mem.wakes.Add(1) },
		Discard: func(off uint64, n int64) error {
			clear(arena[off-arenaBase:][:n])
			return nil
		},
	}
	return mem
}

func mustOpen(t testing.TB, cfg Config) *Store {
	s, err := Open(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// word loads the readiness word of a slot as a backend does.
func word(s *Store, sl Slot) uint32 { return atomic.LoadUint32(&s.cfg.Ready[sl.Ready]) }

// checkPayload compares every part that a slot's word calls ready with the file, and returns how many there were.
func checkPayload(t testing.TB, m *model, s *Store, bank int, sl Slot) int {
	w := word(s, sl)
	require.Equal(t, sl.Gen, Generation(w))
	n := 0
	for p := range m.banks[bank].Parts {
		if w>>p&1 == 0 {
			continue
		}
		n++
		want := m.want(bank, p, sl.Expert)
		got := s.cfg.Arena[sl.Parts[p]-arenaBase:][:len(want)]
		if !bytes.Equal(want, got) {
			require.FailNow(t, "wrong bytes", "bank %d, expert %d, part %d", bank, sl.Expert, p)
		}
	}
	return n
}

func waitAll(t testing.TB, s *Store, b *Batch) error {
	ctx, cancel := context.WithTimeout(context.Background(), hang)
	defer cancel()
	for _, sl := range b.Slots {
		if err := s.Wait(ctx, sl); err != nil {
			require.NotErrorIs(t, err, context.DeadlineExceeded)
			return err
		}
	}
	return nil
}

func checkCounters(t testing.TB, s *Store) {
	st := s.Stats()
	require.Equal(t, st.Requested.Experts, st.Hits.Experts+st.Misses.Experts)
	require.Equal(t, st.Requested.Bytes, st.Hits.Bytes+st.Misses.Bytes)
	require.LessOrEqual(t, st.Joins.Experts, st.Hits.Experts)
	require.LessOrEqual(t, st.ResidentBytes, s.layout.BudgetBytes)
	require.LessOrEqual(t, st.BackedBytes, s.layout.PhysicalBytes)
	require.LessOrEqual(t, st.InFlightPeak, s.cfg.Readers)
	require.LessOrEqual(t, st.ReadBytes[ahead]+st.ReadBytes[demand], st.SyscallBytes)
}

// checkInvariants looks inside a store that nobody is using.
func checkInvariants(t testing.TB, s *Store) {
	s.mu.Lock()
	defer s.mu.Unlock()
	require.Zero(t, s.running)
	require.Zero(t, s.ledger.HeldBytes())
	used, backed := int64(0), int64(0)
	seen := map[int32]bool{}
	for _, c := range s.classes {
		for _, n := range append(append([]int32(nil), c.free...), c.bare...) {
			require.False(t, seen[n], "slot %d is free twice", n)
			seen[n] = true
		}
		backed += int64(c.Slots-len(c.bare)) * c.SlotBytes
	}
	for k, n := range s.slotOf {
		if !s.ledger.Resident(int32(k)) {
			continue
		}
		require.False(t, seen[n], "slot %d is in use and free", n)
		seen[n] = true
		require.Equal(t, int32(k), s.slots[n].key)
		require.Zero(t, s.slots[n].pins)
		used += s.bytesOf(int32(k))
	}
	require.Len(t, seen, len(s.slots))
	require.Equal(t, used, s.ledger.UsedBytes())
	require.Equal(t, backed, s.backedBytes)
}

// TestMetamorphic runs random operations over random configurations: whatever is called ready is what is in the file.
func TestMetamorphic(t *testing.T) {
	m := newModel(t)
	before := runtime.NumGoroutine()
	faults := map[string]func() errfs.Hook{
		"none":  func() errfs.Hook { return nil },
		"short": func() errfs.Hook { return errfs.Each(3, errfs.Short(4096)) },
		"odd":   func() errfs.Hook { return errfs.Each(2, errfs.Short(777)) },
		"eintr": func() errfs.Hook { return errfs.Each(2, errfs.Fail(syscall.EINTR)) },
		"eio":   func() errfs.Hook { return errfs.Each(5, errfs.Fail(syscall.EIO)) },
		"dead":  func() errfs.Hook { return errfs.Each(4, errfs.Fail(syscall.ENXIO)) },
		"einval": func() errfs.Hook {
			return errfs.DirectOnly(errfs.Each(3, errfs.Fail(syscall.EINVAL)))
		},
		"cut": func() errfs.Hook { return errfs.Truncate(520_000) },
	}
	for name, hook := range faults {
		for seed := range uint64(6) {
			t.Run(fmt.Sprintf("%s/%d", name, seed), func(t *testing.T) {
				rnd := rand.New(rand.NewPCG(seed, 99))
				mem := m.config(t, m.minBudget()+rnd.Int64N(300_000))
				fs := errfs.Wrap(vfs.OS())
				mem.cfg.FS = fs
				mem.cfg.Readers = []int{1, 8}[seed%2]
				mem.cfg.Mode = []IOMode{Auto, BufferedOnly}[seed/2%2]
				mem.cfg.Policy = []policy.Policy{policy.NewLRU(), policy.NewDecayedFrequency(4), policy.NewForecast()}[rnd.IntN(3)]
				s, err := Open(mem.cfg)
				require.NoError(t, err)
				fs.Set(hook())
				failures := operate(t, m, s, rnd)
				checkCounters(t, s)
				if name == "none" || name == "short" || name == "eintr" || name == "einval" {
					require.Zero(t, failures)
				}
				require.NoError(t, s.Close())
				require.NoError(t, s.Close(), "twice")
				checkInvariants(t, s)
				require.Zero(t, fs.OpenFiles())
				var b Batch
				require.ErrorIs(t, s.Acquire(0, []int32{1}, &b), ErrClosed)
			})
		}
	}
	require.Eventually(t, func() bool { return runtime.NumGoroutine() <= before+1 }, hang, time.Millisecond)
}

// operate does random things to a store and returns how many batches failed.
func operate(t testing.TB, m *model, s *Store, rnd *rand.Rand) (failures int) {
	var b Batch
	some := func(bank, most int) []int32 {
		var out []int32
		for range 1 + rnd.IntN(most) {
			out = append(out, int32(rnd.IntN(m.banks[bank].Experts)))
		}
		return out
	}
	for range 150 {
		bank := rnd.IntN(len(m.banks))
		layer := m.banks[bank].Layer
		switch rnd.IntN(8) {
		case 0:
			s.Tick()
		case 1, 2:
			_, err := s.Prefetch(layer, some(bank, 4))
			require.NoError(t, err)
		case 3:
			require.NoError(t, s.Cancel(layer, some(bank, 8)))
		default:
			most := testTopK
			if rnd.IntN(4) == 0 {
				most = 20 // a prefill, in waves
			}
			want := some(bank, most)
			seen := map[int32]bool{}
			for rest := want; len(rest) > 0; rest = b.Rest {
				require.NoError(t, s.Acquire(layer, rest, &b))
				require.NotEmpty(t, b.Slots)
				for _, sl := range b.Slots {
					require.False(t, seen[sl.Expert], "once per batch")
					seen[sl.Expert] = true
				}
				if rnd.IntN(8) == 0 { // the request was aborted
					s.Release(&b)
					continue
				}
				err := waitAll(t, s, &b)
				if err != nil {
					require.Error(t, s.Err(&b))
					failures++
				} else {
					require.NoError(t, s.Err(&b))
				}
				for _, sl := range b.Slots {
					parts := checkPayload(t, m, s, bank, sl)
					if err == nil {
						require.Equal(t, len(m.banks[bank].Parts), parts)
						require.Zero(t, word(s, sl)&ReadyError)
					}
				}
				s.Release(&b)
			}
			for _, e := range want {
				require.True(t, seen[e])
			}
		}
	}
	return failures
}

// TestConcurrentBatches holds batches in several goroutines; what they hold stays as it is.
func TestConcurrentBatches(t *testing.T) {
	m := newModel(t)
	mem := m.config(t, 2*m.minBudget()) // three batches do not fit, so some are refused
	s := mustOpen(t, mem.cfg)
	var wg sync.WaitGroup
	for g := range uint64(3) {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(g, 5))
			var b Batch
			for range 200 {
				bank := rnd.IntN(3)
				experts := []int32{int32(rnd.IntN(8)), int32(rnd.IntN(8)), int32(rnd.IntN(8))}
				if _, err := s.Prefetch(m.banks[bank].Layer, experts[:1]); err != nil {
					t.Error(err)
				}
				for rest := experts; len(rest) > 0; rest = b.Rest {
					err := s.Acquire(m.banks[bank].Layer, rest, &b)
					if errors.Is(err, ErrBusy) {
						runtime.Gosched()
						continue // with b.Rest
					}
					if err != nil {
						t.Error(err)
						return
					}
					if err := waitAll(t, s, &b); err != nil {
						t.Error(err)
					}
					for range 2 {
						for _, sl := range b.Slots {
							checkPayload(t, m, s, bank, sl)
						}
						runtime.Gosched()
					}
					s.Release(&b)
				}
			}
		})
	}
	wg.Wait()
	checkCounters(t, s)
	require.NoError(t, s.Close())
	checkInvariants(t, s)
}

func TestDirectReadsLandInPlace(t *testing.T) {
	m := newModel(t)
	mem := m.config(t, m.minBudget())
	mem.cfg.Mode = DirectOnly
	s, err := Open(mem.cfg)
	if fault.KindOf(err) == fault.Unsupported {
		t.Skip("no direct reads here:", err)
	}
	require.NoError(t, err)
	defer s.Close()
	require.Equal(t, "direct", s.Stats().Mode)
	require.Empty(t, s.Stats().ModeReason)
	var b Batch
	require.NoError(t, s.Acquire(3, []int32{7}, &b)) // ends with the file
	require.NoError(t, waitAll(t, s, &b))
	require.Equal(t, 1, checkPayload(t, m, s, 2, b.Slots[0]))
	off := m.banks[2].Parts[0].At[7].Offset
	require.Equal(t, uint64(off%4096), b.Slots[0].Parts[0]%4096)
	require.Equal(t, 300_017-off&^4095, s.Stats().SyscallBytes, "the blocks around it, up to the end of the file")
	require.Equal(t, int64(5000), s.Stats().ReadBytes[demand])
	s.Release(&b)
}

// TestDirectReadsContinue cuts direct reads short: they go on at the block that is incomplete, and a buffered read that
// takes over goes on where they ended.
func TestDirectReadsContinue(t *testing.T) {
	m := newModel(t)
	off := m.banks[1].Parts[0].at(6).Offset
	window := off % 4096
	for _, c := range []struct {
		name         string
		hook         errfs.Hook
		calls        int64
		fallbacks    int64
		syscallBytes int64
	}{
		{"within a block", errfs.Times(1, errfs.Short(4096+777)), 2, 0, 4096 + 777 + alignUp(window+12_000) - 4096},
		{"then refused", func() errfs.Hook {
			var n atomic.Int64
			return errfs.DirectOnly(func(errfs.Read) errfs.Fault {
				if n.Add(1) == 1 {
					return errfs.Fault{Max: 8192}
				}
				return errfs.Fault{Err: syscall.EINVAL}
			})
		}(), 3, 1, window + 12_000},
	} {
		t.Run(c.name, func(t *testing.T) {
			mem := m.config(t, m.minBudget())
			fs := errfs.Wrap(vfs.OS())
			mem.cfg.FS, mem.cfg.Readers = fs, 1
			s := mustOpen(t, mem.cfg)
			if s.Stats().Mode != "direct" {
				t.Skip("no direct reads here")
			}
			calls := fs.Reads()
			fs.Set(func(r errfs.Read) errfs.Fault {
				if r.Off < off-window || r.Off >= off+12_000 { // the other part
					return errfs.Fault{Err: syscall.ENXIO}
				}
				return c.hook(r)
			})
			var b Batch
			require.NoError(t, s.Acquire(2, []int32{6}, &b))
			require.Eventually(t, func() bool { return s.Stats().Reads == 2 }, hang, time.Millisecond)
			require.Equal(t, 1, checkPayload(t, m, s, 1, b.Slots[0]))
			require.Equal(t, c.calls, fs.Reads()-calls-1)
			require.Equal(t, c.fallbacks, s.Stats().Fallbacks)
			require.Equal(t, c.syscallBytes, s.Stats().SyscallBytes)
			s.Release(&b)
		})
	}
}

func TestModes(t *testing.T) {
	m := newModel(t)
	for _, c := range []struct {
		name  string
		mode  IOMode
		setup func(*errfs.FS)
		want  string
		why   string
		err   string
	}{
		{name: "buffered on request", mode: BufferedOnly, want: "buffered", why: "asked for"},
		{name: "open refused", mode: Auto, want: "buffered", why: "invalid argument", setup: func(fs *errfs.FS) {
			fs.SetOpen(func(_ string, mode vfs.Mode) error {
				if mode == vfs.Direct {
					return syscall.EINVAL
				}
				return nil
			})
		}},
		{name: "read refused", mode: Auto, want: "buffered", why: "direct read of 4096 bytes at 0: got 0 of 4096 bytes",
			setup: func(fs *errfs.FS) { fs.Set(errfs.DirectOnly(errfs.Fail(syscall.EINTR))) }},
		{name: "forced", mode: DirectOnly, err: "cannot be read around the page cache",
			setup: func(fs *errfs.FS) { fs.Set(errfs.DirectOnly(errfs.Fail(syscall.EINVAL))) }},
		{name: "one file only", mode: Auto, want: "mixed", why: "model-1.gguf", setup: func(fs *errfs.FS) {
			fs.SetOpen(func(name string, mode vfs.Mode) error {
				if mode == vfs.Direct && strings.HasSuffix(name, "model-1.gguf") {
					return syscall.EINVAL
				}
				return nil
			})
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			mem := m.config(t, m.minBudget())
			fs := errfs.Wrap(vfs.OS())
			mem.cfg.FS, mem.cfg.Mode = fs, c.mode
			if c.want == "mixed" {
				plain, err := Open(mem.cfg)
				require.NoError(t, err)
				mode := plain.Stats().Mode
				require.NoError(t, plain.Close())
				if mode != "direct" {
					t.Skip("no direct reads here")
				}
			}
			if c.setup != nil {
				c.setup(fs)
			}
			s, err := Open(mem.cfg)
			if c.err != "" {
				require.ErrorContains(t, err, c.err)
				require.Equal(t, fault.Unsupported, fault.KindOf(err))
				require.Zero(t, fs.OpenFiles())
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.want, s.Stats().Mode)
			require.Contains(t, s.Stats().ModeReason, c.why)
			fs.Set(nil)
			var b Batch
			require.NoError(t, s.Acquire(3, []int32{0, 1, 7}, &b))
			require.NoError(t, waitAll(t, s, &b))
			for _, sl := range b.Slots {
				require.Equal(t, 1, checkPayload(t, m, s, 2, sl))
			}
			s.Release(&b)
			require.NoError(t, s.Close())
			require.Zero(t, fs.OpenFiles())
		})
	}
}

func TestReadErrors(t *testing.T) {
	m := newModel(t)
	for _, c := range []struct {
		name  string
		mode  IOMode
		hook  errfs.Hook
		say   []string
		is    error
		kind  fault.Kind
		reads int64 // system calls, 0: any
	}{
		{name: "eio once", hook: errfs.Times(1, errfs.Fail(syscall.EIO))},
		{name: "eio twice", hook: errfs.Times(2, errfs.Fail(syscall.EIO))},
		{name: "eio always", hook: errfs.Fail(syscall.EIO), reads: 3, is: syscall.EIO,
			say: []string{"layer 3", "expert 5", "part 0", "tensor blk.3.ffn_up.weight", "model-1.gguf", "at offset 200035", "got 0 of 5000 bytes", "input/output error"}},
		{name: "interrupted for ever", hook: errfs.Fail(syscall.EINTR), reads: vfs.SignalTries, is: syscall.EINTR},
		{name: "interrupted often", hook: errfs.Times(200, errfs.Fail(syscall.EINTR))},
		{name: "truncated, buffered", mode: BufferedOnly, hook: errfs.Truncate(201_000), is: io.ErrUnexpectedEOF, kind: fault.Corrupt,
			say: []string{"layer 3", "expert 5", "model-1.gguf", "got 965 of 5000 bytes", "shorter"}},
		{name: "truncated, direct", hook: errfs.Truncate(201_000), is: io.ErrUnexpectedEOF, kind: fault.Corrupt,
			say: []string{"got 965 of 5000 bytes", "shorter"}},
		{name: "gone", hook: errfs.Truncate(0), is: io.ErrUnexpectedEOF, kind: fault.Corrupt, say: []string{"got 0 of 5000 bytes"}},
		{name: "byte by byte", mode: BufferedOnly, hook: errfs.Short(1), reads: 5000},
		{name: "refused when direct", hook: errfs.DirectOnly(errfs.Fail(syscall.EINVAL))},
		{name: "refused", hook: errfs.Fail(syscall.EINVAL), is: syscall.EINVAL},
	} {
		t.Run(c.name, func(t *testing.T) {
			mem := m.config(t, m.minBudget())
			fs := errfs.Wrap(vfs.OS())
			mem.cfg.FS, mem.cfg.Mode = fs, c.mode
			s := mustOpen(t, mem.cfg)
			calls := fs.Reads()
			fs.Set(c.hook)
			var b Batch
			require.NoError(t, s.Acquire(3, []int32{5}, &b))
			sl := b.Slots[0]
			err := waitAll(t, s, &b)
			if c.reads != 0 {
				require.Equal(t, c.reads, fs.Reads()-calls)
				require.Equal(t, c.reads-1, s.Stats().Retries)
			}
			if c.is == nil {
				require.NoError(t, err)
				require.NoError(t, s.Err(&b))
				require.Equal(t, 1, checkPayload(t, m, s, 2, sl))
				s.Release(&b)
				return
			}
			require.ErrorIs(t, err, c.is)
			require.Equal(t, err, s.Err(&b))
			require.Equal(t, c.kind, fault.KindOf(err))
			for _, say := range c.say {
				require.ErrorContains(t, err, say)
			}
			require.Equal(t, uint32(ReadyError), word(s, sl)&0xff)
			require.Equal(t, Counts{1, 5000}, s.Stats().Failures)
			s.Release(&b)
			require.Zero(t, s.Stats().ResidentBytes, "nothing of it stays")

			fs.Set(nil)
			require.NoError(t, s.Acquire(3, []int32{5}, &b))
			require.NoError(t, waitAll(t, s, &b), "the next batch reads afresh")
			require.NotEqual(t, sl.Gen, b.Slots[0].Gen)
			require.Equal(t, 1, checkPayload(t, m, s, 2, b.Slots[0]))
			require.Equal(t, int64(2), s.Stats().Misses.Experts)
			s.Release(&b)
		})
	}
}

// log records the order in which a store reads.
type readLog struct {
	mu   sync.Mutex
	offs []int64
}

func (l *readLog) hook(next errfs.Hook) errfs.Hook {
	return func(r errfs.Read) errfs.Fault {
		l.mu.Lock()
		l.offs = append(l.offs, r.Off)
		l.mu.Unlock()
		return next(r)
	}
}

func (l *readLog) order() []int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]int64(nil), l.offs...)
}

// blocked returns a buffered store with one reader whose reads wait for the gate, and the log of its reads.
func blocked(t testing.TB, m *model, budget int64) (s *Store, fs *errfs.FS, open func(), log *readLog) {
	mem := m.config(t, budget)
	fs = errfs.Wrap(vfs.OS())
	mem.cfg.FS, mem.cfg.Mode, mem.cfg.Readers = fs, BufferedOnly, 1
	mem.cfg.Policy = policy.NewLRU()
	s = mustOpen(t, mem.cfg)
	gate := make(chan struct{})
	log = &readLog{}
	fs.Set(log.hook(errfs.Block(gate)))
	open = sync.OnceFunc(func() { close(gate) })
	t.Cleanup(open)
	return s, fs, open, log
}

func (l *readLog) waitFor(t testing.TB, n int) {
	require.Eventually(t, func() bool { return len(l.order()) >= n }, hang, time.Millisecond)
}

func TestOrderOfReads(t *testing.T) {
	m := newModel(t)
	s, _, open, log := blocked(t, m, 1<<20)
	var first, b Batch
	require.NoError(t, s.Acquire(3, []int32{0}, &first)) // occupies the only reader
	log.waitFor(t, 1)
	_, err := s.Prefetch(2, []int32{9, 8, 5})
	require.NoError(t, err)
	require.NoError(t, s.Acquire(0, []int32{7, 2}, &b))
	require.NoError(t, s.Acquire(2, []int32{8}, &Batch{})) // what was queued ahead becomes a demand
	open()
	log.waitFor(t, 1+2*3+3*2)
	p0, p2 := m.banks[0].Parts, m.banks[1].Parts
	var want []int64
	for _, e := range []int32{2, 7} { // in file order, whole experts
		want = append(want, p0[0].at(e).Offset, p0[1].at(e).Offset, p0[2].at(e).Offset)
	}
	for _, e := range []int32{8, 9, 5} {
		want = append(want, p2[0].at(e).Offset, p2[1].at(e).Offset)
	}
	require.Equal(t, want, log.order()[1:])
	require.Equal(t, []int32{7, 2}, []int32{b.Slots[0].Expert, b.Slots[1].Expert}, "slots are in the order asked")
	require.NoError(t, waitAll(t, s, &b))
	st := s.Stats()
	require.Equal(t, Counts{3, 3 * 12_100}, st.Prefetched)
	require.Equal(t, Counts{1, 12_100}, st.Used)
	require.Equal(t, Counts{1, 12_100}, st.Joins)
}

func TestPartsBecomeReadyOneByOne(t *testing.T) {
	m := newModel(t)
	mem := m.config(t, m.minBudget())
	fs := errfs.Wrap(vfs.OS())
	mem.cfg.FS, mem.cfg.Mode = fs, BufferedOnly
	mem.cfg.Readers = 1
	s := mustOpen(t, mem.cfg)
	gate := make(chan struct{})
	fs.Set(func(r errfs.Read) errfs.Fault {
		if r.Off == m.banks[0].Parts[2].at(1).Offset {
			return errfs.Fault{Block: gate}
		}
		return errfs.Fault{}
	})
	var b Batch
	require.NoError(t, s.Acquire(0, []int32{1}, &b))
	sl := b.Slots[0]
	require.Eventually(t, func() bool { return word(s, sl)&ReadyMask == 0b011 }, hang, time.Millisecond)
	require.Equal(t, 2, checkPayload(t, m, s, 0, sl))
	close(gate)
	require.NoError(t, waitAll(t, s, &b))
	require.Equal(t, uint32(0b111), word(s, sl)&0xff)
	require.Eventually(t, func() bool { return mem.wakes.Load() == 3 }, hang, time.Millisecond)
	s.Release(&b)
}

func TestSingleFlight(t *testing.T) {
	m := newModel(t)
	s, fs, open, log := blocked(t, m, 1<<20)
	calls := fs.Reads()
	_, err := s.Prefetch(3, []int32{1, 2})
	require.NoError(t, err)
	log.waitFor(t, 1) // 1 is being read, 2 is queued
	n, err := s.Prefetch(3, []int32{1, 2})
	require.NoError(t, err)
	require.Zero(t, n)
	var a, b Batch
	require.NoError(t, s.Acquire(3, []int32{1, 2}, &a))
	require.NoError(t, s.Acquire(3, []int32{2, 1}, &b))
	open()
	require.NoError(t, waitAll(t, s, &a))
	require.NoError(t, waitAll(t, s, &b))
	require.Equal(t, int64(2), fs.Reads()-calls)
	require.Equal(t, a.Slots[0], b.Slots[1])
	st := s.Stats()
	require.Zero(t, st.Misses)
	require.Equal(t, int64(4), st.Joins.Experts)
	require.Equal(t, int64(5000), st.ReadBytes[ahead], "it was that when its read began")
	require.Equal(t, int64(5000), st.ReadBytes[demand])
	s.Release(&a)
	s.Release(&b)
}

func TestCancel(t *testing.T) {
	m := newModel(t)
	s, fs, open, log := blocked(t, m, 1<<20)
	calls := fs.Reads()
	_, err := s.Prefetch(3, []int32{0, 1, 2, 3})
	require.NoError(t, err)
	log.waitFor(t, 1)
	var b Batch
	require.NoError(t, s.Acquire(3, []int32{2}, &b))
	require.NoError(t, s.Cancel(3, []int32{0, 1, 2, 3, 4}))
	st := s.Stats()
	require.Equal(t, Counts{2, 10_000}, st.Cancelled, "0 has started, 2 was joined")
	require.Equal(t, int64(10_000), st.ResidentBytes)
	open()
	require.NoError(t, waitAll(t, s, &b))
	require.Equal(t, 1, checkPayload(t, m, s, 2, b.Slots[0]))
	s.Release(&b)
	require.NoError(t, s.Acquire(3, []int32{0}, &b))
	require.NoError(t, waitAll(t, s, &b))
	require.Equal(t, int64(2), fs.Reads()-calls, "the read under way was of use")
	s.Release(&b)
}

// TestAbandonedReads releases a batch before its reads have started: nobody waits for them, so they do not happen.
func TestAbandonedReads(t *testing.T) {
	m := newModel(t)
	s, fs, open, log := blocked(t, m, m.minBudget())
	calls := fs.Reads()
	var b Batch
	require.NoError(t, s.Acquire(2, []int32{0, 1, 2}, &b))
	log.waitFor(t, 1)
	s.Release(&b)
	s.Release(&b) // twice does nothing
	require.Equal(t, int64(12_100), s.Stats().ResidentBytes, "only the one being read")

	// The whole budget is asked for while that read still holds a third of it.
	require.NoError(t, s.Acquire(2, []int32{5, 6, 7}, &b))
	require.Len(t, b.Slots, 2)
	require.Equal(t, []int32{7}, b.Rest)
	open()
	require.NoError(t, waitAll(t, s, &b))
	s.Release(&b)
	require.Equal(t, int64(1+2*2), fs.Reads()-calls)
	require.NoError(t, s.Acquire(2, b.Rest, &b))
	require.NoError(t, waitAll(t, s, &b))
	require.Equal(t, int32(7), b.Slots[0].Expert)
	s.Release(&b)
}

// TestFailureWhileAnotherPartIsRead releases a failed batch of which one read still runs: the next batch for the same
// expert must neither get the old failure nor a slot that is still being written.
func TestFailureWhileAnotherPartIsRead(t *testing.T) {
	m := newModel(t)
	mem := m.config(t, m.minBudget())
	fs := errfs.Wrap(vfs.OS())
	mem.cfg.FS, mem.cfg.Mode, mem.cfg.Readers = fs, BufferedOnly, 2
	s := mustOpen(t, mem.cfg)
	gate, started := make(chan struct{}), make(chan struct{})
	open := sync.OnceFunc(func() { close(gate) })
	t.Cleanup(open)
	fs.Set(func(r errfs.Read) errfs.Fault {
		if r.Off == m.banks[1].Parts[0].at(4).Offset {
			close(started)
			return errfs.Fault{Block: gate}
		}
		return errfs.Fault{Block: started, Err: syscall.ENXIO} // a read that has not started would be given up
	})
	var b Batch
	require.NoError(t, s.Acquire(2, []int32{4}, &b))
	require.ErrorIs(t, waitAll(t, s, &b), syscall.ENXIO)
	s.Release(&b)
	fs.Set(nil)
	done := make(chan error)
	go func() { done <- s.Acquire(2, []int32{4}, &b) }()
	select {
	case <-done:
		require.Fail(t, "acquired a slot that is being written")
	case <-time.After(20 * time.Millisecond):
	}
	open()
	require.NoError(t, <-done)
	require.NoError(t, waitAll(t, s, &b))
	require.Equal(t, 2, checkPayload(t, m, s, 1, b.Slots[0]))
	s.Release(&b)
}

func TestBusyAndWaves(t *testing.T) {
	m := newModel(t)
	s := mustOpen(t, m.config(t, m.minBudget()).cfg)
	var a, b Batch
	require.NoError(t, s.Acquire(0, []int32{0, 1, 2, 3, 4, 2}, &a))
	require.Len(t, a.Slots, 3)
	require.Equal(t, []int32{3, 4}, a.Rest)
	require.NoError(t, waitAll(t, s, &a))
	require.ErrorIs(t, s.Acquire(0, []int32{9}, &b), ErrBusy)
	require.Empty(t, b.Slots)
	require.Equal(t, []int32{9}, b.Rest)
	require.ErrorIs(t, s.Acquire(0, b.Rest, &b), ErrBusy)
	require.Equal(t, []int32{9}, b.Rest)
	require.ErrorContains(t, s.Acquire(0, []int32{9}, &a), "still holds 3 experts")
	n, err := s.Prefetch(0, []int32{9})
	require.NoError(t, err)
	require.Zero(t, n)
	require.Equal(t, int64(1), s.Stats().Dropped.Experts)
	for _, sl := range a.Slots {
		require.Equal(t, 3, checkPayload(t, m, s, 0, sl), "held experts stay")
	}
	require.NoError(t, s.Acquire(0, []int32{1, 9}, &b), "a held one can be shared")
	require.Equal(t, []int32{9}, b.Rest)
	s.Release(&b)
	s.Release(&a)
	require.NoError(t, s.Acquire(0, a.Rest, &a))
	require.Empty(t, a.Rest)
	s.Release(&a)
}

func TestStaleWord(t *testing.T) {
	m := newModel(t)
	s := mustOpen(t, m.config(t, m.minBudget()).cfg)
	var b Batch
	require.NoError(t, s.Acquire(0, []int32{0, 1, 2}, &b))
	require.NoError(t, waitAll(t, s, &b))
	old := b.Slots[0]
	s.Release(&b)
	require.NoError(t, s.Acquire(0, []int32{3, 4, 5}, &b))
	require.NoError(t, waitAll(t, s, &b))
	require.NotEqual(t, old.Gen, Generation(word(s, old)), "the slot was used again")
	require.Equal(t, fault.Bug, fault.KindOf(s.Wait(context.Background(), old)))
	s.Release(&b)
}

func TestWaitEndsWithContext(t *testing.T) {
	m := newModel(t)
	s, _, _, log := blocked(t, m, m.minBudget())
	var b Batch
	require.NoError(t, s.Acquire(0, []int32{0}, &b))
	log.waitFor(t, 1)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, s.Wait(ctx, b.Slots[0]), context.DeadlineExceeded)
	s.Release(&b)
}

func TestCloseFailsWaitingBatches(t *testing.T) {
	m := newModel(t)
	s, _, open, log := blocked(t, m, m.minBudget())
	var b Batch
	require.NoError(t, s.Acquire(0, []int32{0, 1}, &b))
	log.waitFor(t, 1)
	closed := make(chan error)
	go func() { closed <- s.Close() }()
	require.ErrorIs(t, waitAll(t, s, &b), ErrClosed)
	require.NotZero(t, word(s, b.Slots[1])&ReadyError)
	select {
	case <-closed:
		require.Fail(t, "Close did not wait for the read under way")
	default:
	}
	open()
	require.NoError(t, <-closed)
	s.Release(&b)
	checkInvariants(t, s)
}

// TestInterrupt gives up a batch whose read hangs, and the wait for that read to end; afterwards all is as before.
func TestInterrupt(t *testing.T) {
	m := newModel(t)
	s, _, open, log := blocked(t, m, m.minBudget())
	enough := errors.New("enough")
	var b Batch
	require.NoError(t, s.Acquire(2, []int32{4}, &b))
	log.waitFor(t, 1)
	s.Interrupt(enough)
	require.ErrorIs(t, waitAll(t, s, &b), enough)
	require.NotZero(t, word(s, b.Slots[0])&ReadyError)
	require.ErrorIs(t, s.Err(&b), enough)
	s.Release(&b)
	require.ErrorIs(t, s.Acquire(2, []int32{5}, &b), enough)
	s.Resume()

	again := make(chan error)
	go func() { again <- s.Acquire(2, []int32{4}, &b) }()
	time.Sleep(10 * time.Millisecond) // likely waiting for the slot by now; if not, it must come to the same
	s.Interrupt(enough)
	require.ErrorIs(t, <-again, enough)
	s.Resume()

	open()
	require.NoError(t, s.Acquire(2, []int32{4}, &b))
	require.NoError(t, waitAll(t, s, &b))
	require.Equal(t, 2, checkPayload(t, m, s, 1, b.Slots[0]))
	s.Release(&b)
	require.Zero(t, s.Stats().Failures)
	checkInvariants(t, s)
}

// TestPhysicalMemory moves the whole budget from one class to the other and back.
func TestPhysicalMemory(t *testing.T) {
	m := newModel(t)
	mem := m.config(t, 10*13_192)
	mem.cfg.Policy = policy.NewDecayedFrequency(policy.DefaultHalfLife)
	resident := map[uint64]bool{}
	var mu sync.Mutex
	discard := mem.cfg.Discard
	mem.cfg.Discard = func(off uint64, n int64) error {
		mu.Lock()
		defer mu.Unlock()
		resident[off] = true
		return discard(off, n)
	}
	s := mustOpen(t, mem.cfg)
	var b Batch
	for round := range 3 {
		for _, layer := range []int{0, 2} {
			for e := range int32(16) {
				require.NoError(t, s.Acquire(layer, []int32{e}, &b))
				require.NoError(t, waitAll(t, s, &b))
				s.Release(&b)
				checkCounters(t, s)
			}
		}
		require.Positive(t, s.Stats().Discards, "round %d", round)
	}
	before := s.Stats().Discards
	for range 3 {
		for e := range int32(16) {
			require.NoError(t, s.Acquire(2, []int32{e}, &b))
			require.NoError(t, waitAll(t, s, &b))
			s.Release(&b)
		}
	}
	require.Equal(t, before, s.Stats().Discards, "a steady mix discards nothing")
	require.NotEmpty(t, resident)
}

func TestPlan(t *testing.T) {
	m := newModel(t)
	l, err := Plan(m.banks, testTopK, 100_000)
	require.NoError(t, err)
	require.Equal(t, m.minBudget(), l.MinBudgetBytes)
	require.Equal(t, int64(16*13_192+16*12_100+8*5000), l.ExpertBytes)
	require.Equal(t, int64(100_000), l.BudgetBytes)
	require.Equal(t, []Class{
		{SlotBytes: 12_288, Offset: 0, First: 0, Slots: 8},
		{SlotBytes: 24_576, Offset: 8 * 12_288, First: 8, Slots: 8},
		{SlotBytes: 28_672, Offset: 8*12_288 + 8*24_576, First: 16, Slots: 7},
	}, l.Classes)
	require.Equal(t, 23, l.Slots)

	all, err := Plan(m.banks, testTopK, 1<<40)
	require.NoError(t, err)
	require.Equal(t, all.ExpertBytes, all.BudgetBytes)
	require.Equal(t, all.ArenaBytes, all.PhysicalBytes, "everything resident")

	one, err := Plan(m.banks[:1], testTopK, 50_000)
	require.NoError(t, err)
	require.Equal(t, int64(3*28_672), one.PhysicalBytes)
}

func TestOpenRefuses(t *testing.T) {
	m := newModel(t)
	for _, c := range []struct {
		name string
		edit func(*Config)
		kind fault.Kind
		say  string
	}{
		{"budget", func(c *Config) { c.BudgetBytes = m.minBudget() - 1 }, fault.User, "39575 bytes is too small: one token uses 3 experts of a layer, 39576 bytes"},
		{"mode", func(c *Config) { c.Mode = "fast" }, fault.User, `"fast"`},
		{"readers", func(c *Config) { c.Readers = -1 }, fault.User, "-1 readers"},
		{"arena", func(c *Config) { c.Arena = c.Arena[:4096] }, fault.Bug, "arena of 4096 bytes"},
		{"unaligned", func(c *Config) { c.Arena = vfs.AlignedBuffer(len(c.Arena) + 1)[1:] }, fault.Bug, "not aligned"},
		{"words", func(c *Config) { c.Ready = c.Ready[:1] }, fault.Bug, "1 readiness words"},
		{"missing file", func(c *Config) { c.Files = []string{c.Files[0], "nowhere.gguf"} }, fault.User, "nowhere.gguf"},
		{"folder", func(c *Config) { c.Files = []string{c.Files[0], "."} }, fault.User, "not a regular file"},
		{"beyond the file", func(c *Config) { c.Banks[0].Parts[2].Offset = 630_000 }, fault.Corrupt, "model-0.gguf: tensor blk.0.ffn_down_exps.weight: layer 0, expert 13 at offset 696560, 5000 bytes: file has 700001 bytes"},
		{"no such file", func(c *Config) { c.Banks[0].Parts[0].File = 2 }, fault.Bug, "file 2 of 2"},
		{"layer twice", func(c *Config) { c.Banks[1].Layer = 0 }, fault.Bug, "two banks for layer 0"},
		{"locations", func(c *Config) { c.Banks[2].Experts = 9 }, fault.Bug, "8 locations for 9 experts"},
		{"no bytes", func(c *Config) { c.Banks[0].Parts[1].Bytes = 0 }, fault.Corrupt, "blk.0.ffn_up_exps.weight"},
		{"top-k", func(c *Config) { c.TopK = 0 }, fault.Bug, "top-k 0"},
		{"parts", func(c *Config) { c.Banks[0].Parts = nil }, fault.Unsupported, "0 parts"},
	} {
		t.Run(c.name, func(t *testing.T) {
			own := newModel(t)
			cfg := own.config(t, m.minBudget()).cfg
			fs := errfs.Wrap(vfs.OS())
			cfg.FS = fs
			c.edit(&cfg)
			_, err := Open(cfg)
			require.ErrorContains(t, err, c.say)
			require.Equal(t, c.kind, fault.KindOf(err))
			require.Zero(t, fs.OpenFiles())
		})
	}
}

func TestAcquireRefuses(t *testing.T) {
	m := newModel(t)
	s := mustOpen(t, m.config(t, m.minBudget()).cfg)
	var b Batch
	for _, layer := range []int{-1, 1, 4} {
		require.ErrorContains(t, s.Acquire(layer, []int32{0}, &b), "has no experts")
	}
	require.ErrorContains(t, s.Acquire(0, []int32{16}, &b), "expert 16 of 16")
	require.ErrorContains(t, s.Acquire(0, []int32{-1}, &b), "expert -1 of 16")
	require.ErrorContains(t, s.Route(7, 1, []int32{0}), "has no experts")
	require.ErrorContains(t, s.Route(0, 1, []int32{16}), "expert 16 of 16")
	require.ErrorContains(t, s.Route(0, 2, []int32{1, 2, 3}), "3 picks, 2 of each token")
	_, err := s.Prefetch(0, []int32{16})
	require.ErrorContains(t, err, "expert 16 of 16")
	require.ErrorContains(t, s.Cancel(0, []int32{-4}), "expert -4")
	require.NoError(t, s.Acquire(0, nil, &b))
	require.Empty(t, b.Slots)
	require.Zero(t, s.Stats().Requested)
}

// instant is a file system whose reads cost nothing and write nothing.
type instant struct{ size int64 }

func (f instant) Open(string, vfs.Mode) (vfs.File, error) { return f, nil }
func (f instant) Pread(p []byte, off int64) (int, error)  { return len(p), nil }
func (f instant) Size() int64                             { return f.size }
func (f instant) Mode() vfs.Mode                          { return vfs.Buffered }
func (f instant) Close() error                            { return nil }

// traceStore builds a store for a trace whose bytes are divided by shrink: the decisions stay the same, the arena fits
// a test.
func traceStore(t testing.TB, tr *replay.Trace, budget, shrink int64, p policy.Policy, edit func(*Config)) *Store {
	var banks []Bank
	var off int64
	for layer, n := range tr.ExpertBytes {
		require.Zero(t, n%shrink)
		banks = append(banks, Bank{Layer: layer, Experts: tr.Experts,
			Parts: []Part{{Name: fmt.Sprintf("blk.%d", layer), Offset: off, Bytes: n / shrink, Stride: n / shrink}}})
		off += n / shrink * int64(tr.Experts)
	}
	l, err := Plan(banks, tr.TopK, budget/shrink)
	require.NoError(t, err)
	cfg := Config{FS: instant{off}, Files: []string{"trace"}, Banks: banks, TopK: tr.TopK, Mode: BufferedOnly,
		Arena: vfs.AlignedBuffer(int(l.ArenaBytes)), Ready: make([]uint32, l.Slots), BudgetBytes: budget / shrink, Policy: p,
		Discard: func(uint64, int64) error { return nil }}
	if edit != nil {
		edit(&cfg)
	}
	return mustOpen(t, cfg)
}

// playTrace runs batches through the store as an engine does: it waits on the readiness words alone.
func playTrace(t testing.TB, s *Store, tr *replay.Trace, from, to int, b *Batch) {
	for i := from; i < to; i++ {
		batch := &tr.Batches[i]
		if tr.StartsStep(i) {
			s.Tick()
		}
		if err := s.Route(batch.Layer, batch.K, batch.Experts); err != nil {
			t.Fatal(err)
		}
		for rest := batch.Experts; len(rest) > 0; rest = b.Rest {
			if err := s.Acquire(batch.Layer, rest, b); err != nil {
				t.Fatal(err)
			}
			for _, sl := range b.Slots {
				for atomic.LoadUint32(&s.cfg.Ready[sl.Ready])&ReadyMask == 0 {
					runtime.Gosched()
				}
			}
			s.Release(b)
		}
	}
}

// TestStoreEqualsReplay is what makes a replayed hit count worth something.
func TestStoreEqualsReplay(t *testing.T) {
	tr, err := replay.Open("../../testdata/traces/qwen3-30b-a3b-k6.csv.gz")
	require.NoError(t, err)
	for _, name := range []string{"lru", "decayed", "forecast"} {
		for _, mib := range []int64{500, 4000} {
			p, err := policy.New(name)
			require.NoError(t, err)
			want := replay.Run(tr, p, mib<<20).Total()
			const shrink = 1024
			// Waking a process takes a while, in which it asks for the next batch: that must not change what it gets.
			s := traceStore(t, tr, mib<<20, shrink, p, func(cfg *Config) { cfg.Wake = func(*uint32) { runtime.Gosched() } })
			playTrace(t, s, tr, 0, len(tr.Batches), &Batch{})
			st := s.Stats()
			require.Equal(t, Counts{want.Hits, want.HitBytes / shrink}, st.Hits)
			require.Equal(t, Counts{want.Misses, want.MissBytes / shrink}, st.Misses)
			require.Equal(t, want.MissBytes/shrink, st.ReadBytes[demand])
			require.Zero(t, st.Joins)
			checkCounters(t, s)
		}
	}
}

// BenchmarkAcquire measures a decode step's worth of bookkeeping per layer, reads costing nothing: 6 experts, about one
// of them a miss. It must not allocate.
func BenchmarkAcquire(b *testing.B) {
	tr, err := replay.Open("../../testdata/traces/qwen3-30b-a3b-k6.csv.gz")
	require.NoError(b, err)
	s := traceStore(b, tr, 4000<<20, 1024, policy.NewDecayedFrequency(16), nil)
	var batch Batch
	decode := 48
	playTrace(b, s, tr, 0, len(tr.Batches), &batch)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		t := &tr.Batches[decode+i%(len(tr.Batches)-decode)]
		if err := s.Acquire(t.Layer, t.Experts, &batch); err != nil {
			b.Fatal(err)
		}
		s.Release(&batch)
	}
}
