package program

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLayout checks random lives: buffers that are alive together never share bytes, unless one was allowed to go over
// the other.
func TestLayout(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		const batch, logitRows = 4, 2
		var all []*buffer
		total := 0
		covered := map[*buffer]bool{} // one step writes over a value at most
		for step := range 12 {
			for range rng.IntN(3) {
				b := &buffer{rowBytes: 4 * rng.IntN(100), head: rng.IntN(4) == 0, first: step, last: min(step+rng.IntN(6), 11)}
				if len(all) > 0 && rng.IntN(2) == 0 {
					o := all[rng.IntN(len(all))]
					if o.last == step && o.first < step && !covered[o] {
						covered[o] = true
						b.over, b.rowBytes, b.head = o, o.rowBytes, o.head
					}
				}
				all = append(all, b)
				total += roundUp(batch*b.rowBytes, 64)
			}
		}
		lives := map[*buffer][2]int{}
		for _, b := range all {
			lives[b] = [2]int{b.first, b.last}
		}
		size := layout(all, batch, logitRows)
		require.LessOrEqual(t, size, total)
		bind(all, make([]byte, size), batch, logitRows)
		end := func(b *buffer) int { return b.root.off + len(b.raw) }
		for i, a := range all {
			require.Zero(t, a.root.off%64)
			for _, b := range all[:i] {
				apart := lives[a][0] > lives[b][1] || lives[b][0] > lives[a][1]
				if apart || (a.root == b.root && lives[a][0] == lives[b][1]) {
					continue
				}
				require.True(t, a.root.off >= end(b) || b.root.off >= end(a), "%+v and %+v overlap", a, b)
			}
		}
	}
}
