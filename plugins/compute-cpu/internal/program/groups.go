package program

import "math"

// limits reports whether experts are chosen from the best groups alone (specs/deepseek2.md 13). Groups are of experts in
// succession; a group is as good as its two best experts together.
func (g *gating) limits() bool { return g.groups > 1 && g.groupsUsed > 0 && g.groupsUsed < g.groups }

// hide makes the experts of all but the best groups the last to be chosen. scores is room for one number per group.
func (g *gating) hide(rank, scores []float32) {
	n := len(rank) / g.groups
	for i := range scores {
		group := rank[i*n:][:n]
		first, second := group[0], float32(math.Inf(-1))
		for _, v := range group[1:] {
			first, second = max(first, v), max(second, min(first, v))
		}
		if scores[i] = first + second; n == 1 {
			scores[i] = first
		}
	}
	for i, score := range scores {
		better := 0
		for j, other := range scores {
			if other > score || other == score && j < i {
				better++
			}
		}
		if better >= g.groupsUsed {
			for j := range rank[i*n:][:n] {
				rank[i*n+j] = float32(math.Inf(-1))
			}
		}
	}
}
