package oracle

import (
	"fmt"
	"math"
	"slices"
)

// score sees what the router thinks of every expert, for each token before its route.
func (c *comparison) score(_ int, scores []float32) {
	c.scores = append(c.scores, slices.Clone(scores))
}

// route sees what the routers chose, layer after layer for every batch.
func (c *comparison) route(layer, k int, ids []int32, weights []float32) {
	for len(c.seen) <= layer {
		c.seen = append(c.seen, 0)
	}
	if c.seen[layer] == 0 {
		c.result.Routed++
	}
	before, comparable := c.result.Choices, c.until // a tie in this layer changes later ones
	var reference [][]int32
	if layer < len(c.run.Routing.Experts) {
		reference = c.run.Routing.Experts[layer]
	}
	for i := 0; i < len(ids); i += k {
		at := c.seen[layer]
		c.seen[layer]++
		if at < min(len(reference), comparable) && (!c.lossy || at < len(c.Prompt.IDs)) {
			var scores []float32
			if len(c.scores) == len(ids)/k {
				scores = c.scores[i/k]
			}
			c.choice(layer, at, ids[i:i+k], weights[i:i+k], scores)
		}
	}
	if before < c.result.Choices && c.seen[layer] == len(ids)/k {
		c.result.Layers++
	}
	c.scores = c.scores[:0]
}

func (c *comparison) choice(layer, position int, ids []int32, weights, scores []float32) {
	reference := c.run.Routing.Experts[layer][position]
	want, got := slices.Sorted(slices.Values(reference)), slices.Sorted(slices.Values(ids))
	same := slices.Equal(want, got)
	if (!same || !c.lossy && !slices.Equal(reference, ids)) && !c.tied(reference, ids, scores) {
		c.others = true
		c.problem("layer %d, position %d: experts %v, expected %v", layer, position, ids, reference)
		return
	}
	if !same {
		if position < c.until {
			c.until = position
			c.result.Tie = fmt.Sprintf("layer %d, position %d: experts %v for %v, a tie: nothing after it is compared", layer, position, ids, reference)
		}
		return
	}
	c.result.Choices++
	if layer >= len(c.run.Routing.Weights) || position >= len(c.run.Routing.Weights[layer]) || c.limit.WeightAbs == 0 {
		return
	}
	for i, expert := range reference {
		if i >= len(c.run.Routing.Weights[layer][position]) {
			return
		}
		w := float64(weights[slices.Index(ids, expert)])
		if expected := c.run.Routing.Weights[layer][position][i]; !(math.Abs(w-expected) <= c.limit.WeightAbs) {
			c.problem("layer %d, position %d: expert %d has weight %.6g, expected %.6g", layer, position, expert, w, expected)
			return
		}
	}
}

// tied reports whether two choices differ only where the router thinks the same of both experts, so that rounding decides.
// A weight changes by at most a quarter of what its score changes by, so a difference of four times what weights may differ
// by counts as none. Scores are before gating and any bias, with which
// this is too strict.
func (c *comparison) tied(want, got []int32, scores []float32) bool {
	if c.lossy { // the order does not matter
		want, got = without(want, got), without(got, want)
	}
	if len(want) != len(got) {
		return false
	}
	for i := range want {
		a, b := int(want[i]), int(got[i])
		if a < 0 || a >= len(scores) || b >= len(scores) || !(math.Abs(float64(scores[a]-scores[b])) <= 4*c.limit.WeightAbs) {
			return false
		}
	}
	return true
}

// without returns the elements of list that other lacks.
func without(list, other []int32) []int32 {
	return slices.DeleteFunc(slices.Clone(list), func(id int32) bool { return slices.Contains(other, id) })
}
