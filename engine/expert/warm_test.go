package expert

import (
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/engine/vfs"
	"github.com/bigmoe/bigmoe/engine/vfs/errfs"
	"github.com/bigmoe/bigmoe/sdk/fault"
)

func allExperts(m *model) (ids []ID) {
	for _, b := range m.banks {
		for e := range int32(b.Experts) {
			ids = append(ids, ID{b.Layer, e})
		}
	}
	return ids
}

// settled waits until a store has nothing to read any more.
func settled(t *testing.T, s *Store) {
	t.Helper()
	require.Eventually(t, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.running == 0 && s.queues[warm].head == none && len(s.cold) == 0
	}, hang, time.Millisecond)
}

func TestWarmFillsTheRoomThereIs(t *testing.T) {
	m := newModel(t)
	for name, budget := range map[string]int64{"everything fits": 1 << 20, "a part": 4 * 13_192} {
		t.Run(name, func(t *testing.T) {
			full := name == "everything fits"
			s := mustOpen(t, m.config(t, budget).cfg)
			var b Batch
			require.NoError(t, s.Acquire(2, []int32{5}, &b))
			require.NoError(t, waitAll(t, s, &b))
			s.Release(&b)
			require.NoError(t, s.Warm([]ID{{0, 0}, {2, 1}, {0, 3}, {0, 4}}))
			settled(t, s)
			st := s.Stats()
			require.Zero(t, st.Evictions)
			require.LessOrEqual(t, st.ResidentBytes, s.Layout().BudgetBytes)
			if full {
				require.Equal(t, s.Layout().ExpertBytes, st.ResidentBytes)
			} else {
				require.EqualValues(t, 3, st.Warmed.Experts, "the fourth has no room")
			}
			require.Equal(t, full, s.Full())
			for bank, first := range map[int]int32{0: 0, 1: 5} { // the first of the list, and what was there
				require.NoError(t, s.Acquire(m.banks[bank].Layer, []int32{first}, &b))
				require.True(t, b.Slots[0].Hit)
				require.Equal(t, len(m.banks[bank].Parts), checkPayload(t, m, s, bank, b.Slots[0]))
				s.Release(&b)
			}
			require.Equal(t, Counts{1, 12_100}, s.Stats().Misses)
		})
	}
}

func TestWarmRefusesWhatIsNotThere(t *testing.T) {
	m := newModel(t)
	s := mustOpen(t, m.config(t, 1<<20).cfg)
	for _, id := range []ID{{1, 0}, {-1, 0}, {9, 0}, {0, 16}, {0, -1}} {
		require.Equal(t, fault.Bug, fault.KindOf(s.Warm([]ID{id})), "%v", id)
	}
	require.NoError(t, s.Close())
	require.ErrorIs(t, s.Warm(nil), ErrClosed)
}

// TestCloseWhenWarmingBegins: who warms may be anywhere when the store closes.
func TestCloseWhenWarmingBegins(t *testing.T) {
	m := newModel(t)
	for range 300 {
		s := mustOpen(t, m.config(t, 1<<20).cfg)
		require.NoError(t, s.Warm(allExperts(m)))
		require.NoError(t, s.Close())
	}
}

// TestWarmGivesWay: what a batch asks for is read before anything that is warmed.
func TestWarmGivesWay(t *testing.T) {
	m := newModel(t)
	s, _, open, log := blocked(t, m, 1<<20)
	require.NoError(t, s.Warm(allExperts(m)))
	log.waitFor(t, 1) // one warm read is under way
	var b Batch
	require.NoError(t, s.Acquire(3, []int32{7, 1}, &b))
	open()
	require.NoError(t, waitAll(t, s, &b))
	p := &m.banks[2].Parts[0]
	require.ElementsMatch(t, []int64{p.at(1).Offset, p.at(7).Offset}, log.order()[1:3])
	s.Release(&b)
	settled(t, s)
}

// TestWarmWaitsForALull: between the layers of a token and from one token to the next nothing is warmed.
func TestWarmWaitsForALull(t *testing.T) {
	m := newModel(t)
	s := mustOpen(t, m.config(t, 1<<20).cfg)
	var b Batch
	use := func() {
		require.NoError(t, s.Acquire(3, []int32{7}, &b))
		require.NoError(t, waitAll(t, s, &b))
		s.Release(&b)
	}
	began := time.Now()
	use()
	require.NoError(t, s.Warm(allExperts(m)))
	for last := began; last.Sub(began) < 2*lull; { // last is no later than the end of the use before
		now := time.Now()
		use()
		warmed := s.Stats().ReadBytes[warm]
		if time.Since(last) >= lull {
			t.Log("the machine stood still, which is a lull")
			break
		}
		require.Zero(t, warmed)
		last = now
	}
	settled(t, s)
	require.True(t, s.Full())
}

// TestWarmFailure: an expert that cannot be warmed is skipped, and read when it is wanted.
func TestWarmFailure(t *testing.T) {
	m := newModel(t)
	fs := errfs.Wrap(vfs.OS())
	cfg := m.config(t, 1<<20).cfg
	cfg.FS = fs
	s := mustOpen(t, cfg)
	fs.Set(errfs.Fail(syscall.ENXIO))
	require.NoError(t, s.Warm(allExperts(m)))
	settled(t, s)
	st := s.Stats()
	require.Positive(t, st.Failures.Experts)
	require.Zero(t, st.ResidentBytes)
	fs.Set(nil)
	var b Batch
	for i, bank := range m.banks {
		for e := range int32(bank.Experts) {
			require.NoError(t, s.Acquire(bank.Layer, []int32{e}, &b))
			require.NoError(t, waitAll(t, s, &b))
			require.Equal(t, len(bank.Parts), checkPayload(t, m, s, i, b.Slots[0]))
			s.Release(&b)
		}
	}
}

// TestBackAhead: memory is prepared before it is read into, and no slot is lost by it.
func TestBackAhead(t *testing.T) {
	m := newModel(t)
	cfg := m.config(t, 1<<20).cfg
	var backed atomic.Int64
	cfg.Back = func(off uint64, n int64) {
		if off < arenaBase || off+uint64(n) > arenaBase+uint64(len(cfg.Arena)) {
			backed.Store(-1 << 40)
		}
		backed.Add(n)
	}
	s := mustOpen(t, cfg)
	require.NoError(t, s.Warm(allExperts(m)))
	settled(t, s)
	require.Equal(t, s.Layout().ExpertBytes, s.Stats().ResidentBytes)
	require.GreaterOrEqual(t, backed.Load(), s.Layout().ExpertBytes)
	require.LessOrEqual(t, s.Stats().BackedBytes, s.Layout().PhysicalBytes)
}

func TestSetReaders(t *testing.T) {
	m := newModel(t)
	s := mustOpen(t, m.config(t, 1<<20).cfg)
	var b Batch
	for layer, n := range map[int]int{0: 1, 2: 7, 3: 2} {
		s.SetReaders(n)
		require.Eventually(t, func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.readers == n
		}, hang, time.Millisecond)
		s.ResetStats()
		require.NoError(t, s.Acquire(layer, []int32{0, 1, 2, 3, 4, 5, 6, 7}, &b))
		require.NoError(t, waitAll(t, s, &b))
		s.Release(&b)
		require.LessOrEqual(t, s.Stats().InFlightPeak, n)
		require.Positive(t, s.Stats().BusyTime)
	}
}
