// Ling 3.0: delta nets that decay by channel, among them some layers of attention over a latent vector. Numbers in
// parentheses are the equations of specs/bailingmoe3.md, those with D in front of specs/deepseek2.md.
//
// Not verified against an oracle: there is no recording of another implementation. The tests compare it with the
// equations in 64-bit floats, on models with random weights.
package main

import (
	"math"

	"github.com/bigmoe/bigmoe/sdk/recipe"
)

func init() { recipe.Register("bailingmoe3", "1", build) }

func main() {}

// layer is where the ops of one layer are written.
type layer struct {
	*recipe.Builder
	*model
	blk string
}

func build(b *recipe.Builder) {
	m := readKeys(b)
	table, head := b.TableAndHead(m.width, m.vocabulary)

	b.Embedding()
	h := b.Embed("h", table, 1)
	for i, kvHeads := range m.kvHeads {
		l := &layer{b, m, b.Layer(i)}
		x := l.norm("attn_norm", h, "attn_norm", m.width)
		if kvHeads == 0 {
			x = l.delta(x)
		} else {
			x = l.attention(x)
		}
		h = b.Add("h_mixed", h, x)
		x = l.norm("ffn_norm", h, "ffn_norm", m.width)
		if i < m.dense {
			x = l.feedForward("ffn", x, "", m.denseWidth, 0)
		} else {
			x = l.mixture(i, x)
		}
		h = b.Add("h", h, x)
	}
	b.Head()
	b.Linear(recipe.Logits, b.RMSNorm("norm", h, b.Weight("output_norm.weight", m.width), m.eps, 0), head, "")
}

// product multiplies by the first of the tensors that the file has, which has out rows.
func (l *layer) product(name string, x recipe.Value, in, out int, tensors ...string) recipe.Value {
	for i, t := range tensors {
		tensors[i] = l.blk + t + ".weight"
	}
	return l.Linear(name, x, l.Weight(l.FirstTensor(tensors...), in, out), "")
}

// byHead multiplies every head by a matrix of its own.
func (l *layer) byHead(name string, x recipe.Value, tensor string, in, out int) recipe.Value {
	return l.LinearGroups(name, x, l.Reshape(l.blk+tensor+".weight", []int{in, out, l.heads}, in, out*l.heads), "", l.heads)
}

func (l *layer) norm(name string, x recipe.Value, tensor string, n int) recipe.Value {
	return l.RMSNorm(name, x, l.Weight(l.blk+tensor+".weight", n), l.eps, 0)
}

// delta is a layer of Kimi delta attention (section 4.1).
func (l *layer) delta(x recipe.Value) recipe.Value {
	n := l.heads * l.dim
	conv := func(name string) recipe.Value { // (1) (2)
		kernel := l.Reshape(l.blk+"ssm_conv1d_"+name+".weight", []int{l.taps, 1, n}, l.taps, n)
		return l.ShortConv(name+"_conv", l.product(name, x, l.width, n, "attn_"+name), kernel, l.Convolution(name+"_history", (l.taps-1)*n), "silu")
	}
	q, k, v := conv("q"), conv("k"), conv("v")
	q, k = l.L2Norm("q_norm", q, l.eps, l.dim, "max"), l.L2Norm("k_norm", k, l.eps, l.dim, "max") // (3)
	f := l.AddWeight("f_dt", l.product("f", x, l.width, n, "ssm_f_a", "ssm_f"), l.Weight(l.blk+"ssm_dt.bias", n))
	f = l.Unary("f_gate", "sigmoid", l.MulWeightRuns("f_a", f, l.Reshape(l.blk+"ssm_a", []int{1, l.heads}, l.heads), l.dim))
	o := l.GatedDeltaNet("delta", recipe.DeltaNet{Q: l.Scale("q_scaled", q, 1/math.Sqrt(float64(l.dim))), K: k, V: v, // (6)
		Gamma:  l.Scale("gamma", f, l.lowerBound),                                           // (4)
		Beta:   l.Unary("beta", "sigmoid", l.product("b", x, l.width, l.heads, "ssm_beta")), // (5)
		Memory: l.Recurrent("memory", n*l.dim), KeyHeads: l.heads, ValueHeads: l.heads, HeadDim: l.dim, Map: "grouped"})
	o = l.RMSNorm("delta_norm", o, l.Weight(l.blk+"ssm_norm.weight", l.dim), l.eps, l.dim) // (7)
	g := l.Unary("gate", "sigmoid", l.product("g", x, l.width, n, "ssm_g_a", "ssm_g"))
	return l.product("mixed", l.Mul("gated", o, g), n, l.width, "attn_output") // (8)
}

// attention is a layer of latent attention: (D3) to (D8).
func (l *layer) attention(x recipe.Value) recipe.Value {
	keyDim, plain := l.plainDim+l.rotated, l.plainDim
	q, rank, from := x, l.qRank, l.width
	if low := l.blk + "attn_q_a_norm.weight"; rank == 0 && l.HasTensor(low) {
		rank = l.Dim(low, 0, recipe.MaxWidth)
	}
	name := "attn_q"
	if rank > 0 {
		q = l.norm("q_low", l.product("q_a", x, l.width, rank, "attn_q_a"), "attn_q_a_norm", rank)
		name, from = "attn_q_b", rank
	}
	q = l.product("q", q, from, l.heads*keyDim, name)
	t := l.product("kv_a", x, l.width, l.kvRank+l.rotated, "attn_kv_a_mqa")
	c := l.norm("latent", l.Slice("kv_low", t, 0, 0, l.kvRank), "attn_kv_a_norm", l.kvRank)
	kTurned := l.Rope("k_rope", l.Slice("k_turn", t, 0, l.kvRank, l.rotated), l.rope)
	qTurned := l.Rope("q_rope", l.Slice("q_turn", q, keyDim, plain, l.rotated), l.rope)
	qLatent := l.byHead("q_up", l.Slice("q_plain", q, keyDim, 0, plain), "attn_k_b", plain, l.kvRank)
	n := l.kvRank + l.rotated
	o := l.Attention("attn", recipe.Attention{Q: l.ConcatGroups("query", qLatent, qTurned, l.heads), K: l.Concat("key", c, kTurned),
		Cache: l.KV("kv", n, 0, 0), Heads: l.heads, KVHeads: 1, HeadDim: n, Scale: 1 / math.Sqrt(float64(keyDim))})
	o = l.byHead("v_up", l.Slice("o_latent", o, n, 0, l.kvRank), "attn_v_b", l.kvRank, l.valueDim)
	g := l.Unary("gate", "sigmoid", l.product("g", x, l.width, l.heads, "attn_gate")) // (9)
	return l.product("mixed", l.Mul("gated", o, g), l.heads*l.valueDim, l.width, "attn_output")
}

func (l *layer) feedForward(name string, x recipe.Value, suffix string, n int, limit float64) recipe.Value {
	y := l.GLU(name+"_hidden", l.product(name+"_gate", x, l.width, n, "ffn_gate"+suffix),
		l.product(name+"_up", x, l.width, n, "ffn_up"+suffix), clamp(limit))
	return l.product(name, y, n, l.width, "ffn_down"+suffix)
}

// mixture is the routed and the shared experts (section 4.3).
func (l *layer) mixture(i int, x recipe.Value) recipe.Value {
	r := l.route
	r.Logits = l.LinearExact("router", x, l.WeightOf(recipe.TypeF32, l.blk+"ffn_gate_inp.weight", l.width, l.experts), "")
	r.Bias = l.Weight(l.blk+"exp_probs_b.bias", l.experts)
	ids, weights := l.Route("ids", "weights", r)
	s := l.feedForward("shared", x, "_shexp", l.shared, l.sharedLimits[i]) // first: it computes while the routed ones are read
	y := l.Experts("routed", recipe.Experts{X: x, IDs: ids, Weights: weights, Bank: l.StackedBank(i, l.experts, l.width, l.hidden),
		GLU: clamp(l.limits[i])})
	return l.Add("moe", y, s)
}

// clamp is silu, whose result a limit bounds.
func clamp(limit float64) recipe.GLU {
	if limit == 0 {
		return recipe.GLU{Activation: "silu"}
	}
	return recipe.GLU{Activation: "silu_clamped", Limit: limit}
}
