package kv_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/plugins/compute-cpu/internal/arena"
	"github.com/bigmoe/bigmoe/plugins/compute-cpu/internal/kernel"
	"github.com/bigmoe/bigmoe/plugins/compute-cpu/internal/kv"
)

func TestCache(t *testing.T) {
	for _, l := range []kv.Layout{
		{Positions: 5, Heads: 3, KeyDim: 4, ValueDim: 2},
		{Positions: 5, Heads: 3, KeyDim: 4, ValueDim: 2, Half: true},
		{Positions: 5, Heads: 2, KeyDim: 3},
		{Positions: 5, Heads: 2, KeyDim: 3, Half: true},
	} {
		t.Run(fmt.Sprintf("%+v", l), func(t *testing.T) {
			a, err := arena.New(l.Bytes())
			require.NoError(t, err)
			defer a.Close()
			c := kv.New(kernel.Reference(), l, a.Bytes())
			valueDim := l.ValueDim
			if valueDim == 0 {
				valueDim = l.KeyDim
			}
			// Small integers are exact in every format.
			key := func(pos, head, i int) float32 { return float32(10*pos + 3*head - i) }
			value := func(pos, head, i int) float32 {
				if l.ValueDim == 0 {
					return key(pos, head, i)
				}
				return float32(pos - 7*head + 2*i)
			}
			for pos := range l.Positions {
				var k, v []float32
				for h := range l.Heads {
					for i := range l.KeyDim {
						k = append(k, key(pos, h, i))
					}
					for i := range l.ValueDim {
						v = append(v, value(pos, h, i))
					}
				}
				c.Put(pos, k, v)
			}
			for h := range l.Heads {
				q := make([]float32, l.KeyDim)
				q[1] = 2
				scores := make([]float32, 3)
				c.Scores(scores, q, h, 2)
				require.Equal(t, []float32{2 * key(2, h, 1), 2 * key(3, h, 1), 2 * key(4, h, 1)}, scores)
				out := make([]float32, valueDim)
				c.Accumulate(out, []float32{1, 0, -2}, h, 1)
				for i, got := range out {
					require.Equal(t, value(1, h, i)-2*value(3, h, i), got)
				}
			}
		})
	}
	require.EqualValues(t, 5*3*(4+2)*2, kv.Layout{Positions: 5, Heads: 3, KeyDim: 4, ValueDim: 2, Half: true}.Bytes())
}

// TestRing: a cache of 5 positions holds the last 5 of 8.
func TestRing(t *testing.T) {
	for _, half := range []bool{false, true} {
		l := kv.Layout{Positions: 5, Heads: 2, KeyDim: 2, ValueDim: 1, Half: half}
		a, err := arena.New(l.Bytes())
		require.NoError(t, err)
		defer a.Close()
		c := kv.New(kernel.Reference(), l, a.Bytes())
		for pos := range 8 {
			p := float32(pos)
			c.Put(pos, []float32{p, 1, 10 * p, 1}, []float32{p, 100 + p})
		}
		scores := make([]float32, 5)
		c.Scores(scores, []float32{1, 0.5}, 1, 3)
		require.Equal(t, []float32{30.5, 40.5, 50.5, 60.5, 70.5}, scores)
		c.Scores(scores[:2], []float32{1, 0}, 0, 6)
		require.Equal(t, []float32{6, 7}, scores[:2])
		out := []float32{0.5}
		c.Accumulate(out, []float32{1, 2, 4, 8, 16}, 1, 3)
		require.Equal(t, []float32{0.5 + 103 + 2*104 + 4*105 + 8*106 + 16*107}, out)
	}
}
