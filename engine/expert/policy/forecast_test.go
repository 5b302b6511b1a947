package policy

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// forecast returns a policy for layers of the given number of experts.
func forecast(layers, experts int) *Forecast {
	p := NewForecast()
	p.Reset(layers * experts)
	var of []int32
	for l := range layers {
		for range experts {
			of = append(of, int32(l))
		}
	}
	p.Layers(of)
	return p
}

func TestForecastRanks(t *testing.T) {
	p := forecast(3, 4) // keys 0-3, 4-7, 8-11
	p.Tick()
	p.Route(0, 1, []int32{0})
	require.Greater(t, p.Rank(0), p.Rank(1), "used before never used")
	require.Greater(t, p.Peek(1), p.Rank(1), "a use raises the rank")
	require.Equal(t, p.Rank(0), p.Use(0), "Route has told of it")
	p.Route(1, 1, []int32{4})
	require.Greater(t, p.Rank(0), p.Rank(4), "layer 1 has just run, layer 0 comes earlier")
	p.Route(2, 2, []int32{8, 9})
	require.Greater(t, p.Rank(8), p.Rank(9), "the router liked it better")
	before := p.Rank(0)
	p.Tick()
	p.Route(0, 1, []int32{1})
	require.Less(t, p.Rank(0), before, "time passes")
	require.Greater(t, p.Rank(1), p.Rank(0), "more recent")
	for range 10000 {
		p.Tick()
		p.Route(0, 1, []int32{1})
	}
	require.InEpsilon(t, p.Rank(3), p.Rank(0), 1e-4, "forgotten")
	for i := range p.averages {
		require.Greater(t, p.averages[i][0], float32(1e-30), "not so small that processors are slow with it")
	}
}

// TestForecastPrompt: a prompt is one token that used everything a little.
func TestForecastPrompt(t *testing.T) {
	p := forecast(2, 4)
	p.Tick()
	p.Route(0, 2, []int32{0, 1, 0, 2, 0, 1})
	require.Greater(t, p.Rank(0), p.Rank(1))
	require.Greater(t, p.Rank(1), p.Rank(2))
	all := p.Rank(0)
	p.Route(1, 2, []int32{4, 5}) // the last layer may be evaluated for the last token alone
	require.Greater(t, p.Rank(4), p.Rank(5))
	q := forecast(2, 4)
	q.Tick()
	q.Route(0, 1, []int32{0})
	require.InDelta(t, q.Rank(0), all, 1e-6, "all of the tokens, or the only one")
}

// TestRecall: two kinds of tokens, told apart by what the first layer picks, take different experts in the second, and each is
// followed by the other.
func TestRecall(t *testing.T) {
	p := forecast(3, 8) // keys 0-7, 8-15, 16-23
	token := func(kind int32) {
		p.Tick()
		p.Route(0, 1, []int32{kind})
		p.Route(1, 1, []int32{8 + kind})
		p.Route(2, 1, []int32{16})
	}
	for range 10 {
		token(0)
		token(1)
	}
	p.Tick()
	p.Route(0, 1, []int32{0})
	require.Greater(t, p.Rank(8), 1.5*p.Rank(9), "what this kind of token takes in the layer ahead")
	p.Route(1, 1, []int32{8})
	require.Greater(t, p.Rank(9), p.Rank(8), "what its successor takes, although this one has just been used")
	require.Greater(t, p.Rank(1), p.Rank(0))

	p.Tick()
	p.Route(0, 1, []int32{0})
	known := p.recall.chance(8, true)
	for key := range int32(6) {
		p.Tick()
		p.Route(0, 1, []int32{2 + key})
	}
	require.Less(t, p.recall.chance(8, true), known/3, "the last tokens were like no other")

	for range recalled {
		p.Tick()
		p.Route(0, 1, []int32{5})
	}
	require.Zero(t, p.recall.used[8], "the ring is round")
	require.Zero(t, p.recall.chance(8, true))
}

// TestRecallLongPrompt: of a step with more tokens than the ring has places, the last ones are remembered.
func TestRecallLongPrompt(t *testing.T) {
	p := forecast(1, 300)
	var keys []int32
	for i := range int32(recalled + 100) {
		keys = append(keys, i)
	}
	for range 2 {
		p.Tick()
		p.Route(0, 1, keys)
		require.Zero(t, p.recall.used[99])
		for i := range keys[100:] {
			require.NotZero(t, p.recall.used[100+i], "token %d", 100+i)
		}
	}
}
