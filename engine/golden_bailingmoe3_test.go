package engine_test

import (
	"fmt"
	"math"
	"slices"
	"testing"
)

// ling is Ling 3.0 at a tiny size: delta nets with one layer of latent attention among them.
type ling struct {
	*latentModel
	dim, taps int
	lower     float64
	kvHeads   []int32
}

// lingVariant says what files of the architecture do one way or another.
type lingVariant struct {
	low      int  // of the query; 0: one matrix
	silent   bool // about low
	short    bool // names of the decay and the gate
	grouped  bool
	drafting bool
	clamped  bool
}

func newLing(v lingVariant) *ling {
	m := latentModel{arch: "bailingmoe3", layers: 4, width: 48, vocabulary: 70, heads: 3, plain: 12, turned: 8, latent: 20, value: 16, low: v.low,
		base: 6e6, dense: 1, experts: 16, used: 4, hidden: 24, denseWidth: 40, shared: 1, normalize: true, floor: 1e-20, factorOfWeights: 2.5}
	if v.grouped {
		m.groups, m.groupsUsed = 4, 2
	}
	l := &ling{latentModel: newLatentModel(m), dim: 16, taps: 4, lower: -5, kvHeads: []int32{0, 0, 3, 0}}
	if v.clamped {
		l.limits = [2]float64{0.4, 0.3}
	}
	if v.silent {
		l.b.Drop("bailingmoe3.attention.q_lora_rank")
	}
	l.set("attention.head_count_kv", l.kvHeads).set("ssm.conv_kernel", uint32(l.taps)).set("kda.head_dim", uint32(l.dim)).
		set("kda.gate_lower_bound", float32(l.lower)).set("expert_gating_func", uint32(2)).
		set("expert_shared_feed_forward_length", uint32(l.hidden)).set("swiglu_clamp_exp", slices.Repeat([]float32{float32(l.limits[0])}, 4))
	if v.clamped {
		l.set("swiglu_clamp_shexp", float32(l.limits[1]))
		for i, limit := range l.limits {
			l.limits[i] = float64(float32(limit))
		}
	}
	l.matrix("output.weight", l.width, l.vocabulary)
	n := l.heads * l.dim
	for i := range l.layers {
		blk := fmt.Sprintf("blk.%d.", i)
		l.feedForward(i, blk, true)
		if l.kvHeads[i] > 0 {
			l.attention(blk, false)
			l.matrix(blk+"attn_gate.weight", l.width, l.heads)
			continue
		}
		for _, name := range []string{"q", "k", "v"} {
			l.matrix(blk+"attn_"+name+".weight", l.width, n)
			l.matrix(blk+"ssm_conv1d_"+name+".weight", l.taps, 1, n)
		}
		suffix := "_a"
		if v.short {
			suffix = ""
		}
		l.matrix(blk+"ssm_f"+suffix+".weight", l.width, n)
		l.matrix(blk+"ssm_g"+suffix+".weight", l.width, n)
		l.w[blk+"f"], l.w[blk+"g"] = l.w[blk+"ssm_f"+suffix+".weight"], l.w[blk+"ssm_g"+suffix+".weight"]
		l.matrix(blk+"ssm_beta.weight", l.width, l.heads)
		l.tensor(blk+"ssm_a", func(int) float64 { return math.Exp(0.5 * l.r.NormFloat64()) }, 1, l.heads)
		l.vector(blk+"ssm_dt.bias", 1, n)
		l.norm(blk+"ssm_norm.weight", l.dim)
		l.matrix(blk+"attn_output.weight", n, l.width)
	}
	l.set("nextn_predict_layers", uint32(1)) // stale unless there is such a block
	if v.drafting {
		l.set("block_count", uint32(l.layers+1)).set("attention.head_count_kv", append(l.kvHeads, 3))
		blk := fmt.Sprintf("blk.%d.", l.layers)
		l.matrix(blk+"nextn.eh_proj.weight", 2*l.width, l.width)
		l.norm(blk+"layer_output_norm.weight", l.width)
	}
	return l
}

// delta64 is (1) to (8).
func (l *ling) delta64(blk string, x [][]float64) (out [][]float64) {
	n := l.heads * l.dim
	inputs := map[string][][]float64{}
	conv := func(name string, t int) []float64 { // (1) (2)
		inputs[name] = append(inputs[name], l.times(blk+"attn_"+name+".weight", x[t]))
		y, w := make([]float64, n), l.w[blk+"ssm_conv1d_"+name+".weight"]
		for c := range y {
			for j := range l.taps {
				if at := t - l.taps + 1 + j; at >= 0 {
					y[c] += w[c*l.taps+j] * inputs[name][at][c]
				}
			}
			y[c] *= logistic(y[c])
		}
		return y
	}
	unit := func(v []float64) []float64 {
		y := make([]float64, len(v))
		for i := range v {
			y[i] = v[i] / math.Sqrt(inner(v, v))
		}
		return y
	}
	d := l.dim
	state := make([][]float64, n) // row c of M[h] at h*d + c
	for i := range state {
		state[i] = make([]float64, d)
	}
	for t, row := range x {
		q1, k1, v1 := conv("q", t), conv("k", t), conv("v", t)
		f, gate := product(l.w[blk+"f"], row), product(l.w[blk+"g"], row)
		beta := l.times(blk+"ssm_beta.weight", row)
		var y []float64
		for h := range l.heads {
			q, k, v := unit(q1[h*d:][:d]), unit(k1[h*d:][:d]), v1[h*d:][:d] // (3)
			m := state[h*d:][:d]
			u, o := make([]float64, d), make([]float64, d)
			for c := range d {
				g := l.lower * logistic(l.w[blk+"ssm_a"][h]*(f[h*d+c]+l.w[blk+"ssm_dt.bias"][h*d+c])) // (4)
				for j := range d {
					m[c][j] *= math.Exp(g)
					u[j] += m[c][j] * k[c]
				}
			}
			for c := range d { // (5) (6)
				for j := range d {
					m[c][j] += k[c] * logistic(beta[h]) * (v[j] - u[j])
					o[j] += m[c][j] * q[c] / math.Sqrt(float64(d))
				}
			}
			for j, e := range l.rms(blk+"ssm_norm.weight", o) { // (7)
				y = append(y, e*logistic(gate[h*d+j]))
			}
		}
		out = append(out, l.times(blk+"attn_output.weight", y)) // (8)
	}
	return out
}

func (l *ling) logits64(text []int32) [][]float64 {
	return l.logits(text, func(i int, blk string, x [][]float64) (y [][]float64) {
		if l.kvHeads[i] == 0 {
			return l.delta64(blk, x)
		}
		for pos, o := range l.heads64(blk, x) {
			for h, a := range l.times(blk+"attn_gate.weight", x[pos]) { // (9)
				for j := range l.value {
					o[h*l.value+j] *= logistic(a)
				}
			}
			y = append(y, l.times(blk+"attn_output.weight", o))
		}
		return y
	})
}

func TestBailingMoE3(t *testing.T) {
	arithmetic(t)
	recipes := t.TempDir()
	for name, v := range map[string]lingVariant{
		"flash":        {grouped: true, drafting: true},
		"tiny":         {low: 20, short: true},
		"silent query": {low: 20, silent: true, grouped: true},
		"clamped":      {clamped: true},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLing(v)
			text := l.text(70)
			l.requireEquations(t, recipes, text, l.logits64(text))
		})
	}
	for name, test := range map[string]struct {
		edit func(*ling)
		say  string
	}{
		"unsafe gate":      {func(l *ling) { l.set("kda.safe_gate", false) }, "kda.safe_gate"},
		"no bound":         {func(l *ling) { l.b.Drop("bailingmoe3.kda.gate_lower_bound") }, "gate_lower_bound"},
		"positive bound":   {func(l *ling) { l.set("kda.gate_lower_bound", float32(5)) }, "gate_lower_bound"},
		"clamp":            {func(l *ling) { l.set("swiglu_clamp_exp", []float32{0, 0, -7, 0}) }, "swiglu_clamp_exp"},
		"shared clamp":     {func(l *ling) { l.set("swiglu_clamp_shexp", []float32{3, 3}) }, "swiglu_clamp_shexp"},
		"yarn":             {func(l *ling) { l.set("rope.scaling.type", "yarn").set("rope.scaling.factor", float32(4)) }, "rope.scaling"},
		"softmax":          {func(l *ling) { l.set("expert_gating_func", uint32(1)) }, "expert_gating_func"},
		"no base":          {func(l *ling) { l.b.Drop("bailingmoe3.rope.freq_base") }, "rope.freq_base"},
		"kinds too few":    {func(l *ling) { l.set("attention.head_count_kv", []int32{0, 0}) }, "head_count_kv"},
		"kinds other":      {func(l *ling) { l.set("attention.head_count_kv", []int32{0, 3, 3, 0}) }, "blk.1."},
		"a for each value": {func(l *ling) { l.vector("blk.0.ssm_a", 1, 2, 3) }, "blk.0.ssm_a"},
		"taps":             {func(l *ling) { l.set("ssm.conv_kernel", uint32(3)) }, "ssm_conv1d_q"},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLing(lingVariant{})
			test.edit(l)
			l.requireRefused(t, recipes, test.say)
		})
	}
}
