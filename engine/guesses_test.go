package engine

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/sdk/fault"
)

func TestGuesses(t *testing.T) {
	var g guesses
	require.Empty(t, g.take(3))
	got, err := g.add(1, 8, []int32{3, 5, 0, 5, 3, 7, 5, 1, 2})
	require.NoError(t, err)
	require.Equal(t, []int32{5, 3, 0, 7, 1, 2}, got, "by votes, then as they came")
	got, err = g.add(1, 8, []int32{3, 4})
	require.NoError(t, err)
	require.Equal(t, []int32{3, 4}, got)
	_, err = g.add(0, 4, []int32{1, 4})
	require.Equal(t, fault.Bug, fault.KindOf(err))
	_, err = g.add(0, 4, []int32{-1})
	require.Equal(t, fault.Bug, fault.KindOf(err))
	require.Equal(t, []int32{5, 3, 0, 7, 1, 2, 3, 4}, g.take(1))
	require.Empty(t, g.take(1))
	require.Empty(t, g.take(0))
	require.Zero(t, testing.AllocsPerRun(10, func() {
		_, _ = g.add(1, 8, []int32{3, 5, 0, 5})
		g.take(1)
	}))
}
