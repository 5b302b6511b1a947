package program

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestBest: the largest scores, equal ones in order, whatever the sizes.
func TestBest(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		scores := make([]float32, 1+rng.IntN(40))
		for i := range scores {
			scores[i] = float32(rng.IntN(12) - 6) // many are equal
		}
		ids := make([]int32, 1+rng.IntN(len(scores)))
		best(ids, scores)

		want := make([]int32, len(scores))
		for i := range want {
			want[i] = int32(i)
		}
		slices.SortStableFunc(want, func(a, b int32) int { return int(scores[b] - scores[a]) })
		want = want[:len(ids)]
		slices.Sort(want)
		require.Equal(t, want, ids, "%v", scores)
	}
}
