package engine_test

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/engine"
	"github.com/bigmoe/bigmoe/engine/gguf/gguftest"
	"github.com/bigmoe/bigmoe/sdk/dtype"
	"github.com/bigmoe/bigmoe/sdk/fault"
)

// The architectures deepseek2 and bailingmoe3 have no recordings. Here their equations are written out in float64, from
// specs/deepseek2.md and specs/bailingmoe3.md and not from the recipes, and evaluated on models with random weights.

// latentModel is such a model: what its file says, and the weights in float64.
type latentModel struct {
	b *gguftest.Builder
	w map[string][]float64
	r *rand.Rand

	arch                       string
	layers, width, vocabulary  int
	heads, plain, turned       int     // query heads, and of a head the elements that do not turn and those that do
	latent, value, low         int     // sizes of the latent, of a value head, of the latent of the query (0: none)
	base, factor, multiplier   float64 // of the rotation; factor 0: no YaRN
	original                   float64 // context before YaRN
	dense, experts, used       int
	hidden, denseWidth, shared int
	groups, groupsUsed         int
	limits                     [2]float64 // of routed and of shared experts, behind SiLU; 0: none
	softmax, normalize         bool
	floor, factorOfWeights     float64
}

const eps = 1e-6 // of every norm

func newLatentModel(m latentModel) *latentModel {
	m.b, m.w, m.r = gguftest.NewBuilder(), map[string][]float64{}, rand.New(rand.NewPCG(7, 11))
	m.b.Set("general.architecture", m.arch)
	m.set("block_count", uint32(m.layers)).set("context_length", uint32(512)).set("embedding_length", uint32(m.width))
	m.set("feed_forward_length", uint32(m.denseWidth)).set("leading_dense_block_count", uint32(m.dense))
	m.set("attention.head_count", uint32(m.heads)).set("attention.layer_norm_rms_epsilon", float32(eps))
	m.set("attention.kv_lora_rank", uint32(m.latent)).set("rope.dimension_count", uint32(m.turned)).set("rope.freq_base", float32(m.base))
	m.set("attention.key_length", uint32(m.latent+m.turned)).set("attention.value_length", uint32(m.latent))
	m.set("attention.key_length_mla", uint32(m.plain+m.turned)).set("attention.value_length_mla", uint32(m.value))
	m.set("expert_count", uint32(m.experts)).set("expert_used_count", uint32(m.used)).set("expert_feed_forward_length", uint32(m.hidden))
	m.set("expert_shared_count", uint32(m.shared)).set("expert_weights_scale", float32(m.factorOfWeights)).set("expert_weights_norm", m.normalize)
	if m.groups > 1 {
		m.set("expert_group_count", uint32(m.groups)).set("expert_group_used_count", uint32(m.groupsUsed))
	}
	if m.low > 0 {
		m.set("attention.q_lora_rank", uint32(m.low))
	}
	tokens := make([]string, m.vocabulary)
	for i := range tokens {
		tokens[i] = fmt.Sprintf("t%d", i)
	}
	m.b.Set("tokenizer.ggml.model", "gpt2").Set("tokenizer.ggml.pre", "deepseek-v3").Set("tokenizer.ggml.tokens", tokens).
		Set("tokenizer.ggml.merges", []string{"t 0"})
	m.matrix("token_embd.weight", m.width, m.vocabulary)
	m.norm("output_norm.weight", m.width)
	return &m
}

func (m *latentModel) set(key string, value any) *latentModel {
	m.b.Set(m.arch+"."+key, value)
	return m
}

// tensor adds a tensor of the file and the same numbers for the reference.
func (m *latentModel) tensor(name string, number func(i int) float64, dims ...int) []float64 {
	n, shape := 1, []uint64(nil)
	for _, d := range dims {
		n, shape = n*d, append(shape, uint64(d))
	}
	raw, out := make([]float32, n), make([]float64, n)
	for i := range raw {
		raw[i] = float32(number(i))
		out[i] = float64(raw[i])
	}
	m.b.Tensor(name, dtype.F32, shape, gguftest.Float32s(raw...))
	m.w[name] = out
	return out
}

func (m *latentModel) matrix(name string, dims ...int) {
	scale := 1.5 / math.Sqrt(float64(dims[0]))
	m.tensor(name, func(int) float64 { return scale * m.r.NormFloat64() }, dims...)
}

func (m *latentModel) norm(name string, n int) {
	m.tensor(name, func(int) float64 { return 1 + 0.2*m.r.NormFloat64() }, n)
}

func (m *latentModel) vector(name string, size float64, dims ...int) {
	m.tensor(name, func(int) float64 { return size * m.r.NormFloat64() }, dims...)
}

// attention adds the weights of latent attention. The matrices of keys {N, C, H} and values {C, Dv, H} are written in the
// form of new files, or as the one matrix of old ones: for each head N rows for the key, then Dv for the value.
func (m *latentModel) attention(blk string, old bool) {
	keys := m.plain + m.turned
	if m.low > 0 {
		m.matrix(blk+"attn_q_a.weight", m.width, m.low)
		m.norm(blk+"attn_q_a_norm.weight", m.low)
		m.matrix(blk+"attn_q_b.weight", m.low, m.heads*keys)
	} else {
		m.matrix(blk+"attn_q.weight", m.width, m.heads*keys)
	}
	m.matrix(blk+"attn_kv_a_mqa.weight", m.width, m.latent+m.turned)
	m.norm(blk+"attn_kv_a_norm.weight", m.latent)
	m.matrix(blk+"attn_output.weight", m.heads*m.value, m.width)
	m.matrix(blk+"attn_kv_b.weight", m.latent, m.heads*(m.plain+m.value))
	if old {
		return
	}
	both := m.w[blk+"attn_kv_b.weight"]
	m.b.Drop(blk + "attn_kv_b.weight")
	row := func(h, r int) []float64 { return both[(h*(m.plain+m.value)+r)*m.latent:][:m.latent] }
	m.tensor(blk+"attn_k_b.weight", func(i int) float64 { return row(i/m.plain/m.latent, i%m.plain)[i/m.plain%m.latent] }, m.plain, m.latent, m.heads)
	m.tensor(blk+"attn_v_b.weight", func(i int) float64 { return row(i/m.latent/m.value, m.plain+i/m.latent%m.value)[i%m.latent] }, m.latent, m.value, m.heads)
}

// feedForward adds the weights behind attention.
func (m *latentModel) feedForward(i int, blk string, bias bool) {
	m.norm(blk+"attn_norm.weight", m.width)
	m.norm(blk+"ffn_norm.weight", m.width)
	ffn := func(suffix string, width int, experts ...int) {
		m.matrix(blk+"ffn_gate"+suffix+".weight", append([]int{m.width, width}, experts...)...)
		m.matrix(blk+"ffn_up"+suffix+".weight", append([]int{m.width, width}, experts...)...)
		m.matrix(blk+"ffn_down"+suffix+".weight", append([]int{width, m.width}, experts...)...)
	}
	if i < m.dense {
		ffn("", m.denseWidth)
		return
	}
	m.matrix(blk+"ffn_gate_inp.weight", m.width, m.experts)
	if bias {
		m.vector(blk+"exp_probs_b.bias", 0.3, m.experts)
	}
	ffn("_exps", m.hidden, m.experts)
	ffn("_shexp", m.hidden*m.shared)
}

// The equations. A text is evaluated whole, one row for each position.

func (m *latentModel) times(name string, x []float64) []float64 { return product(m.w[name], x) }

func product(w, x []float64) []float64 {
	y := make([]float64, len(w)/len(x))
	for o := range y {
		y[o] = inner(w[o*len(x):][:len(x)], x)
	}
	return y
}

func inner(a, b []float64) (sum float64) {
	for i := range a {
		sum += a[i] * b[i]
	}
	return sum
}

func (m *latentModel) rms(name string, x []float64) []float64 {
	y := make([]float64, len(x))
	for i := range x {
		y[i] = m.w[name][i] * x[i] / math.Sqrt(inner(x, x)/float64(len(x))+eps)
	}
	return y
}

func logistic(x float64) float64 { return 1 / (1 + math.Exp(-x)) }

func plus(a, b []float64) []float64 {
	for i := range a {
		b[i] += a[i]
	}
	return b
}

// frequency is deepseek4 (15) with the numbers of deepseek2 3.1.
func (m *latentModel) frequency(i int) float64 {
	n := float64(m.turned)
	f := math.Pow(m.base, -2*float64(i)/n)
	if m.factor == 0 {
		return f
	}
	at := func(turns float64) float64 {
		return n * math.Log(m.original/(2*math.Pi*turns)) / (2 * math.Log(m.base))
	}
	lo, hi := max(0, math.Floor(at(32))), min(n-1, math.Ceil(at(1)))
	r := min(max((float64(i)-lo)/max(0.001, hi-lo), 0), 1)
	return f*(1-r) + f/m.factor*r
}

// turn rotates interleaved pairs (5).
func (m *latentModel) turn(x []float64, pos int) []float64 {
	y := make([]float64, len(x))
	for i := range len(x) / 2 {
		sin, cos := math.Sincos(float64(pos) * m.frequency(i))
		y[2*i], y[2*i+1] = x[2*i]*cos-x[2*i+1]*sin, x[2*i]*sin+x[2*i+1]*cos
	}
	return y
}

// scale is 3.1.
func (m *latentModel) scale() float64 {
	s := 1 / math.Sqrt(float64(m.plain+m.turned))
	if m.factor > 0 {
		a := m.multiplier / 0.1
		mscale := 1 + 0.1*a*math.Log(m.factor)
		s *= mscale * mscale
	}
	return s
}

// heads64 is (3) to (7) in the form that is not absorbed: the outputs of all heads.
func (m *latentModel) heads64(blk string, x [][]float64) (out [][]float64) {
	var latents, turned [][]float64
	for pos, row := range x {
		t := m.times(blk+"attn_kv_a_mqa.weight", row)
		latents = append(latents, m.rms(blk+"attn_kv_a_norm.weight", t[:m.latent]))
		turned = append(turned, m.turn(t[m.latent:], pos))
		var q []float64
		if m.low > 0 {
			q = m.times(blk+"attn_q_b.weight", m.rms(blk+"attn_q_a_norm.weight", m.times(blk+"attn_q_a.weight", row)))
		} else {
			q = m.times(blk+"attn_q.weight", row)
		}
		var o []float64
		for h := range m.heads {
			qh := q[h*(m.plain+m.turned):][:m.plain+m.turned]
			rope := m.turn(qh[m.plain:], pos)
			kv := m.w[blk+"attn_kv_b.weight"][h*(m.plain+m.value)*m.latent:][:(m.plain+m.value)*m.latent]
			weights, sum := make([]float64, pos+1), 0.0
			for j := range weights {
				key := product(kv[:m.plain*m.latent], latents[j])
				weights[j] = math.Exp(m.scale() * (inner(qh[:m.plain], key) + inner(rope, turned[j])))
				sum += weights[j]
			}
			head := make([]float64, m.value)
			for j, w := range weights {
				for i, v := range product(kv[m.plain*m.latent:], latents[j]) {
					head[i] += w / sum * v
				}
			}
			o = append(o, head...)
		}
		out = append(out, o)
	}
	return out
}

// swiglu is a feed-forward of width rows from a matrix's expert e.
func (m *latentModel) swiglu(blk, suffix string, e, width int, x []float64) []float64 {
	part := func(name string) []float64 { return m.w[blk+name+suffix+".weight"][e*width*m.width:][:width*m.width] }
	g, u := product(part("ffn_gate"), x), product(part("ffn_up"), x)
	limit := map[string]float64{"_exps": m.limits[0], "_shexp": m.limits[1]}[suffix]
	for i := range g {
		g[i] *= logistic(g[i])
		if limit > 0 {
			g[i], u[i] = min(g[i], limit), min(max(u[i], -limit), limit)
		}
		g[i] *= u[i]
	}
	return product(part("ffn_down"), g)
}

// ffn64 is section 4 of deepseek2, and 4.3 of bailingmoe3.
func (m *latentModel) ffn64(i int, blk string, x []float64) []float64 {
	if i < m.dense {
		return m.swiglu(blk, "", 0, m.denseWidth, x)
	}
	p := m.times(blk+"ffn_gate_inp.weight", x)
	sum := 0.0
	for e, l := range p {
		if p[e] = logistic(l); m.softmax {
			p[e] = math.Exp(l)
		}
		sum += p[e]
	}
	s := slices.Clone(p)
	for e := range p {
		if m.softmax {
			p[e], s[e] = p[e]/sum, p[e]/sum
		}
		if bias := m.w[blk+"exp_probs_b.bias"]; bias != nil {
			s[e] += bias[e]
		}
	}
	if m.groups > 1 { // (13)
		n := m.experts / m.groups
		score := make([]float64, m.groups)
		var order []int
		for g := range m.groups {
			sorted := slices.Sorted(slices.Values(s[g*n:][:n]))
			score[g] = sorted[n-1] + sorted[n-2]
			order = append(order, g)
		}
		slices.SortFunc(order, func(a, b int) int { return cmp.Compare(score[b], score[a]) })
		for _, g := range order[m.groupsUsed:] {
			for e := range n {
				s[g*n+e] = math.Inf(-1)
			}
		}
	}
	var order []int
	for e := range s {
		order = append(order, e)
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(s[b], s[a]) })
	sum = 0
	for _, e := range order[:m.used] {
		sum += p[e]
	}
	y := m.swiglu(blk, "_shexp", 0, m.hidden*m.shared, x) // (15)
	for _, e := range order[:m.used] {
		w := p[e] * m.factorOfWeights
		if m.normalize {
			w /= max(sum, m.floor)
		}
		for j, v := range m.swiglu(blk, "_exps", e, m.hidden, x) {
			y[j] += w * v
		}
	}
	return y
}

// logits evaluates a text. mix is what a layer does before its feed-forward.
func (m *latentModel) logits(text []int32, mix func(i int, blk string, x [][]float64) [][]float64) (out [][]float64) {
	h := make([][]float64, len(text))
	for pos, token := range text {
		h[pos] = slices.Clone(m.w["token_embd.weight"][int(token)*m.width:][:m.width]) // (1)
	}
	for i := range m.layers {
		blk := fmt.Sprintf("blk.%d.", i)
		var x [][]float64
		for _, row := range h {
			x = append(x, m.rms(blk+"attn_norm.weight", row)) // (2)
		}
		for pos, y := range mix(i, blk, x) {
			h[pos] = plus(h[pos], y)                                                     // (8)
			h[pos] = plus(h[pos], m.ffn64(i, blk, m.rms(blk+"ffn_norm.weight", h[pos]))) // (9)
		}
	}
	head := m.w["output.weight"]
	if head == nil {
		head = m.w["token_embd.weight"]
	}
	for _, row := range h {
		out = append(out, product(head, m.rms("output_norm.weight", row))) // (10)
	}
	return out
}

func (m *latentModel) write(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), m.arch+".gguf")
	require.NoError(t, m.b.Write(path))
	return path
}

// text is a prompt of n tokens.
func (m *latentModel) text(n int) []int32 {
	r := rand.New(rand.NewPCG(3, 5))
	out := make([]int32, n)
	for i := range out {
		out[i] = r.Int32N(int32(m.vocabulary))
	}
	return out
}

// requireEquations compares every way to run the backend and every way to cut the text with the logits. recipes is where
// compiled recipes are kept.
func (m *latentModel) requireEquations(t *testing.T, recipes string, text []int32, want [][]float64) {
	t.Helper()
	model := m.write(t)
	chunks := map[string][]int{"reference": {0, 7}, "in process": {0, 1, 7, 64}, "child process": {7}}
	if raceEnabled {
		chunks = map[string][]int{"in process": {7}} // the rest is too slow under the race detector
	}
	for name, b := range backends() {
		for _, chunk := range chunks[name] {
			cfg := config(model, b)
			cfg.RecipeCache = recipes
			o := observe(t, cfg, text, chunk, 0)
			worst, largest := 0.0, 0.0
			require.Len(t, o.logits, len(want))
			for pos := range want {
				require.Len(t, o.logits[pos], m.vocabulary)
				for id, v := range want[pos] {
					worst, largest = max(worst, math.Abs(float64(o.logits[pos][id])-v)), max(largest, math.Abs(v))
				}
			}
			require.Less(t, worst, 2e-4, "%s in chunks of %d", name, chunk)
			t.Logf("%s in chunks of %d: largest difference %.2g of logits up to %.2g", name, chunk, worst, largest)
		}
	}
}

// requireRefused says that no plan is made of a model, which is not the recipe's mistake.
func (m *latentModel) requireRefused(t *testing.T, recipes, say string) {
	t.Helper()
	cfg := config(m.write(t), backends()["in process"])
	cfg.RecipeCache = recipes
	_, err := engine.Inspect(t.Context(), cfg)
	require.ErrorContains(t, err, say)
	require.Contains(t, []fault.Kind{fault.Corrupt, fault.Unsupported}, fault.KindOf(err), "%v", err)
}
