package engine

import (
	"cmp"
	"slices"

	"github.com/bigmoe/bigmoe/sdk/fault"
)

// guesses are the experts that layers ahead will probably pick.
type guesses struct {
	byBank [][]int32
	votes  []int32 // by expert: how many tokens would pick it
	fresh  []int32
}

// add notes ids, guessed for a bank of so many experts, and returns them without repetition: those that most tokens would pick first,
// and of equals those that a token would pick sooner. The result is valid until the next call.
func (g *guesses) add(bank, experts int, ids []int32) ([]int32, error) {
	for len(g.byBank) <= bank {
		g.byBank = append(g.byBank, nil)
	}
	if len(g.votes) < experts {
		g.votes = make([]int32, experts)
	}
	clear(g.votes)
	g.fresh = g.fresh[:0]
	for _, id := range ids {
		if id < 0 || int(id) >= experts {
			return nil, fault.Bugf("backend predicted expert %d of %d", id, experts)
		}
		if g.votes[id]++; g.votes[id] == 1 {
			g.fresh = append(g.fresh, id)
		}
	}
	slices.SortStableFunc(g.fresh, func(a, b int32) int { return cmp.Compare(g.votes[b], g.votes[a]) })
	g.byBank[bank] = append(g.byBank[bank], g.fresh...)
	return g.fresh, nil
}

// take returns what was guessed for a bank, with repetitions, and forgets it. The result is valid until the next add.
func (g *guesses) take(bank int) []int32 {
	if bank >= len(g.byBank) {
		return nil
	}
	all := g.byBank[bank]
	g.byBank[bank] = all[:0]
	return all
}
