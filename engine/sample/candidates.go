package sample

import (
	"cmp"
	"math"
	"slices"
)

// candidate is a token that may still be picked.
type candidate struct {
	id    int32
	logit float32
	p     float32 // probability at the last softmax
}

// better orders candidates: by logit, then by id. Ids are distinct, so there are no ties left.
func better(a, b candidate) bool {
	return a.logit > b.logit || a.logit == b.logit && a.id < b.id
}

func byRank(a, b candidate) int {
	return cmp.Or(cmp.Compare(b.logit, a.logit), cmp.Compare(a.id, b.id))
}

// candidates is the list that the stages work on, with a highest logit that is finite.
type candidates struct {
	list []candidate
	// sorted is how many of the first are the best ones in order.
	sorted int
	vocab  int // how many logits there were
}

// fill takes the k best logits, in no particular order, or all in the order of their ids if there are no more than k.
func (c *candidates) fill(logits []float32, k int) {
	c.sorted, c.vocab = 0, len(logits)
	c.list = slices.Grow(c.list[:0], min(k, len(logits)))
	for id, logit := range logits {
		x := candidate{id: int32(id), logit: logit}
		switch {
		case len(c.list) < k:
			c.list = append(c.list, x)
			if len(c.list) == k && k < len(logits) {
				heapify(c.list)
			}
		case logit > c.list[0].logit: // equal ones have a higher id than all that are in
			c.list[0] = x
			sink(c.list, 0)
		}
	}
}

// sort brings the k best to the front, in order. It costs n + k log n for small k, not a sort of the whole list.
func (c *candidates) sort(k int) {
	if k = min(k, len(c.list)); k <= c.sorted {
		return
	}
	if k > len(c.list)/8 {
		k = len(c.list)
	} else {
		heapify(c.list[:k])
		for i := k; i < len(c.list); i++ {
			if better(c.list[i], c.list[0]) {
				c.list[i], c.list[0] = c.list[0], c.list[i]
				sink(c.list[:k], 0)
			}
		}
	}
	slices.SortFunc(c.list[:k], byRank)
	c.sorted = k
}

// seek walks the candidates from the best on and returns the first position where stop holds, or their number. It sorts
// only as far as it must: what is sought is near the top as a rule, and the vocabulary is large.
func (c *candidates) seek(stop func(i int) bool) int {
	i := 0
	for want := 256; i < len(c.list); want *= 4 {
		c.sort(want)
		for ; i < c.sorted; i++ {
			if stop(i) {
				return i
			}
		}
	}
	return i
}

// heapify makes h a heap with the worst candidate on top.
func heapify(h []candidate) {
	for i := len(h)/2 - 1; i >= 0; i-- {
		sink(h, i)
	}
}

func sink(h []candidate, i int) {
	for {
		down := 2*i + 1
		if down >= len(h) {
			return
		}
		if down+1 < len(h) && better(h[down], h[down+1]) {
			down++
		}
		if !better(h[i], h[down]) {
			return
		}
		h[i], h[down] = h[down], h[i]
		i = down
	}
}

// keep cuts the list down to its first n.
func (c *candidates) keep(n int) {
	c.list = c.list[:n]
	c.sorted = min(c.sorted, n)
}

// max returns the highest logit.
func (c *candidates) max() float32 {
	if c.sorted > 0 {
		return c.list[0].logit
	}
	m := float32(math.Inf(-1))
	for i := range c.list {
		m = max(m, c.list[i].logit)
	}
	return m
}

// weigh puts exp(logit - highest) into p and returns the sum.
func (c *candidates) weigh() float64 {
	highest := float64(c.max())
	var sum float64
	for i := range c.list {
		w := float32(math.Exp(float64(c.list[i].logit) - highest))
		c.list[i].p = w
		sum += float64(w)
	}
	return sum
}

// softmax computes the probabilities.
func (c *candidates) softmax() {
	sum := c.weigh()
	for i := range c.list {
		c.list[i].p = float32(float64(c.list[i].p) / sum)
	}
}
