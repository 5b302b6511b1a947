package main

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
	"math/rand/v2"
	"strings"

	"github.com/bigmoe/bigmoe/engine/gguf/gguftest"
	"github.com/bigmoe/bigmoe/sdk/dtype"
)

const (
	layers, width, heads = 3, 64, 4
	headDim              = width / heads
	experts, used        = 8, 3
	hidden               = 32
	vocabularySize       = 288
	context              = 256
	eps                  = float32(1e-5)
	ropeBase             = float32(10000)
)

// model is a set of weights: as they are stored, and as the numbers they stand for.
type model struct {
	seed    uint64
	typ     dtype.Type // of the matrices other than routers
	tensors []tensor
	values  map[string][]float64
}

type tensor struct {
	name string
	typ  dtype.Type
	dims []uint64
	data []byte
}

func newModel(seed uint64, typ dtype.Type) *model {
	m := &model{seed: seed, typ: typ, values: map[string][]float64{}}
	// The gains make a wrong formula visible: routers and logits that differ clearly, norms that are not 1.
	m.matrix("token_embd.weight", typ, 1*math.Sqrt(width), width, vocabularySize)
	for i := range layers {
		blk := fmt.Sprintf("blk.%d.", i)
		m.norm(blk + "attn_norm.weight")
		for _, name := range []string{"attn_q", "attn_k", "attn_v", "attn_output"} {
			m.matrix(blk+name+".weight", typ, 1, width, width)
		}
		m.norm(blk + "attn_q_norm.weight")
		m.norm(blk + "attn_k_norm.weight")
		m.norm(blk + "ffn_norm.weight")
		m.matrix(blk+"ffn_gate_inp.weight", dtype.F32, 3, width, experts)
		m.matrix(blk+"ffn_gate_exps.weight", typ, 1.5, width, hidden, experts)
		m.matrix(blk+"ffn_up_exps.weight", typ, 1.5, width, hidden, experts)
		m.matrix(blk+"ffn_down_exps.weight", typ, 1.5, hidden, width, experts)
	}
	m.norm("output_norm.weight")
	m.matrix("output.weight", typ, 4, width, vocabularySize)
	return m
}

// random returns the stream of one tensor, which does not depend on the others.
func (m *model) random(name string) *rand.Rand {
	return rand.New(rand.NewPCG(m.seed, uint64(crc32.ChecksumIEEE([]byte(name)))))
}

// matrix adds a matrix whose products are about gain times as large as what it multiplies.
func (m *model) matrix(name string, typ dtype.Type, gain float64, dims ...uint64) {
	n := 1
	for _, d := range dims {
		n *= int(d)
	}
	rng, x := m.random(name), make([]float32, n)
	for i := range x {
		x[i] = float32(rng.NormFloat64() * gain / math.Sqrt(float64(dims[0])))
	}
	m.add(name, typ, dims, x)
}

func (m *model) norm(name string) {
	rng, x := m.random(name), make([]float32, width)
	for i := range x {
		x[i] = float32(0.6 + 0.8*rng.Float64())
	}
	m.add(name, dtype.F32, []uint64{width}, x)
}

func (m *model) add(name string, typ dtype.Type, dims []uint64, x []float32) {
	data, values := gguftest.Float32s(x...), make([]float64, len(x))
	for i := range x {
		values[i] = float64(x[i])
	}
	if typ == dtype.Q8_0 {
		data = quantise(x, values)
	}
	m.tensors = append(m.tensors, tensor{name, typ, dims, data})
	m.values[name] = values
}

// quantise stores blocks of 32 as a scale and bytes (Q8_0), and replaces values by what they then are. Scales are powers
// of two, which a half float holds exactly.
func quantise(x []float32, values []float64) (data []byte) {
	const block = 32
	for at := 0; at < len(x); at += block {
		var largest float64
		for _, v := range x[at : at+block] {
			largest = max(largest, math.Abs(float64(v)))
		}
		exponent := int(math.Ceil(math.Log2(largest / 127)))
		data = binary.LittleEndian.AppendUint16(data, uint16(15+exponent)<<10)
		for i := at; i < at+block; i++ {
			q := math.RoundToEven(math.Ldexp(float64(x[i]), -exponent))
			data = append(data, byte(int8(q)))
			values[i] = math.Ldexp(q, exponent)
		}
	}
	return data
}

func typeName(t dtype.Type) string { return strings.ToLower(t.String()) }

func (m *model) builder(name string) *gguftest.Builder {
	texts, types := vocabulary()
	b := gguftest.NewBuilder().Set("general.architecture", "olmoe").Set("general.name", name+", random weights")
	for _, p := range metadata() {
		b.Set("olmoe."+p.key, p.value)
	}
	b.Set("tokenizer.ggml.model", "gpt2").Set("tokenizer.ggml.pre", "olmo").
		Set("tokenizer.ggml.tokens", texts).Set("tokenizer.ggml.token_type", types).Set("tokenizer.ggml.merges", merges).
		Set("tokenizer.ggml.bos_token_id", uint32(endOfText)).Set("tokenizer.ggml.eos_token_id", uint32(endOfText)).
		Set("tokenizer.ggml.padding_token_id", uint32(1)).Set("tokenizer.ggml.add_bos_token", false)
	for _, t := range m.tensors {
		b.Tensor(t.name, t.typ, t.dims, t.data)
	}
	return b
}

type pair struct {
	key   string
	value any
}

func metadata() []pair {
	return []pair{
		{"block_count", uint32(layers)},
		{"context_length", uint32(context)},
		{"embedding_length", uint32(width)},
		{"feed_forward_length", uint32(hidden)}, // of an expert: there are no others
		{"attention.head_count", uint32(heads)},
		{"attention.head_count_kv", uint32(heads)},
		{"attention.layer_norm_rms_epsilon", eps},
		{"rope.freq_base", ropeBase},
		{"expert_count", uint32(experts)},
		{"expert_used_count", uint32(used)},
	}
}
