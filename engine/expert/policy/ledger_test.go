package policy

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/sdk/fault"
)

// naive is a cache written for clarity: it inserts the whole batch, then evicts what the batch does not use until the
// rest fits. It is the definition that the ledger must match whenever a batch fits.
type naive struct {
	score  func(key int) float64
	used   map[int]int // resident key → time of its last use
	bytes  []int64
	budget int64
	clock  int
}

func (n *naive) batch(keys []int32) (hits []bool) {
	for _, k := range keys {
		_, hit := n.used[int(k)]
		hits = append(hits, hit)
		n.clock++
		n.used[int(k)] = n.clock
	}
	for {
		var total int64
		victim := -1
		for k, u := range n.used {
			total += n.bytes[k]
			if slices.Contains(keys, int32(k)) {
				continue
			}
			if victim < 0 || n.score(k) < n.score(victim) || n.score(k) == n.score(victim) && u < n.used[victim] {
				victim = k
			}
		}
		if total <= n.budget {
			return hits
		}
		delete(n.used, victim)
	}
}

func TestLedgerMatchesEvictAfterBatch(t *testing.T) {
	const keys = 60
	for _, name := range []string{"lru", "decayed"} {
		for seed := range uint64(20) {
			rnd := rand.New(rand.NewPCG(seed, 1))
			bytes := make([]int64, keys)
			for i := range bytes {
				bytes[i] = 5 + int64(i%2)*3
			}
			p, err := New(name)
			require.NoError(t, err)
			budget := 80 + rnd.Int64N(200)
			l := NewLedger(bytes, make([]int32, len(bytes)), budget, p)
			ref := &naive{used: map[int]int{}, bytes: bytes, budget: budget}
			scores := make([]float64, keys)
			ref.score = func(k int) float64 { return scores[k] }
			if name == "lru" {
				ref.score = func(int) float64 { return 0 }
			}
			var w Wave
			for range 300 {
				if rnd.IntN(3) == 0 {
					l.Tick()
					for i := range scores {
						scores[i] *= math.Exp2(-1.0 / DefaultHalfLife)
					}
				}
				var batch []int32
				for range 1 + rnd.IntN(9) {
					k := int32(math.Abs(rnd.NormFloat64()) * 18)
					if k < keys && !slices.Contains(batch, k) {
						batch = append(batch, k)
					}
				}
				for _, k := range batch {
					scores[k]++
				}
				// Scores that are equal by definition may differ in the last bit by the way they were computed.
				for i := range scores {
					scores[i] = math.Round(scores[i]*1e9) / 1e9
				}
				l.Admit(batch, &w)
				require.Empty(t, w.Rest)
				require.Equal(t, ref.batch(batch), append([]bool(nil), w.Hit...))
				require.LessOrEqual(t, l.UsedBytes(), budget)
				for _, k := range w.Keys {
					l.Release(k)
				}
				for k := range int32(keys) {
					_, want := ref.used[int(k)]
					require.Equal(t, want, l.Resident(k))
				}
				require.Zero(t, l.HeldBytes())
			}
		}
	}
}

// TestLedgerFollowsRoutes: ranks that change with a route are those of the moment of eviction.
func TestLedgerFollowsRoutes(t *testing.T) {
	const layers, experts = 5, 12
	of := make([]int32, layers*experts)
	bytes := make([]int64, len(of))
	for k := range of {
		of[k] = int32(k / experts)
		bytes[k] = 5 + int64(of[k]%2)*3
	}
	for seed := range uint64(20) {
		rnd := rand.New(rand.NewPCG(seed, 2))
		budget := 60 + rnd.Int64N(200)
		l := NewLedger(bytes, of, budget, NewForecast())
		shadow := NewForecast()
		shadow.Reset(len(of))
		shadow.Layers(of)
		ref := &naive{used: map[int]int{}, bytes: bytes, budget: budget, score: func(k int) float64 { return shadow.Rank(int32(k)) }}
		var w Wave
		for step := range 60 {
			l.Tick()
			shadow.Tick()
			for layer := range int32(layers) {
				var batch []int32
				for range 1 + rnd.IntN(4) {
					k := layer*experts + int32(math.Abs(rnd.NormFloat64())*4)%experts
					if !slices.Contains(batch, k) {
						batch = append(batch, k)
					}
				}
				l.Route(layer, len(batch), batch)
				shadow.Route(layer, len(batch), batch)
				l.Admit(batch, &w)
				require.Empty(t, w.Rest)
				require.Equal(t, ref.batch(batch), append([]bool(nil), w.Hit...), "seed %d step %d layer %d", seed, step, layer)
				for _, k := range w.Keys {
					l.Release(k)
				}
				for k := range of {
					_, want := ref.used[k]
					require.Equal(t, want, l.Resident(int32(k)), "seed %d step %d layer %d key %d", seed, step, layer, k)
				}
			}
		}
	}
}

func TestAdmitInWaves(t *testing.T) {
	l := NewLedger([]int64{10, 10, 10, 10, 10}, make([]int32, 5), 30, NewLRU())
	var w Wave
	l.Admit([]int32{0, 1, 1, 2}, &w)
	require.Equal(t, []int32{0, 1, 2}, w.Keys)
	for _, k := range w.Keys {
		l.Release(k)
	}
	l.Admit([]int32{4, 3, 1, 0, 2}, &w)
	require.Equal(t, []int32{1, 0, 2}, w.Keys, "resident ones first, in the order asked")
	require.Equal(t, []bool{true, true, true}, w.Hit)
	require.Equal(t, []int32{4, 3}, w.Rest)
	require.Empty(t, w.Evicted)

	var other Wave
	l.Admit([]int32{3}, &other)
	require.Empty(t, other.Keys, "everything is held")
	require.Equal(t, []int32{3}, other.Rest)

	for _, k := range w.Keys {
		require.True(t, l.Release(k))
	}
	l.Admit(w.Rest, &w)
	require.Equal(t, []int32{4, 3}, w.Keys)
	require.Equal(t, []int32{1, 0}, w.Evicted, "used in this order")
}

func TestSpeculate(t *testing.T) {
	p := NewDecayedFrequency(16)
	l := NewLedger([]int64{10, 10, 10, 10}, make([]int32, 4), 20, p)
	var w Wave
	for range 3 {
		l.Tick()
		l.Admit([]int32{0, 1}, &w)
		for _, k := range w.Keys {
			l.Release(k)
		}
	}
	ev, ok := l.Speculate(2, nil)
	require.True(t, ok)
	require.Equal(t, []int32{0}, ev, "although it was used three times")
	require.True(t, l.Release(2))

	ev, ok = l.Speculate(3, nil)
	require.True(t, ok)
	require.Equal(t, []int32{1}, ev, "the promised expert stays although its score is lower")
	l.Release(3)
	_, ok = l.Speculate(0, nil)
	require.False(t, ok, "promises do not break promises")
	require.True(t, l.Resident(2) && l.Resident(3))

	l.Unpromise(2)
	_, ok = l.Speculate(0, nil)
	require.True(t, ok)
	require.False(t, l.Resident(2))
}

func TestDecayedFrequencyKeepsScores(t *testing.T) {
	p := NewDecayedFrequency(1)
	p.Reset(2)
	p.Tick()
	require.InDelta(t, 1+math.Log2(1), p.Use(0), 1e-12)
	p.Tick()
	require.InDelta(t, 2+math.Log2(1.5), p.Peek(0), 1e-12, "half of the first use is left")
	require.InDelta(t, 2+math.Log2(1.5), p.Use(0), 1e-12)
	for range 5000 {
		p.Tick()
	}
	require.InDelta(t, 5002, p.Use(0), 1e-9, "forgotten, without underflow")
}

func TestNewUnknown(t *testing.T) {
	_, err := New("fifo")
	require.Equal(t, fault.User, fault.KindOf(err))
}
