package main

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// sequence evaluates the model one token after the other, as the architecture is defined and in 64-bit floats. It
// shares no code with bigmoe.
type sequence struct {
	m            *model
	keys, values [layers][][]float64 // by position
	chosen       [layers][]choice    // by position
}

// choice is what a router made of one token.
type choice struct {
	experts []int
	weights []float64
	gap     float64 // router logit of the last expert chosen over the best one not chosen
}

// step takes the next token and returns the logits of the one after it.
func (s *sequence) step(token int) []float64 {
	h := slices.Clone(s.m.values["token_embd.weight"][token*width:][:width])
	for layer := range layers {
		add(h, s.attention(layer, s.normed(h, layer, "attn_norm")))
		add(h, s.experts(layer, s.normed(h, layer, "ffn_norm")))
	}
	return product(s.m.values["output.weight"], rmsNorm(h, s.m.values["output_norm.weight"]))
}

func (s *sequence) weight(layer int, name string) []float64 {
	return s.m.values[fmt.Sprintf("blk.%d.%s.weight", layer, name)]
}

func (s *sequence) normed(x []float64, layer int, name string) []float64 {
	return rmsNorm(x, s.weight(layer, name))
}

// attention normalises the whole query and the whole key, not each head, and rotates afterwards.
func (s *sequence) attention(layer int, x []float64) []float64 {
	position := len(s.keys[layer])
	q := s.normed(product(s.weight(layer, "attn_q"), x), layer, "attn_q_norm")
	k := s.normed(product(s.weight(layer, "attn_k"), x), layer, "attn_k_norm")
	rotate(q, position)
	rotate(k, position)
	s.keys[layer] = append(s.keys[layer], k)
	s.values[layer] = append(s.values[layer], product(s.weight(layer, "attn_v"), x))
	out := make([]float64, width)
	for head := range heads {
		part := func(x []float64) []float64 { return x[head*headDim:][:headDim] }
		scores := make([]float64, position+1)
		for p := range scores {
			scores[p] = dot(part(q), part(s.keys[layer][p])) / math.Sqrt(headDim)
		}
		for p, weight := range softmax(scores) {
			for i, v := range part(s.values[layer][p]) {
				part(out)[i] += weight * v
			}
		}
	}
	return product(s.weight(layer, "attn_output"), out)
}

// experts weighs the chosen experts by their share of all of them: the weights do not add up to 1.
func (s *sequence) experts(layer int, x []float64) []float64 {
	logits := product(s.weight(layer, "ffn_gate_inp"), x)
	order := make([]int, experts)
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(logits[b], logits[a]) })
	share := softmax(logits)
	c := choice{gap: logits[order[used-1]] - logits[order[used]]}
	out := make([]float64, width)
	for _, e := range order[:used] {
		c.experts, c.weights = append(c.experts, e), append(c.weights, share[e])
		matrix := func(name string) []float64 { return s.weight(layer, name)[e*width*hidden:][:width*hidden] }
		gate, up := product(matrix("ffn_gate_exps"), x), product(matrix("ffn_up_exps"), x)
		for i, g := range gate {
			gate[i] = g / (1 + math.Exp(-g)) * up[i]
		}
		for i, v := range product(matrix("ffn_down_exps"), gate) {
			out[i] += share[e] * v
		}
	}
	s.chosen[layer] = append(s.chosen[layer], c)
	return out
}

func add(x, y []float64) {
	for i := range x {
		x[i] += y[i]
	}
}

func dot(x, y []float64) (sum float64) {
	for i := range x {
		sum += x[i] * y[i]
	}
	return sum
}

// product multiplies a matrix, stored by rows as long as x, by x.
func product(matrix, x []float64) []float64 {
	out := make([]float64, len(matrix)/len(x))
	for i := range out {
		out[i] = dot(matrix[i*len(x):][:len(x)], x)
	}
	return out
}

func rmsNorm(x, weight []float64) []float64 {
	scale := 1 / math.Sqrt(dot(x, x)/float64(len(x))+float64(eps))
	out := make([]float64, len(x))
	for i := range x {
		out[i] = x[i] * scale * weight[i]
	}
	return out
}

// rotate turns element i of each head with element i + headDim/2.
func rotate(x []float64, position int) {
	const half = headDim / 2
	for head := range heads {
		part := x[head*headDim:][:headDim]
		for i := range half {
			sin, cos := math.Sincos(float64(position) * math.Pow(float64(ropeBase), -float64(i)/half))
			a, b := part[i], part[i+half]
			part[i], part[i+half] = a*cos-b*sin, a*sin+b*cos
		}
	}
}

func softmax(x []float64) []float64 {
	top, out := slices.Max(x), make([]float64, len(x))
	var sum float64
	for i := range x {
		out[i] = math.Exp(x[i] - top)
		sum += out[i]
	}
	for i := range out {
		out[i] /= sum
	}
	return out
}
