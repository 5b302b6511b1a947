// Gemma 4 text decoders: 26B-A4B with experts, and its dense siblings. Equation numbers are those of specs/gemma4.md.
package main

import (
	"math"
	"strconv"

	"github.com/bigmoe/bigmoe/sdk/recipe"
)

func init() { recipe.Register("gemma4", "1", build) }

func main() {}

var gelu = recipe.GLU{Activation: "gelu_tanh"}

// kind is what the layers that slide have in common, or those that see everything.
type kind struct {
	headDim, window int
	rope            recipe.Rope
	owner           int // last layer so far with a cache of its own
	cache           recipe.State
}

// model is what the blocks need to know.
type model struct {
	*recipe.Builder
	width, owners                             int
	heads, kvHeads, dense, used, expertHidden []int
	experts, perLayer                         int
	eps                                       float64
}

func build(b *recipe.Builder) {
	layers := b.Uint("block_count", 1, recipe.MaxLayers)
	context := b.Uint("context_length", 1, recipe.MaxContext)
	m := model{Builder: b, width: b.Uint("embedding_length", 1, recipe.MaxWidth),
		heads:    b.PerLayer("attention.head_count", layers, 1, recipe.MaxCount),
		kvHeads:  b.PerLayer("attention.head_count_kv", layers, 1, recipe.MaxCount),
		dense:    b.PerLayer("feed_forward_length", layers, 1, recipe.MaxWidth),
		owners:   layers - b.UintOr("attention.shared_kv_layers", 0, 0, layers-1),
		perLayer: b.UintOr("embedding_length_per_layer_input", 0, 0, recipe.MaxWidth),
		experts:  b.UintOr("expert_count", 0, 0, recipe.MaxCount),
		eps:      b.Float("attention.layer_norm_rms_epsilon", 1e-20, 1)}
	sliding := b.PerLayerBool("attention.sliding_window_pattern", layers)
	described := recipe.Model{Layers: layers, Embedding: m.width, Vocabulary: b.Vocabulary(), ContextLength: context}
	if m.experts > 0 {
		m.used = b.PerLayer("expert_used_count", layers, 1, m.experts)
		m.expertHidden = b.PerLayer("expert_feed_forward_length", layers, 1, recipe.MaxWidth)
		described.Experts, described.ExpertsUsed = m.experts, m.used[0]
	}
	b.Describe(described)
	global, slides := m.kind("", b.RopeScaling(0, context), 1e6), m.kind("_swa", recipe.Rope{}, 1e4) // 30
	slides.window = b.Uint("attention.sliding_window", 1, recipe.MaxContext)
	b.UnusedUnder("not of the text decoder", "v.", "a.", "mm.")
	table, head := b.TableAndHead(m.width, described.Vocabulary)

	b.Embedding()
	h := b.Embed("h", table, math.Sqrt(float64(m.width))) // 1
	var inputs recipe.Value                               // of all layers
	if p, all := m.perLayer, m.perLayer*layers; p > 0 {
		own := b.Embed("own", b.Rows("per_layer_token_embd.weight", all, described.Vocabulary), math.Sqrt(float64(p))) // 2
		ctx := b.Linear("ctx", h, b.Weight("per_layer_model_proj.weight", m.width, all), "")                           // 3
		ctx = b.Scale("ctx_scaled", ctx, 1/math.Sqrt(float64(m.width)))
		ctx = b.RMSNorm("ctx_norm", ctx, b.Weight("per_layer_proj_norm.weight", p), m.eps, p)
		inputs = b.Scale("inputs", b.Add("both", own, ctx), math.Sqrt2/2) // 4
	}
	for i := range layers {
		blk := b.Layer(i)
		k := &slides
		if !sliding[i] {
			k = &global
			k.rope.Divisors = b.WeightRows("rope_freqs.weight", 0, k.rope.Rotated/2, k.headDim/2)
		}
		h = m.layer(i, k, blk, h, inputs)
	}
	if global.rope.Divisors == "" && b.HasTensor("rope_freqs.weight") {
		b.Unused("rope_freqs.weight", "every layer slides")
	}
	b.Head()
	y := b.RMSNorm("norm", h, b.Weight("output_norm.weight", m.width), m.eps, 0) // 31
	if limit := b.FloatOr("final_logit_softcapping", 30, 0, 1e6); limit > 0 {
		b.Softcap(recipe.Logits, b.Linear("uncapped", y, head, ""), limit) // 32, 33
	} else {
		b.Linear(recipe.Logits, y, head, "")
	}
}

// kind reads the keys of one kind of layer.
func (m *model) kind(suffix string, rope recipe.Rope, base float64) kind {
	dim, value := m.Uint("attention.key_length"+suffix, 1, recipe.MaxCount), m.Uint("attention.value_length"+suffix, 1, recipe.MaxCount)
	rope.Base = m.FloatOr("rope.freq_base"+suffix, base, 1e-3, 1e12)
	rope.HeadDim, rope.Rotated = dim, m.UintOr("rope.dimension_count"+suffix, dim, 2, dim)
	if dim != value || rope.Rotated%2 != 0 {
		m.RefuseKeys(recipe.Unsupported, "the first two must be equal, the last even", "attention.key_length"+suffix,
			"attention.value_length"+suffix, "rope.dimension_count"+suffix)
	}
	return kind{headDim: dim, rope: rope}
}

// layer writes one layer: attention, feed-forward, its own input.
func (m *model) layer(i int, k *kind, blk string, h, inputs recipe.Value) recipe.Value {
	norm := func(name string, x recipe.Value) recipe.Value {
		return m.RMSNorm(name, x, m.Weight(blk+name+".weight", m.width), m.eps, 0)
	}
	matrix := func(name string, x recipe.Value, in, out int) recipe.Value {
		return m.Linear(name, x, m.Weight(blk+name+".weight", in, out), "")
	}
	y := matrix("attn_output", m.attention(i, k, blk, norm("attn_norm", h)), m.heads[i]*k.headDim, m.width) // 5, 10
	r := m.Add("r", h, norm("post_attention_norm", y))                                                      // 11

	// The router comes first, so that experts are read while the dense branch computes.
	var ids, weights recipe.Value
	routed := m.HasTensor(blk + "ffn_gate_inp.weight")
	if routed {
		if m.experts == 0 {
			m.Refuse(recipe.Corrupt, "tensor "+strconv.Quote(blk+"ffn_gate_inp.weight")+", but no gemma4.expert_count")
		}
		x := m.RMSNorm("router_norm", r, m.Weight(blk+"ffn_gate_inp.scale", m.width), m.eps, 0) // 24
		x = m.Scale("router_input", x, 1/math.Sqrt(float64(m.width)))
		logits := m.LinearExact("router", x, m.Weight(blk+"ffn_gate_inp.weight", m.width, m.experts), "") // 25
		ids, weights = m.Route("ids", "weights", recipe.Route{Logits: logits, TopK: m.used[i],            // 26 to 28
			Gating: "softmax", Normalize: true, NormFloor: 6.103515625e-5})
	}
	u := norm("ffn_norm", r) // 12, 16
	f := m.GLU("ffn", matrix("ffn_gate", u, m.width, m.dense[i]), matrix("ffn_up", u, m.width, m.dense[i]), gelu)
	f = matrix("ffn_down", f, m.dense[i], m.width)
	if routed {
		v, m1 := norm("pre_ffw_norm_2", r), norm("post_ffw_norm_1", f) // 14, 12
		n := m.Experts("moe", recipe.Experts{X: v, IDs: ids, Weights: weights, GLU: gelu,
			Bank:  m.StackedBank(i, m.experts, m.width, m.expertHidden[i]),
			Scale: m.Optional(blk+"ffn_down_exps.scale", m.experts)}) // 29
		f = m.Add("branches", m1, norm("post_ffw_norm_2", n)) // 15
	}
	h = m.Add("h_ffn", r, norm("post_ffw_norm", f))
	if p := m.perLayer; p > 0 { // 17
		t := m.GLU("input", matrix("inp_gate", h, m.width, p), m.Slice("own", inputs, 0, i*p, p), gelu)
		h = m.Add("h_input", h, norm("post_norm", matrix("proj", t, p, m.width)))
	}
	if scale := m.Optional(blk+"layer_output_scale.weight", 1); scale != "" {
		h = m.MulWeight("h", h, scale) // 18
	}
	return h
}

// attention writes equations 6 to 9 and 19 to 23.
func (m *model) attention(i int, k *kind, blk string, x recipe.Value) recipe.Value {
	dim, kvWidth := k.headDim, m.kvHeads[i]*k.headDim
	q := m.Linear("q", x, m.Weight(blk+"attn_q.weight", m.width, m.heads[i]*dim), "")
	q = m.RMSNorm("q_norm", q, m.Weight(blk+"attn_q_norm.weight", dim), m.eps, dim)
	a := recipe.Attention{Q: m.Rope("q_rope", q, k.rope), Heads: m.heads[i], KVHeads: m.kvHeads[i], HeadDim: dim, Scale: 1, Window: k.window}
	donor := m.owners - 1 // of layers that share
	if k.window > 0 {
		donor--
	}
	switch {
	case m.heads[i]%m.kvHeads[i] != 0:
		m.Refuse(recipe.Corrupt, "layer "+strconv.Itoa(i)+": gemma4.attention.head_count "+strconv.Itoa(m.heads[i])+
			" is not a multiple of attention.head_count_kv "+strconv.Itoa(m.kvHeads[i]))
	case i < m.owners:
		key := m.Linear("k", x, m.Weight(blk+"attn_k.weight", m.width, kvWidth), "") // 19
		value := key
		if m.HasTensor(blk + "attn_v.weight") { // 20
			value = m.Linear("v", x, m.Weight(blk+"attn_v.weight", m.width, kvWidth), "")
		}
		key = m.RMSNorm("k_norm", key, m.Weight(blk+"attn_k_norm.weight", dim), m.eps, dim)  // 21
		a.K, a.V = m.Rope("k_rope", key, k.rope), m.RMSNorm("v_norm", value, "", m.eps, dim) // 22
		k.cache, k.owner = m.KV("kv", kvWidth, kvWidth, k.window), i
	case k.cache == "" || k.owner != donor || m.kvHeads[k.owner] != m.kvHeads[i]:
		m.Refuse(recipe.Unsupported, "layer "+strconv.Itoa(i)+" shares a cache: the last two layers with one of their own must be"+
			" a sliding and a global one, with its gemma4.attention.head_count_kv")
	default:
		for _, name := range []string{"attn_k.weight", "attn_v.weight", "attn_k_norm.weight"} {
			if m.HasTensor(blk + name) {
				m.Unused(blk+name, "the layer shares a cache")
			}
		}
	}
	a.Cache = k.cache // 23
	return m.Attention("attn", a)
}
