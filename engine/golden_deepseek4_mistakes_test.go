package engine_test

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// fixtureModel is section 3 of specs/deepseek4.md in float64 with the sizes of 5.1, written from there and from nothing of
// ours: one token at a time, sublayer by sublayer. It can make each mistake of 5.4.
type fixtureModel struct {
	mistake string // what to do wrong; empty: nothing
	layers  [6]fixtureLayer
	pos     int
	seen    func(layer int, sublayer string, y []float64, streams [][]float64) // what a sublayer gives, and the streams after it; may be nil
}

// fixtureLayer is what a layer remembers.
type fixtureLayer struct {
	keys           [][]float64 // of every position (19)
	rows, indexed  [][]float64 // compressed (32), (35)
	window, pooled []pooling   // not yet compressed, of attention and of the indexer
	picks          []int       // of the last token; nil: all rows
}

// pooling is the key and the score of one token (29).
type pooling struct{ k, s []float64 }

const (
	fixtureWidth   = 64
	fixtureStreams = 4
	fixtureHeads   = 4
	fixtureTurned  = 32 // elements that turn, the last of a head
	fixtureLimit   = 0.5
)

var fixtureRatios = [6]int{0, 0, 4, 128, 4, 128}

// fixtureWeights keeps the values that were generated, by name.
var fixtureWeights sync.Map

func fixtureWeight(name string, dims ...uint64) []float64 {
	if w, ok := fixtureWeights.Load(name); ok {
		return w.([]float64)
	}
	var w []float64
	for _, v := range fixtureValues(name, dims) {
		w = append(w, float64(v))
	}
	fixtureWeights.Store(name, w)
	return w
}

// wrong says whether a mistake is to be made.
func (m *fixtureModel) wrong(mistake string) bool { return m.mistake == mistake }

// of returns a weight of a layer.
func of(layer int, name string, dims ...uint64) []float64 {
	return fixtureWeight(fmt.Sprintf("blk.%d.%s", layer, name), dims...)
}

// rms64 divides by the root mean square and multiplies with a weight, unless that is nil.
func rms64(x, w []float64) []float64 {
	y := make([]float64, len(x))
	for i := range x {
		y[i] = x[i] / math.Sqrt(inner(x, x)/float64(len(x))+eps)
		if w != nil {
			y[i] *= w[i]
		}
	}
	return y
}

// mixing is (3) to (9): how a sublayer reads the streams, writes them, and mixes them.
func (m *fixtureModel) mixing(layer int, sublayer string, streams [][]float64) (pre, post []float64, c [][]float64) {
	mix := product(of(layer, "hc_"+sublayer+"_fn.weight", 256, 24), rms64(slices.Concat(streams...), nil))
	base, scale := of(layer, "hc_"+sublayer+"_base.weight", 24), of(layer, "hc_"+sublayer+"_scale.weight", 3)
	factor := 2.0
	if m.wrong("post without factor 2") {
		factor = 1
	}
	for s := range fixtureStreams {
		pre = append(pre, logistic(mix[s]*scale[0]+base[s])+eps)
		post = append(post, factor*logistic(mix[4+s]*scale[1]+base[4+s]))
		row, sum := make([]float64, fixtureStreams), 0.0
		for d := range row {
			row[d] = math.Exp(mix[8+4*s+d]*scale[2] + base[8+4*s+d])
			sum += row[d]
		}
		for d := range row {
			row[d] = row[d]/sum + eps
		}
		c = append(c, row)
	}
	normalise := func(element func(line, i int) *float64) {
		for line := range fixtureStreams {
			sum := eps
			for i := range fixtureStreams {
				sum += *element(line, i)
			}
			for i := range fixtureStreams {
				*element(line, i) /= sum
			}
		}
	}
	columns := func() { normalise(func(d, s int) *float64 { return &c[s][d] }) }
	columns()
	iterations := 20
	if m.wrong("3 Sinkhorn iterations instead of 20") {
		iterations = 3
	}
	for range iterations - 1 {
		normalise(func(s, d int) *float64 { return &c[s][d] })
		columns()
	}
	return pre, post, c
}

// around is (10) to (12): a sublayer between streams.
func (m *fixtureModel) around(layer int, sublayer string, streams [][]float64, f func(x []float64) []float64) [][]float64 {
	pre, post, c := m.mixing(layer, sublayer, streams)
	y := f(rms64(weighted(pre, streams), of(layer, sublayer+"_norm.weight", fixtureWidth)))
	var out [][]float64
	for d := range fixtureStreams {
		row := make([]float64, fixtureWidth)
		for i := range row {
			row[i] = post[d] * y[i]
			for s := range fixtureStreams {
				if m.wrong("C used transposed") {
					row[i] += c[d][s] * streams[s][i]
				} else {
					row[i] += c[s][d] * streams[s][i]
				}
			}
		}
		out = append(out, row)
	}
	if m.seen != nil {
		m.seen(layer, sublayer, y, out)
	}
	return out
}

// weighted is a sum of rows.
func weighted(weights []float64, rows [][]float64) []float64 {
	y := make([]float64, len(rows[0]))
	for r, w := range weights {
		for i, v := range rows[r] {
			y[i] += w * v
		}
	}
	return y
}

// frequency is (14) and (15).
func (m *fixtureModel) frequency(layer, i int) float64 {
	const n, original, yarn = fixtureTurned, 64, 16
	compressing := fixtureRatios[layer] > 0
	if compressing && m.wrong("compressed layers with base 10000, no YaRN") || !compressing && !m.wrong("window layers with the compressed RoPE") {
		return math.Pow(10000, -2*float64(i)/n)
	}
	f := math.Pow(160000, -2*float64(i)/n)
	if m.wrong("YaRN off in compressed layers") {
		return f
	}
	at := func(beta float64) float64 {
		return n * math.Log(original/(2*math.Pi*beta)) / (2 * math.Log(160000))
	}
	lo, hi := max(0, math.Floor(at(32))), min(n-1, math.Ceil(at(1)))
	r := min(max((float64(i)-lo)/max(0.001, hi-lo), 0), 1)
	return f*(1-r) + f/yarn*r
}

// turn is (13), by a position that may be negative.
func (m *fixtureModel) turn(layer int, x []float64, position int) []float64 {
	y, from := slices.Clone(x), len(x)-fixtureTurned
	for i := range fixtureTurned / 2 {
		a, b := from+2*i, from+2*i+1
		if m.wrong("half-split (NeoX) instead of interleaved pairs") {
			a, b = from+i, from+i+fixtureTurned/2
		}
		sin, cos := math.Sincos(float64(position) * m.frequency(layer, i))
		y[a], y[b] = x[a]*cos-x[b]*sin, x[a]*sin+x[b]*cos
	}
	return y
}

// compress is 3.5: it adds a token to those pooled and returns a row when a block is complete.
func (m *fixtureModel) compress(layer int, name string, dim int, tokens *[]pooling, x []float64) (row []float64) {
	ratio := fixtureRatios[layer]
	halves := 1
	if ratio == 4 {
		halves = 2
	}
	width := uint64(halves * dim)
	k := product(of(layer, name+"_kv.weight", fixtureWidth, width), x)
	s := product(of(layer, name+"_gate.weight", fixtureWidth, width), x)
	s = plus(of(layer, name+"_ape.weight", width, uint64(ratio))[m.pos%ratio*int(width):][:width], s)
	*tokens = append(*tokens, pooling{k, s})
	if (m.pos+1)%ratio != 0 {
		return nil
	}
	block := m.pos / ratio
	v := make([]float64, dim)
	for j := range v {
		var top, sum float64
		add := func(k, s float64) { top, sum = top+math.Exp(s)*k, sum+math.Exp(s) }
		first, second := j, j+dim // before, and in the block itself
		if m.wrong("channel halves swapped in the ratio-4 pool") {
			first, second = second, first
		}
		for i, t := range *tokens {
			switch old := i < len(*tokens)-ratio; {
			case halves == 1:
				add(t.k[j], t.s[j])
			case !old:
				add(t.k[second], t.s[second])
			case !m.wrong("no overlap in the ratio-4 pool"):
				add(t.k[first], t.s[first])
			}
		}
		if halves == 2 && block == 0 && m.wrong("block 0 pooled with four zero entries") {
			for range ratio {
				add(0, 0)
			}
		}
		v[j] = top / sum
	}
	*tokens = (*tokens)[len(*tokens)-(halves-1)*ratio:]
	position := block * ratio
	switch {
	case m.wrong("row RoPE at last token of block"):
		position = m.pos
	case m.wrong("row RoPE at block index instead of block start"):
		position = block
	}
	return m.turn(layer, rms64(v, of(layer, name+"_norm.weight", uint64(dim))), position)
}

// picked is 3.6: the rows of blocks of 4 that a token attends to.
func (m *fixtureModel) picked(layer int, x, qr []float64) [][]float64 {
	const heads, dim, top = 32, fixtureIndexHead, 6
	l := &m.layers[layer]
	l.picks = nil
	if len(l.rows) <= top {
		return l.rows
	}
	q := product(of(layer, "indexer.attn_q_b.weight", 32, heads*dim), qr)
	g := product(of(layer, "indexer.proj.weight", fixtureWidth, heads), x)
	scores, order := make([]float64, len(l.rows)), []int{}
	for b := range l.rows {
		for h := range heads {
			dot := inner(m.turn(layer, q[h*dim:][:dim], m.pos), l.indexed[b])
			if !m.wrong("indexer without ReLU") {
				dot = max(dot, 0)
			}
			weight := g[h]
			if m.wrong("indexer with absolute weights") {
				weight = math.Abs(weight)
			}
			scores[b] += weight * dot
		}
		order = append(order, b)
	}
	slices.SortStableFunc(order, func(a, b int) int { return int(math.Copysign(1, scores[b]-scores[a])) })
	var rows [][]float64
	for _, b := range order[:top] {
		rows = append(rows, l.rows[b])
	}
	l.picks = slices.Sorted(slices.Values(order[:top]))
	return rows
}

// attention is 3.4.
func (m *fixtureModel) attention(layer int, x []float64) []float64 {
	const dim, window, groups, low = fixtureHead, 8, 2, 32
	l := &m.layers[layer]
	qr := rms64(product(of(layer, "attn_q_a.weight", fixtureWidth, low), x), of(layer, "attn_q_a_norm.weight", low))
	q := product(of(layer, "attn_q_b.weight", low, fixtureHeads*dim), qr)
	kv := rms64(product(of(layer, "attn_kv.weight", fixtureWidth, dim), x), of(layer, "attn_kv_a_norm.weight", dim))
	l.keys = append(l.keys, m.turn(layer, kv, m.pos))
	seen := window
	if m.wrong("window W+1 keys") {
		seen++
	}
	keys := slices.Clone(l.keys[max(0, len(l.keys)-seen):])
	if fixtureRatios[layer] > 0 {
		if row := m.compress(layer, "attn_compressor", dim, &l.window, x); row != nil {
			l.rows = append(l.rows, row)
		}
	}
	if fixtureRatios[layer] == 4 {
		if row := m.compress(layer, "indexer_compressor", fixtureIndexHead, &l.pooled, x); row != nil {
			l.indexed = append(l.indexed, row)
		}
		keys = append(keys, m.picked(layer, x, qr)...)
	} else {
		keys = append(keys, l.rows...)
	}
	sinks := of(layer, "attn_sinks.weight", fixtureHeads)
	var o []float64
	for h := range fixtureHeads {
		qh := q[h*dim:][:dim]
		if !m.wrong("no per-head q norm") {
			qh = rms64(qh, nil)
		}
		qh = m.turn(layer, qh, m.pos)
		var p []float64
		sum := math.Exp(sinks[h])
		if m.wrong("sink left out") {
			sum = 0
		}
		for _, key := range keys {
			p = append(p, math.Exp(inner(qh, key)/math.Sqrt(dim)))
			sum += p[len(p)-1]
		}
		for i := range p {
			p[i] /= sum
		}
		oh := weighted(p, keys)
		if !m.wrong("no inverse RoPE") {
			oh = m.turn(layer, oh, -m.pos)
		}
		o = append(o, oh...)
	}
	in := fixtureHeads / groups * dim
	a := of(layer, "attn_output_a.weight", uint64(in), groups*low)
	var u []float64
	for g := range groups {
		u = append(u, product(a[g*low*in:][:low*in], o[g*in:][:in])...)
	}
	return product(of(layer, "attn_output_b.weight", groups*low, fixtureWidth), u)
}

// expert is (42) and (43).
func (m *fixtureModel) expert(layer int, suffix string, e int, x []float64) []float64 {
	part := func(name string) []float64 {
		dims := []uint64{fixtureWidth, fixtureWidth, 8}
		if suffix == "shexp" {
			dims = dims[:2]
		}
		return of(layer, "ffn_"+name+"_"+suffix+".weight", dims...)[e*fixtureWidth*fixtureWidth:][:fixtureWidth*fixtureWidth]
	}
	h, up := product(part("gate"), x), product(part("up"), x)
	for i, g := range h {
		if m.wrong("clamp gate after SiLU instead of before") {
			g = min(g*logistic(g), fixtureLimit)
		} else {
			g = min(g, fixtureLimit)
			g *= logistic(g)
		}
		h[i] = g * min(max(up[i], -fixtureLimit), fixtureLimit)
	}
	return product(part("down"), h)
}

// experts is 3.7.
func (m *fixtureModel) experts(layer, token int, x []float64) []float64 {
	const used, scale = 2, 1.5
	logits := product(of(layer, "ffn_gate_inp.weight", fixtureWidth, 8), x)
	var r, rank []float64
	var order []int
	for e, v := range logits {
		r, order = append(r, math.Sqrt(math.Log1p(math.Exp(v)))), append(order, e)
	}
	rank = slices.Clone(r)
	if layer >= 3 {
		biased := plus(of(layer, "exp_probs_b.bias", 8), slices.Clone(r))
		if !m.wrong("router: selection without bias") {
			rank = biased
		}
		if m.wrong("router: biased weights") {
			r = biased
		}
		slices.SortStableFunc(order, func(a, b int) int { return int(math.Copysign(1, rank[b]-rank[a])) })
	} else {
		for j := range used {
			order[j] = (5*token + 3*layer + 3*j) % 8
		}
	}
	if m.wrong("router: sigmoid instead of sqrt(softplus) weights") {
		for e, v := range logits {
			r[e] = logistic(v)
		}
	}
	y := m.expert(layer, "shexp", 0, x)
	for _, e := range order[:used] {
		for i, v := range m.expert(layer, "exps", e, x) {
			y[i] += scale * r[e] / (r[order[0]] + r[order[1]]) * v
		}
	}
	return y
}

// step is a token through all layers and the head (3.1, 3.8).
func (m *fixtureModel) step(token int) []float64 {
	e := fixtureWeight("token_embd.weight", fixtureWidth, fixtureVocabulary)[token*fixtureWidth:][:fixtureWidth]
	streams := [][]float64{e, e, e, e}
	for layer := range m.layers {
		streams = m.around(layer, "attn", streams, func(x []float64) []float64 { return m.attention(layer, x) })
		streams = m.around(layer, "ffn", streams, func(x []float64) []float64 { return m.experts(layer, token, x) })
	}
	m.pos++
	w := product(fixtureWeight("output_hc_fn.weight", 256, fixtureStreams), rms64(slices.Concat(streams...), nil))
	base, scale := fixtureWeight("output_hc_base.weight", fixtureStreams), fixtureWeight("output_hc_scale.weight", 1)
	for s := range w {
		w[s] = logistic(w[s]*scale[0]+base[s]) + eps
	}
	x := rms64(weighted(w, streams), fixtureWeight("output_norm.weight", fixtureWidth))
	return product(fixtureWeight("output.weight", fixtureWidth, fixtureVocabulary), x)
}

// run evaluates the first tokens of the fixture's text.
func (m *fixtureModel) run(tokens int) (logits [][]float64) {
	for _, token := range fixturePrompt()[:tokens] {
		logits = append(logits, m.step(int(token)))
	}
	return logits
}

// TestDeepseek4Intermediates holds the equations above to what 5.3 says of values that an engine does not show.
func TestDeepseek4Intermediates(t *testing.T) {
	arithmetic(t)
	near := func(want, got []float64, what string) {
		t.Helper()
		require.GreaterOrEqual(t, len(got), len(want))
		for i := range want {
			require.InDelta(t, want[i], got[i], 2e-5, "%s[%d]", what, i)
		}
	}
	m := &fixtureModel{}
	e := fixtureWeight("token_embd.weight", fixtureWidth, fixtureVocabulary)[int(fixturePrompt()[0])*fixtureWidth:][:fixtureWidth]
	pre, post, c := m.mixing(0, "attn", [][]float64{e, e, e, e})
	near([]float64{0.114711, 0.890986, 0.664306, 0.741698}, pre, "pre")
	near([]float64{0.547757, 0.608349, 1.215939, 1.491301}, post, "post")
	for src, row := range [][]float64{{0.579873, 0.075214, 0.267692, 0.077219}, {0.242604, 0.358767, 0.145855, 0.252773},
		{0.151769, 0.322152, 0.437486, 0.088592}, {0.025753, 0.243865, 0.148966, 0.581415}} {
		near(row, c[src], fmt.Sprintf("C[%d]", src))
	}
	norm := func(x []float64) float64 { return math.Sqrt(inner(x, x)) }
	norms := map[int][6][3]float64{ // of attention, feed-forward and streams of each layer
		0: {{4.53083, 1.76016, 12.52135}, {7.35905, 1.50259, 18.74813}, {9.56616, 1.30101, 26.80780}, {6.53782, 1.54158, 34.49777},
			{5.75661, 1.35540, 35.75258}, {4.03039, 1.65986, 35.67556}},
		200: {{5.50828, 1.67282, 18.98287}, {4.68045, 1.34002, 23.35539}, {5.32827, 1.28117, 24.82557}, {7.05985, 1.66661, 32.96697},
			{7.13804, 1.34951, 35.54086}, {6.64200, 1.32006, 37.49013}},
	}
	compared := 0
	m.seen = func(layer int, sublayer string, y []float64, streams [][]float64) {
		want, ok := norms[m.pos]
		if !ok {
			return
		}
		compared++
		what := fmt.Sprintf("position %d layer %d %s", m.pos, layer, sublayer)
		if sublayer == "attn" {
			require.InDelta(t, want[layer][0], norm(y), 2e-4, what)
		} else {
			require.InDelta(t, want[layer][1], norm(y), 2e-4, what)
			require.InDelta(t, want[layer][2], norm(slices.Concat(streams...)), 2e-4, what)
		}
		if m.pos == 0 && layer == 0 {
			near(map[string][]float64{"attn": {0.993882, -0.172051, 0.506558}, "ffn": {0.117615, -0.024231, -0.187162}}[sublayer], y, what)
		}
	}
	m.run(201)
	require.Equal(t, 2*6*2, compared)
	require.Equal(t, []int{1, 3, 13, 16, 43, 49}, m.layers[2].picks)
	require.Equal(t, []int{1, 8, 9, 32, 45, 49}, m.layers[4].picks)
}

// TestDeepseek4Mistakes is the table of 5.4. Our engine and the equations above, which share nothing, agree at every
// position of the fixture. With one thing done wrong the equations first leave the right logits at the position, and by
// as much, as it says there; so an engine that made the mistake would fail [TestDeepseek4Fixture] and this test.
func TestDeepseek4Mistakes(t *testing.T) {
	arithmetic(t)
	const tolerance = 1e-3 // of the fixture
	distance := func(a []float64, b []float32) (worst float64) {
		for i, v := range b {
			worst = max(worst, math.Abs(a[i]-float64(v)))
		}
		return worst
	}
	ours := runFixture(t, fixture(t), fixtureTokens).logits
	for p, right := range (&fixtureModel{}).run(fixtureTokens) {
		require.Less(t, distance(right, ours[p]), tolerance/10, "position %d", p)
	}
	mistakes := map[string]struct {
		first int
		delta float64
	}{
		"C used transposed":                                 {0, 0.25},
		"post without factor 2":                             {0, 1.34},
		"3 Sinkhorn iterations instead of 20":               {0, 0.023},
		"no per-head q norm":                                {0, 0.14},
		"sink left out":                                     {0, 1.70},
		"clamp gate after SiLU instead of before":           {0, 0.46},
		"router: selection without bias":                    {0, 0.29},
		"router: biased weights":                            {0, 0.054},
		"router: sigmoid instead of sqrt(softplus) weights": {0, 0.11},
		"no inverse RoPE":                                   {1, 0.80},
		"half-split (NeoX) instead of interleaved pairs":    {1, 1.05},
		"compressed layers with base 10000, no YaRN":        {1, 0.073},
		"window layers with the compressed RoPE":            {1, 0.063},
		"YaRN off in compressed layers":                     {1, 0.037},
		"row RoPE at last token of block":                   {3, 0.29},
		"channel halves swapped in the ratio-4 pool":        {3, 1.53},
		"block 0 pooled with four zero entries":             {3, 0.48},
		"no overlap in the ratio-4 pool":                    {7, 0.36},
		"row RoPE at block index instead of block start":    {7, 0.22},
		"window W+1 keys":                                   {8, 0.76},
		"indexer without ReLU":                              {27, 0.47},
		"indexer with absolute weights":                     {27, 0.41},
	}
	require.Len(t, mistakes, 22)
	right := (&fixtureModel{}).run(28)
	for _, mistake := range slices.Sorted(maps.Keys(mistakes)) {
		t.Run(mistake, func(t *testing.T) {
			want := mistakes[mistake]
			for p, wrong := range (&fixtureModel{mistake: mistake}).run(want.first + 1) {
				var worst float64
				for i, v := range wrong {
					worst = max(worst, math.Abs(v-right[p][i]))
				}
				if p < want.first {
					require.Less(t, worst, 1e-6, "position %d", p)
					continue
				}
				require.InEpsilon(t, want.delta, worst, 0.05, "position %d", p)
				require.Greater(t, distance(wrong, ours[p]), tolerance, "ours makes the mistake")
			}
		})
	}
}
