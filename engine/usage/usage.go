package usage

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"math"
	"slices"
)

// Shape is the number of experts in each layer, 0 where a layer has none.
type Shape []int

func (s Shape) experts() int {
	n := 0
	for _, e := range s {
		n += e
	}
	return n
}

// Tensor is what tells models apart.
type Tensor struct {
	Name   string
	Type   uint32
	Dims   []uint64
	Offset int64
}

// Identity names a model by its tensor table and the sizes of its files: cheap, and different for every quantisation. Two models
// that differ in nothing but the values of their weights share a profile, which is as good a guess as any.
func Identity(tensors []Tensor, fileBytes []int64) string {
	h := sha256.New()
	number := func(n uint64) { h.Write(binary.LittleEndian.AppendUint64(nil, n)) }
	for _, b := range fileBytes {
		number(uint64(b))
	}
	for _, t := range tensors {
		number(uint64(len(t.Name)))
		h.Write([]byte(t.Name))
		number(uint64(t.Type))
		number(uint64(len(t.Dims)))
		for _, d := range t.Dims {
			number(d)
		}
		number(uint64(t.Offset))
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// Profile is how often each expert was used, per token: 0 to 1, in the order of layers and experts.
type Profile struct {
	shape Shape
	rates []float32
}

// Expert is an expert with its rate.
type Expert struct {
	Layer  int
	Expert int32
	Rate   float32
}

// Best returns the experts that were used at all, the most used first.
func (p *Profile) Best() []Expert {
	var list []Expert
	if p == nil {
		return list
	}
	at := 0
	for layer, n := range p.shape {
		for e := range n {
			if r := p.rates[at+e]; r > 0 {
				list = append(list, Expert{layer, int32(e), r})
			}
		}
		at += n
	}
	slices.SortStableFunc(list, func(a, b Expert) int { return cmp.Compare(b.Rate, a.Rate) })
	return list
}

// Count counts the uses of a run.
type Count struct {
	shape  Shape
	first  []int // by layer, into uses
	uses   []float32
	tokens []float32 // by layer
}

// NewCount returns a count of nothing.
func NewCount(shape Shape) *Count {
	c := &Count{shape: shape, uses: make([]float32, shape.experts()), tokens: make([]float32, len(shape))}
	at := 0
	for _, n := range shape {
		c.first = append(c.first, at)
		at += n
	}
	return c
}

// Add counts what the tokens of a batch picked in a layer, k experts each. It allocates nothing.
func (c *Count) Add(layer, k int, experts []int32) {
	for _, e := range experts {
		c.uses[c.first[layer]+int(e)]++
	}
	c.tokens[layer] += float32(len(experts) / k)
}

// memoryTokens is how many tokens a profile remembers: after so many the past counts 1/e.
const memoryTokens = 2048

// Merge returns what p and the run together say, or nil if there is neither. p may be nil.
func (p *Profile) Merge(c *Count) *Profile {
	out := &Profile{shape: c.shape, rates: make([]float32, len(c.uses))}
	seen := p != nil
	for layer, n := range c.shape {
		tokens := c.tokens[layer]
		if tokens > 0 {
			seen = true
		}
		old := float32(math.Exp(-float64(tokens) / memoryTokens))
		if p == nil {
			old = 0
		}
		for i := c.first[layer]; i < c.first[layer]+n; i++ {
			if p != nil {
				out.rates[i] = old * p.rates[i]
			}
			if tokens > 0 {
				out.rates[i] += (1 - old) * c.uses[i] / tokens
			}
		}
	}
	if !seen {
		return nil
	}
	return out
}
