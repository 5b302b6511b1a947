package main

import (
	"math"
	"slices"
)

// step runs one op on all tokens of a batch.
type step func(e *evaluation) error

// compilers are the ops: each checks its operands and attributes, defines its outputs, and returns what runs.
var compilers map[string]func(o *op) step

func init() {
	compilers = map[string]func(o *op) step{"embed": embed, "rms_norm": rmsNorm, "linear": linear, "rope": rope, "attention": attention,
		"route": route, "experts": experts, "add": add, "scale": scale}
}

// op is an op of the plan while it is compiled. The first problem is kept.
type op struct {
	m                        *model
	kind, bank               string
	in, weights, states, out []string
	attrs                    map[string]message
	err                      error
}

func (m *model) compile(msg message) (step, error) {
	o := &op{m: m, kind: msg.text(1), in: msg.texts(2), weights: msg.texts(3), states: msg.texts(4), bank: msg.text(5), out: msg.texts(6),
		attrs: map[string]message{}}
	if err := msg.each(7, func(a message) error { o.attrs[a.text(1)] = a; return nil }); err != nil {
		return nil, err
	}
	compiler, ok := compilers[o.kind]
	if !ok {
		return nil, lackf("recipe %q: op %q is not supported", m.recipe, o.kind)
	}
	s := compiler(o)
	for name := range o.attrs {
		o.lack("attribute %q", name)
	}
	return s, o.err
}

func (o *op) fail(err error) {
	if o.err == nil {
		o.err = err
	}
}

func (o *op) lack(format string, args ...any) {
	o.fail(lackf("recipe %q: op %s: "+format+" is not supported", append([]any{o.m.recipe, o.kind}, args...)...))
}

// input returns a value that must exist.
func (o *op) input(i int) (name string, width int) {
	if i >= len(o.in) || o.in[i] == "" {
		o.lack("leaving out operand %d", i)
		return "", 1
	}
	width, ok := o.m.widths[o.in[i]]
	if !ok {
		o.fail(bugf("op %s: value %q is not defined", o.kind, o.in[i]))
		return "", 1
	}
	return o.in[i], width
}

// only refuses operands from the n-th on.
func (o *op) only(inputs, weights int) {
	if n := len(slices.DeleteFunc(slices.Clone(o.in), func(s string) bool { return s == "" })); n > inputs {
		o.lack("operand %q", o.in[len(o.in)-1])
	}
	if n := len(slices.DeleteFunc(slices.Clone(o.weights), func(s string) bool { return s == "" })); n > weights {
		o.lack("weight %q", o.weights[len(o.weights)-1])
	}
}

// weight returns a resident weight, nil if it is left out.
func (o *op) weight(i int) *weight {
	if i >= len(o.weights) || o.weights[i] == "" {
		return nil
	}
	w := o.m.weights[o.weights[i]]
	if w == nil || w.byRows {
		o.fail(bugf("op %s: weight %q does not exist or is by rows", o.kind, o.weights[i]))
		return nil
	}
	return w
}

func (o *op) define(i, width int) string {
	if i >= len(o.out) || o.out[i] == "" || o.m.widths[o.out[i]] != 0 || width <= 0 {
		o.fail(bugf("op %s: output %d is missing, defined twice or %d wide", o.kind, i, width))
		return ""
	}
	o.m.widths[o.out[i]] = width
	o.m.scratch += uint64(width)
	return o.out[i]
}

func (o *op) number(name string, def float64) float64 {
	if a, ok := o.attrs[name]; ok {
		delete(o.attrs, name)
		return a.float(3)
	}
	return def
}

func (o *op) integer(name string, def int) int {
	if a, ok := o.attrs[name]; ok {
		delete(o.attrs, name)
		return int(int64(a.uint(2)))
	}
	return def
}

func (o *op) flag(name string) bool {
	a := o.attrs[name]
	delete(o.attrs, name)
	return a.uint(5) != 0
}

// choice takes the attribute when it has one of these values; any other stays, and is refused.
func (o *op) choice(name string, values ...string) string {
	a, ok := o.attrs[name]
	if !ok {
		return values[0]
	}
	if slices.Contains(values, a.text(4)) {
		delete(o.attrs, name)
	}
	return a.text(4)
}

// each makes a step that computes each row of an output.
func each(out string, f func(e *evaluation, token int, y []float32)) step {
	return func(e *evaluation) error {
		for t, y := range e.make(out) {
			f(e, t, y)
		}
		return nil
	}
}

func embed(o *op) step {
	o.only(0, 1)
	factor := float32(o.number("scale", 1))
	if len(o.weights) == 0 || o.m.weights[o.weights[0]] == nil {
		o.fail(bugf("op embed without a table"))
		return nil
	}
	w := o.m.weights[o.weights[0]]
	out := o.define(0, int(w.shape[0]))
	return func(e *evaluation) error {
		for t, y := range e.make(out) {
			id := uint64(e.tokens[t])
			if e.tokens[t] < 0 || id >= w.rows() {
				return refuse(user, "token %d: the table %q has %d", e.tokens[t], w.name, w.rows())
			}
			from := w.offset + id*w.rowBytes
			if w.byRows {
				from = e.s.layout.rows[w.rowIndex] + uint64(e.first+t)*w.rowBytes
			}
			decodeRow(w.typ, y, e.s.region.bytes[from:][:w.rowBytes])
			for i := range y {
				y[i] *= factor
			}
		}
		return nil
	}
}

func rmsNorm(o *op) step {
	o.only(1, 1)
	x, n := o.input(0)
	w, eps, group := o.weight(0), o.number("eps", 0), o.integer("group", 0)
	if group == 0 {
		group = n
	}
	if group < 0 || n%group != 0 || w != nil && w.shape[0] != uint64(group) {
		o.fail(bugf("op rms_norm: groups of %d in rows of %d", group, n))
		return nil
	}
	return each(o.define(0, n), func(e *evaluation, t int, y []float32) {
		row, factors := e.values[x][t], e.vector(w)
		for at := 0; at < n; at += group {
			var sum float64
			for _, v := range row[at : at+group] {
				sum += float64(v) * float64(v)
			}
			by := 1 / math.Sqrt(sum/float64(group)+eps)
			for i := range group {
				v := float64(row[at+i]) * by
				if w != nil {
					v *= float64(factors[i])
				}
				y[at+i] = float32(v)
			}
		}
	})
}

func linear(o *op) step {
	o.only(1, 2)
	x, n := o.input(0)
	w, b := o.weight(0), o.weight(1)
	o.flag("exact") // activations are never rounded here
	if o.integer("groups", 1) != 1 {
		o.lack("a matrix by groups")
	}
	if w == nil || w.shape[0] != uint64(n) || b != nil && b.shape[0] != w.rows() {
		o.fail(bugf("op linear: the weight does not take rows of %d", n))
		return nil
	}
	return each(o.define(0, int(w.rows())), func(e *evaluation, t int, y []float32) {
		sums, bias := make([]float64, len(y)), e.vector(b)
		e.matrix(w).times(sums, e.values[x][t], 0)
		for i, v := range sums {
			if b != nil {
				v += float64(bias[i])
			}
			y[i] = float32(v)
		}
	})
}

func rope(o *op) step {
	o.only(1, 0)
	x, n := o.input(0)
	dim, turn, offset := o.integer("head_dim", 0), o.integer("n_rot", 0), o.integer("offset", 0)
	base, magnitude, inverse := o.number("base", 10000), o.number("magnitude", 1), o.flag("inverse")
	layout := o.choice("layout", "neox", "interleaved")
	if o.choice("scaling", "none"); o.attrs["scaling"] == nil {
		for _, unused := range []string{"factor", "beta_fast", "beta_slow", "original_context", "untruncated"} {
			delete(o.attrs, unused)
		}
	}
	if dim <= 0 || n%dim != 0 || turn < 0 || turn%2 != 0 || offset < 0 || offset+turn > dim {
		o.fail(bugf("op rope: %d of %d elements from %d on, in rows of %d", turn, dim, offset, n))
		return nil
	}
	return each(o.define(0, n), func(e *evaluation, t int, y []float32) {
		copy(y, e.values[x][t])
		for head := 0; head < n; head += dim {
			part := y[head+offset:]
			for j := range turn / 2 {
				i, k := j, j+turn/2
				if layout == "interleaved" {
					i, k = 2*j, 2*j+1
				}
				angle := float64(e.position+t) * math.Pow(base, -2*float64(j)/float64(turn))
				if inverse {
					angle = -angle
				}
				sin, cos := math.Sincos(angle)
				a, b := float64(part[i]), float64(part[k])
				part[i], part[k] = float32(magnitude*(a*cos-b*sin)), float32(magnitude*(a*sin+b*cos))
			}
		}
	})
}

func add(o *op) step {
	o.only(2, 0)
	a, n := o.input(0)
	b, m := o.input(1)
	if n != m {
		o.fail(bugf("op add: rows of %d and %d", n, m))
		return nil
	}
	return each(o.define(0, n), func(e *evaluation, t int, y []float32) {
		for i, v := range e.values[a][t] {
			y[i] = v + e.values[b][t][i]
		}
	})
}

func scale(o *op) step {
	o.only(1, 0)
	x, n := o.input(0)
	factor := float32(o.number("factor", 0))
	return each(o.define(0, n), func(e *evaluation, t int, y []float32) {
		for i, v := range e.values[x][t] {
			y[i] = factor * v
		}
	})
}

func attention(o *op) step {
	o.only(3, 0)
	heads, kvHeads, dim := o.integer("heads", 0), o.integer("kv_heads", 0), o.integer("head_dim", 0)
	valueDim, scale, window := o.integer("value_dim", 0), o.number("scale", 0), o.integer("window", 0)
	if valueDim == 0 {
		valueDim = dim
	}
	q, qn := o.input(0)
	k, kn := o.input(1)
	v, vn := o.input(2)
	if len(o.states) != 1 {
		o.lack("attention over %d states", len(o.states))
		return nil
	}
	cache := o.m.states[o.states[0]]
	if cache == nil || kvHeads <= 0 || heads%kvHeads != 0 || qn != heads*dim || kn != kvHeads*dim || vn != kvHeads*valueDim ||
		cache.keyWidth != uint64(kn) || cache.valueWidth != uint64(vn) {
		o.fail(bugf("op attention: %d heads of %d, rows of %d, %d and %d", heads, dim, qn, kn, vn))
		return nil
	}
	return each(o.define(0, heads*valueDim), func(e *evaluation, t int, y []float32) {
		at := e.position + t
		copy(cache.keys[at*kn:], e.values[k][t])
		copy(cache.values[at*vn:], e.values[v][t])
		from := 0
		if window > 0 {
			from = max(0, at-window+1)
		}
		for h := range heads {
			query, g := e.values[q][t][h*dim:][:dim], h/(heads/kvHeads)
			scores, top := make([]float64, at+1-from), math.Inf(-1)
			for u := range scores {
				key := cache.keys[(from+u)*kn+g*dim:][:dim]
				for i, x := range query {
					scores[u] += scale * float64(x) * float64(key[i])
				}
				top = max(top, scores[u])
			}
			var sum float64
			out := make([]float64, valueDim)
			for u, s := range scores {
				p := math.Exp(s - top)
				sum += p
				for i, x := range cache.values[(from+u)*vn+g*valueDim:][:valueDim] {
					out[i] += p * float64(x)
				}
			}
			for i, x := range out {
				y[h*valueDim+i] = float32(x / sum)
			}
		}
	})
}
