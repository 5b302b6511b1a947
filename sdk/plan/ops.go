package plan

// OpSpec describes one kind of op: its operands, its attributes and the rule for its output widths. Every value is a
// matrix of one row per token; a width is the length of a row. docs/ops.md has the equation of each.
type OpSpec struct {
	Kind    string
	In      []Operand // values
	Weights []Operand
	States  []StateOperand
	Bank    bool
	Out     []Operand
	Attrs   []AttrSpec

	// widths checks the operands' widths and shapes against the attributes and returns the width of each output.
	widths func(*operands) ([]int64, error)
}

// Operand is a value or weight slot of an op.
type Operand struct {
	Name     string
	Optional bool
	Integer  bool // int32 values (ids) rather than float32
}

// StateOperand is a state slot of an op.
type StateOperand struct {
	Name     string
	Kind     StateKind
	Optional bool
}

// AttrType is the type of an attribute.
type AttrType int

// The attribute types.
const (
	Int AttrType = iota
	Float
	Text
	Flag
)

// AttrSpec is one attribute. A required one has no default.
type AttrSpec struct {
	Name     string
	Type     AttrType
	Required bool
	Default  any      // int64, float64, string or bool; nil when required
	Min, Max float64  // inclusive bounds for Int and Float; both 0 = any finite value
	OneOf    []string // permitted texts
}

const (
	maxWidth = 1 << 24 // elements in one row of a value
	maxCount = 1 << 20 // heads, experts, taps …
)

func count(name string) AttrSpec {
	return AttrSpec{Name: name, Type: Int, Required: true, Min: 1, Max: maxCount}
}
func countOr(name string, def int64) AttrSpec {
	return AttrSpec{Name: name, Type: Int, Default: def, Min: 0, Max: maxCount}
}
func number(name string, def float64) AttrSpec {
	return AttrSpec{Name: name, Type: Float, Default: def}
}
func epsilon() AttrSpec {
	return AttrSpec{Name: "eps", Type: Float, Required: true, Min: 1e-20, Max: 1}
}
func choice(name string, oneOf ...string) AttrSpec {
	return AttrSpec{Name: name, Type: Text, Default: oneOf[0], OneOf: oneOf}
}
func flag(name string) AttrSpec { return AttrSpec{Name: name, Type: Flag, Default: false} }

func vals(names ...string) []Operand {
	out := make([]Operand, len(names))
	for i, n := range names {
		out[i] = Operand{Name: n}
	}
	return out
}
func optional(name string) Operand { return Operand{Name: name, Optional: true} }
func ids(name string) Operand      { return Operand{Name: name, Integer: true} }

// ropeAttrs are shared by every op that rotates. magnitude multiplies cosine and sine.
func ropeAttrs() []AttrSpec {
	return []AttrSpec{
		{Name: "n_rot", Type: Int, Required: true, Min: 0, Max: maxCount},
		choice("layout", "neox", "interleaved"),
		{Name: "base", Type: Float, Default: 10000.0, Min: 1e-3, Max: 1e12},
		choice("scaling", "none", "linear", "yarn"),
		{Name: "factor", Type: Float, Default: 1.0, Min: 1e-6, Max: 1e6},
		{Name: "original_context", Type: Int, Default: int64(0), Min: 0, Max: 1 << 40},
		{Name: "beta_fast", Type: Float, Default: 32.0, Min: 1e-6, Max: 1e6},
		{Name: "beta_slow", Type: Float, Default: 1.0, Min: 1e-6, Max: 1e6},
		flag("untruncated"),
		{Name: "magnitude", Type: Float, Default: 1.0, Min: -1e6, Max: 1e6},
	}
}

func gluAttrs() []AttrSpec {
	return []AttrSpec{
		choice("activation", "silu", "gelu_tanh", "swiglu_oai", "silu_clamped"),
		{Name: "limit", Type: Float, Default: 0.0, Min: 0, Max: 1e9},
		{Name: "alpha", Type: Float, Default: 1.0, Min: -1e9, Max: 1e9},
	}
}

// Ops returns the vocabulary: every op a plan may use, in the order of docs/ops.md.
func Ops() []OpSpec { return ops }

// Lookup returns the spec of an op kind.
func Lookup(kind string) (OpSpec, bool) {
	i, ok := opIndex[kind]
	if !ok {
		return OpSpec{}, false
	}
	return ops[i], true
}

var opIndex = func() map[string]int {
	m := make(map[string]int, len(ops))
	for i, o := range ops {
		m[o.Kind] = i
	}
	return m
}()

var ops = []OpSpec{
	{Kind: "embed", Weights: vals("table"), Out: vals("x"),
		Attrs: []AttrSpec{number("scale", 1)},
		widths: func(o *operands) ([]int64, error) {
			return []int64{int64(o.shape(0)[0])}, o.rank(0, 2)
		}},
	{Kind: "token_row", Weights: vals("table"), Out: []Operand{ids("ids")},
		widths: func(o *operands) ([]int64, error) {
			return []int64{int64(o.shape(0)[0])}, o.rank(0, 2)
		}},
	{Kind: "rms_norm", In: vals("x"), Weights: []Operand{optional("weight")}, Out: vals("y"),
		Attrs: []AttrSpec{epsilon(), countOr("group", 0)},
		widths: func(o *operands) ([]int64, error) {
			g, err := o.group(o.width(0))
			if err != nil {
				return nil, err
			}
			return []int64{o.width(0)}, o.vector(0, g)
		}},
	{Kind: "l2_norm", In: vals("x"), Out: vals("y"),
		Attrs: []AttrSpec{epsilon(), countOr("group", 0), choice("mode", "add", "max", "add_mean")},
		widths: func(o *operands) ([]int64, error) {
			_, err := o.group(o.width(0))
			return []int64{o.width(0)}, err
		}},
	{Kind: "linear", In: vals("x"), Weights: []Operand{{Name: "weight"}, optional("bias")}, Out: vals("y"),
		Attrs: []AttrSpec{countOr("groups", 1), flag("exact")},
		widths: func(o *operands) ([]int64, error) {
			if err := o.rank(0, 2); err != nil {
				return nil, err
			}
			g, s := max(o.i("groups"), 1), o.shape(0)
			if int64(s[0])*g != o.width(0) || int64(s[1])%g != 0 {
				return nil, o.errf("weight %v with %d group(s) does not fit an input of width %d", s, g, o.width(0))
			}
			return []int64{int64(s[1])}, o.vector(1, int64(s[1]))
		}},
	{Kind: "rope", In: vals("x"), Weights: []Operand{optional("divisors")}, Out: vals("y"),
		Attrs: append([]AttrSpec{count("head_dim"), countOr("offset", 0), flag("inverse")}, ropeAttrs()...),
		widths: func(o *operands) ([]int64, error) {
			d, n, off := o.i("head_dim"), o.i("n_rot"), o.i("offset")
			if o.width(0)%d != 0 || n%2 != 0 || off+n > d {
				return nil, o.errf("width %d, head_dim %d, n_rot %d, offset %d do not fit together", o.width(0), d, n, off)
			}
			return []int64{o.width(0)}, o.vector(0, n/2)
		}},
	{Kind: "attention",
		In:      []Operand{{Name: "q"}, optional("k"), optional("v"), {Name: "rows", Optional: true, Integer: true}},
		Weights: []Operand{optional("sinks")},
		States:  []StateOperand{{Name: "cache", Kind: StateKind_KV}, {Name: "compressed", Kind: StateKind_COMPRESSED, Optional: true}},
		Out:     vals("o"),
		Attrs: []AttrSpec{count("heads"), count("kv_heads"), count("head_dim"), countOr("value_dim", 0),
			{Name: "scale", Type: Float, Required: true, Min: 1e-9, Max: 1e9},
			{Name: "window", Type: Int, Default: int64(0), Min: 0, Max: 1 << 40}, {Name: "softcap", Type: Float, Default: 0.0, Min: 0, Max: 1e9}},
		widths: func(o *operands) ([]int64, error) {
			h, g, d := o.i("heads"), o.i("kv_heads"), o.i("head_dim")
			vd := o.i("value_dim")
			if vd == 0 {
				vd = d
			}
			st := o.state(0)
			switch {
			case h%g != 0:
				return nil, o.errf("%d heads are not a multiple of %d kv heads", h, g)
			case o.width(0) != h*d:
				return nil, o.errf("q has width %d, %d heads of %d need %d", o.width(0), h, d, h*d)
			case o.has(1) && o.width(1) != g*d:
				return nil, o.errf("k has width %d, %d kv heads of %d need %d", o.width(1), g, d, g*d)
			case o.has(2) && o.width(2) != g*vd:
				return nil, o.errf("v has width %d, %d kv heads of %d need %d", o.width(2), g, vd, g*vd)
			case !o.has(1) && o.has(2):
				return nil, o.errf("v without k")
			case int64(st.KeyWidth) != g*d:
				return nil, o.errf("cache %q has key width %d, needs %d", st.Name, st.KeyWidth, g*d)
			case o.has(1) && o.has(2) != (st.ValueWidth != 0):
				return nil, o.errf("cache %q has value width %d: v is to be given exactly if there are values", st.Name, st.ValueWidth)
			case st.ValueWidth == 0 && vd != d:
				return nil, o.errf("the keys of cache %q are its values: value_dim %d, needs head_dim %d", st.Name, vd, d)
			case st.ValueWidth != 0 && int64(st.ValueWidth) != g*vd:
				return nil, o.errf("cache %q has value width %d, needs %d", st.Name, st.ValueWidth, g*vd)
			case o.states[1] != nil && o.states[1].KeyWidth != st.KeyWidth:
				return nil, o.errf("compressed rows of %d elements beside keys of %d", o.states[1].KeyWidth, st.KeyWidth)
			case o.has(3) && o.states[1] == nil:
				return nil, o.errf("rows without a state to take them from")
			case st.Window != 0 && (o.i("window") == 0 || uint64(o.i("window")) > st.Window):
				return nil, o.errf("cache %q keeps %d positions, attention sees %d (0 = all)", st.Name, st.Window, o.i("window"))
			}
			return []int64{h * vd}, o.vector(0, h)
		}},
	{Kind: "compress", In: vals("kv", "gate"), Weights: vals("ape", "norm"),
		States: []StateOperand{{Name: "pending", Kind: StateKind_RECURRENT}, {Name: "rows", Kind: StateKind_COMPRESSED}},
		Attrs:  append([]AttrSpec{count("ratio"), count("dim"), flag("overlap"), epsilon()}, ropeAttrs()...),
		widths: func(o *operands) ([]int64, error) {
			d, r := o.i("dim"), o.i("ratio")
			w := d
			if o.b("overlap") {
				w = 2 * d
			}
			if o.width(0) != w || o.width(1) != w {
				return nil, o.errf("kv and gate have widths %d and %d, need %d", o.width(0), o.width(1), w)
			}
			if s := o.shape(0); len(s) != 2 || int64(s[0]) != w || int64(s[1]) != r {
				return nil, o.errf("ape is %v, need [%d %d]", s, w, r)
			}
			if st := o.state(1); int64(st.KeyWidth) != d || int64(st.Ratio) != r {
				return nil, o.errf("state %q does not hold rows of %d per %d positions", st.Name, d, r)
			}
			blocks := int64(1) // whose entries are pending: the one being filled and, where they overlap, the one before
			if o.b("overlap") {
				blocks = 2
			}
			if want := 2 * blocks * r * w; int64(o.state(0).Elements) != want { // kv and score of each position
				return nil, o.errf("state %q has %d elements, need %d", o.state(0).Name, o.state(0).Elements, want)
			}
			if n := o.i("n_rot"); n > d || n%2 != 0 {
				return nil, o.errf("n_rot %d of %d", n, d)
			}
			return nil, o.vector(1, d)
		}},
	{Kind: "index_top", In: vals("q", "gate"), States: []StateOperand{{Name: "rows", Kind: StateKind_COMPRESSED}}, Out: []Operand{ids("rows")},
		Attrs: []AttrSpec{count("heads"), count("dim"), count("top_k"), number("scale", 1)},
		widths: func(o *operands) ([]int64, error) {
			if o.width(0) != o.i("heads")*o.i("dim") || o.width(1) != o.i("heads") || int64(o.state(0).KeyWidth) != o.i("dim") {
				return nil, o.errf("q %d, gate %d and rows %d do not fit %d heads of %d",
					o.width(0), o.width(1), o.state(0).KeyWidth, o.i("heads"), o.i("dim"))
			}
			return []int64{o.i("top_k")}, nil
		}},
	{Kind: "route", In: []Operand{{Name: "logits"}, {Name: "picks", Optional: true, Integer: true}}, Weights: []Operand{optional("bias")},
		Out: []Operand{ids("ids"), {Name: "weights"}},
		Attrs: []AttrSpec{count("top_k"), choice("gating", "softmax", "sigmoid", "sqrt_softplus", "softmax_selected"),
			flag("normalize"), {Name: "norm_floor", Type: Float, Default: 0.0, Min: 0, Max: 1}, number("scale", 1),
			countOr("groups", 1), countOr("groups_used", 0)},
		widths: func(o *operands) ([]int64, error) {
			k := o.i("top_k")
			if g := max(o.i("groups"), 1); g > 1 {
				n, used := o.width(0)/g, o.i("groups_used")
				if used == 0 {
					used = g
				}
				switch {
				case o.has(1):
					return nil, o.errf("picks are given, and %d groups to choose from", g)
				case o.width(0)%g != 0 || used > g:
					return nil, o.errf("%d of %d groups of %d experts", used, g, o.width(0))
				case k > used*n:
					return nil, o.errf("top_k %d of %d groups of %d experts", k, used, n)
				}
			}
			if k > o.width(0) {
				return nil, o.errf("top_k %d of %d experts", k, o.width(0))
			}
			if o.has(1) && o.width(1) != k {
				return nil, o.errf("picks have width %d, top_k is %d", o.width(1), k)
			}
			return []int64{k, k}, o.vector(0, o.width(0))
		}},
	{Kind: "experts", In: []Operand{{Name: "x"}, ids("ids"), {Name: "weights"}}, Bank: true, Out: vals("y"),
		Weights: []Operand{optional("gate_bias"), optional("up_bias"), optional("down_bias"), optional("scale")},
		Attrs:   gluAttrs(),
		widths: func(o *operands) ([]int64, error) {
			e, f, err := o.bankWidths()
			if err != nil {
				return nil, err
			}
			if o.width(0) != e || o.width(1) != o.width(2) {
				return nil, o.errf("x has width %d, the experts of bank %q take %d; %d ids, %d weights",
					o.width(0), o.bank.Name, e, o.width(1), o.width(2))
			}
			n := int64(o.bank.Experts)
			for i, w := range []int64{f, f, e} {
				if err := o.matrix(i, w, n); err != nil {
					return nil, err
				}
			}
			return []int64{e}, o.vector(3, n)
		}},
	{Kind: "glu", In: []Operand{{Name: "gate"}, optional("up")}, Out: vals("y"), Attrs: gluAttrs(),
		widths: func(o *operands) ([]int64, error) {
			if !o.has(1) {
				if o.width(0)%2 != 0 {
					return nil, o.errf("fused gate and up have odd width %d", o.width(0))
				}
				return []int64{o.width(0) / 2}, nil
			}
			return []int64{o.width(0)}, o.same(0, 1)
		}},
	{Kind: "add", In: vals("a", "b"), Out: vals("y"),
		widths: func(o *operands) ([]int64, error) { return []int64{o.width(0)}, o.same(0, 1) }},
	{Kind: "mul", In: vals("a", "b"), Out: vals("y"),
		widths: func(o *operands) ([]int64, error) {
			if o.width(1) == 0 || o.width(0)%o.width(1) != 0 {
				return nil, o.errf("widths %d and %d: the first is not a multiple of the second", o.width(0), o.width(1))
			}
			return []int64{o.width(0)}, nil
		}},
	{Kind: "add_weight", In: vals("x"), Weights: vals("weight"), Out: vals("y"), widths: broadcast},
	{Kind: "mul_weight", In: vals("x"), Weights: vals("weight"), Out: vals("y"), Attrs: []AttrSpec{countOr("run", 1)},
		widths: func(o *operands) ([]int64, error) {
			s, run := o.shape(0), max(o.i("run"), 1)
			if len(s) != 1 || s[0] == 0 || o.width(0)%run != 0 || o.width(0)/run%int64(s[0]) != 0 {
				return nil, o.errf("weight %v, each number for %d elements, does not repeat over a width of %d", s, run, o.width(0))
			}
			return []int64{o.width(0)}, nil
		}},
	{Kind: "scale", In: vals("x"), Out: vals("y"), Attrs: []AttrSpec{{Name: "factor", Type: Float, Required: true}}, widths: elementwise},
	{Kind: "unary", In: vals("x"), Out: vals("y"),
		Attrs:  []AttrSpec{choice("fn", "sigmoid", "silu", "gelu_tanh", "softplus", "tanh", "exp", "relu")},
		widths: elementwise},
	{Kind: "softcap", In: vals("x"), Out: vals("y"),
		Attrs:  []AttrSpec{{Name: "cap", Type: Float, Required: true, Min: 1e-6, Max: 1e9}},
		widths: elementwise},
	{Kind: "slice", In: vals("x"), Out: vals("y"), Attrs: []AttrSpec{countOr("group", 0), countOr("start", 0), count("width")},
		widths: func(o *operands) ([]int64, error) {
			g, err := o.group(o.width(0))
			if err != nil {
				return nil, err
			}
			if o.i("start")+o.i("width") > g {
				return nil, o.errf("slice %d+%d of a group of %d", o.i("start"), o.i("width"), g)
			}
			return []int64{o.width(0) / g * o.i("width")}, nil
		}},
	{Kind: "concat", In: vals("a", "b"), Out: vals("y"), Attrs: []AttrSpec{countOr("groups", 1)},
		widths: func(o *operands) ([]int64, error) {
			if g := max(o.i("groups"), 1); o.width(0)%g != 0 || o.width(1)%g != 0 {
				return nil, o.errf("widths %d and %d are not %d groups", o.width(0), o.width(1), g)
			}
			return []int64{o.width(0) + o.width(1)}, nil
		}},
	{Kind: "repeat", In: vals("x"), Out: vals("y"), Attrs: []AttrSpec{count("times")},
		widths: func(o *operands) ([]int64, error) { return []int64{o.width(0) * o.i("times")}, nil }},
	{Kind: "short_conv", In: vals("x"), Weights: vals("kernel"), States: []StateOperand{{Name: "history", Kind: StateKind_CONVOLUTION}}, Out: vals("y"),
		Attrs: []AttrSpec{choice("activation", "none", "silu")},
		widths: func(o *operands) ([]int64, error) {
			s := o.shape(0)
			if len(s) != 2 || int64(s[1]) != o.width(0) || s[0] < 2 {
				return nil, o.errf("kernel is %v, need [taps %d] with at least 2 taps", s, o.width(0))
			}
			if want := (s[0] - 1) * s[1]; o.state(0).Elements != want {
				return nil, o.errf("state %q has %d elements, need %d", o.state(0).Name, o.state(0).Elements, want)
			}
			return []int64{o.width(0)}, nil
		}},
	{Kind: "gated_delta_net", In: vals("q", "k", "v", "beta", "gamma"), States: []StateOperand{{Name: "memory", Kind: StateKind_RECURRENT}}, Out: vals("o"),
		Attrs: []AttrSpec{count("key_heads"), count("value_heads"), count("head_dim"), choice("map", "tiled", "grouped")},
		widths: func(o *operands) ([]int64, error) {
			nk, nv, d := o.i("key_heads"), o.i("value_heads"), o.i("head_dim")
			for i, w := range []int64{nk * d, nk * d, nv * d, nv, nv} {
				if i == 4 && o.width(i) == nv*d {
					continue // a decay for every key channel
				}
				if o.width(i) != w {
					return nil, o.errf("operand %d has width %d, need %d", i, o.width(i), w)
				}
			}
			if nv%nk != 0 || int64(o.state(0).Elements) != nv*d*d {
				return nil, o.errf("%d value heads, %d key heads, state of %d elements (need %d)", nv, nk, o.state(0).Elements, nv*d*d)
			}
			return []int64{nv * d}, nil
		}},
	{Kind: "hc_mix", In: vals("streams"), Weights: vals("fn", "scale", "base"), Out: vals("pre", "post", "comb"),
		Attrs: []AttrSpec{count("streams"), count("iterations"), epsilon(), number("hc_eps", 1e-6)},
		widths: func(o *operands) ([]int64, error) {
			s := o.i("streams")
			n := 2*s + s*s
			if o.width(0)%s != 0 {
				return nil, o.errf("width %d is not %d streams", o.width(0), s)
			}
			if err := o.matrix(0, o.width(0), n); err != nil {
				return nil, err
			}
			if err := o.vector(1, 3); err != nil {
				return nil, err
			}
			return []int64{s, s, s * s}, o.vector(2, n)
		}},
	{Kind: "hc_head", In: vals("streams"), Weights: vals("fn", "scale", "base"), Out: vals("pre"),
		Attrs: []AttrSpec{count("streams"), epsilon(), number("hc_eps", 1e-6)},
		widths: func(o *operands) ([]int64, error) {
			s := o.i("streams")
			if err := o.matrix(0, o.width(0), s); err != nil {
				return nil, err
			}
			if err := o.vector(1, 1); err != nil {
				return nil, err
			}
			return []int64{s}, o.vector(2, s)
		}},
	{Kind: "hc_collapse", In: vals("streams", "pre"), Out: vals("x"), Attrs: []AttrSpec{count("streams")},
		widths: func(o *operands) ([]int64, error) {
			s := o.i("streams")
			if o.width(0)%s != 0 || o.width(1) != s {
				return nil, o.errf("width %d is not %d streams with %d factors", o.width(0), s, o.width(1))
			}
			return []int64{o.width(0) / s}, nil
		}},
	{Kind: "hc_expand", In: vals("streams", "y", "post", "comb"), Out: vals("streams"), Attrs: []AttrSpec{count("streams")},
		widths: func(o *operands) ([]int64, error) {
			s := o.i("streams")
			if o.width(0)%s != 0 || o.width(1)*s != o.width(0) || o.width(2) != s || o.width(3) != s*s {
				return nil, o.errf("widths %d, %d, %d, %d do not fit %d streams", o.width(0), o.width(1), o.width(2), o.width(3), s)
			}
			return []int64{o.width(0)}, nil
		}},
}

func elementwise(o *operands) ([]int64, error) { return []int64{o.width(0)}, nil }

// broadcast: a vector that the row's width is a multiple of, repeated along the row.
func broadcast(o *operands) ([]int64, error) {
	s := o.shape(0)
	if len(s) != 1 || s[0] == 0 || o.width(0)%int64(s[0]) != 0 {
		return nil, o.errf("weight %v does not repeat over a width of %d", s, o.width(0))
	}
	return []int64{o.width(0)}, nil
}
