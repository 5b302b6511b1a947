package optable

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestShortConvByHand is the check of specs/lfm2moe.md 3.2.
func TestShortConvByHand(t *testing.T) {
	y := conv64(func(x float64) float64 { return x })(Matrix{{1}, {2}, {3}}, map[string]Matrix{"w": {{0.1, 0.2, 0.3}}})
	for i, want := range []float64{0.3, 0.8, 1.4} {
		require.InDelta(t, want, y[i][0], 1e-12)
	}
}
