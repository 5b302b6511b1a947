package recipe

import "strconv"

// op is one op before it is written. Operands left out at the end need no placeholder.
type op struct {
	kind    string
	in      []Value
	weights []Weight
	states  []State
	bank    Bank
	attrs   wire
}

// Attributes that are zero are left out, which means the default of docs/ops.md.

func (o *op) int(name string, v int) *op {
	if v != 0 {
		start := o.openAttr(name)
		o.attrs.tag(2, varintField)
		o.attrs.varint(uint64(v))
		o.attrs.close(start)
	}
	return o
}

func (o *op) float(name string, v float64) *op {
	if v != 0 {
		start := o.openAttr(name)
		o.attrs.double(3, v)
		o.attrs.close(start)
	}
	return o
}

func (o *op) text(name, v string) *op {
	if v != "" {
		start := o.openAttr(name)
		o.attrs.element(4, v)
		o.attrs.close(start)
	}
	return o
}

func (o *op) flag(name string, v bool) *op {
	if v {
		start := o.openAttr(name)
		o.attrs.tag(5, varintField)
		o.attrs.varint(1)
		o.attrs.close(start)
	}
	return o
}

func (o *op) openAttr(name string) (start int) {
	if o.attrs == nil {
		o.attrs = make(wire, 0, 256)
	}
	start = o.attrs.open(7)
	o.attrs.text(1, name)
	return start
}

// write appends the op to the block and returns the names of its outputs, with the block's prefix.
func (b *Builder) write(o *op, out ...string) []Value {
	if !b.inBlock {
		b.Refuse(bug, "op "+o.kind+" outside a block")
	}
	w := &b.blocks
	start := w.open(3)
	w.text(1, o.kind)
	repeat(w, 2, o.in)
	repeat(w, 3, o.weights)
	repeat(w, 4, o.states)
	w.text(5, string(o.bank))
	values := make([]Value, len(out))
	for i, name := range out {
		values[i] = Value(b.prefix + name)
		w.element(6, string(values[i]))
	}
	*w = append(*w, o.attrs...)
	w.close(start)
	return values
}

func (b *Builder) one(o *op, out string) Value { return b.write(o, out)[0] }

func repeat[T ~string](w *wire, field int, names []T) {
	for len(names) > 0 && names[len(names)-1] == "" {
		names = names[:len(names)-1]
	}
	for _, n := range names {
		w.element(field, string(n))
	}
}

// Embed looks the batch's tokens up in a table and multiplies by scale, which is 1 for none.
func (b *Builder) Embed(name string, table Weight, scale float64) Value {
	o := &op{kind: "embed", weights: []Weight{table}}
	if scale == 0 { // which a plan cannot tell from the default
		b.Refuse(bug, "embedding "+strconv.Quote(name)+" has the scale 0: 1 is none")
	}
	if scale != 1 {
		o.float("scale", scale)
	}
	return b.one(o, name)
}

// TokenRow looks the batch's tokens up in a table of integers.
func (b *Builder) TokenRow(name string, table Weight) Value {
	return b.one(&op{kind: "token_row", weights: []Weight{table}}, name)
}

// RMSNorm divides each group of elements (0: the whole row) by its root mean square and multiplies by the weight.
func (b *Builder) RMSNorm(name string, x Value, weight Weight, eps float64, group int) Value {
	o := &op{kind: "rms_norm", in: []Value{x}, weights: []Weight{weight}}
	return b.one(o.float("eps", eps).int("group", group), name)
}

// L2Norm divides each group of elements by its Euclidean norm. mode says how eps enters: "add", "max" or "add_mean".
func (b *Builder) L2Norm(name string, x Value, eps float64, group int, mode string) Value {
	o := &op{kind: "l2_norm", in: []Value{x}}
	return b.one(o.float("eps", eps).int("group", group).text("mode", mode), name)
}

// Linear multiplies by a matrix {in, out} and adds the bias, if there is one.
func (b *Builder) Linear(name string, x Value, weight, bias Weight) Value {
	return b.one(&op{kind: "linear", in: []Value{x}, weights: []Weight{weight, bias}}, name)
}

// LinearExact is [Builder.Linear] with 32-bit activations, never rounded to fewer bits: routers need it.
func (b *Builder) LinearExact(name string, x Value, weight, bias Weight) Value {
	o := &op{kind: "linear", in: []Value{x}, weights: []Weight{weight, bias}}
	return b.one(o.flag("exact", true), name)
}

// LinearGroups is [Builder.Linear] applied to groups parts of the row, each with its own rows of the matrix.
func (b *Builder) LinearGroups(name string, x Value, weight, bias Weight, groups int) Value {
	o := &op{kind: "linear", in: []Value{x}, weights: []Weight{weight, bias}}
	return b.one(o.int("groups", groups), name)
}

// Rope says how rotary position encoding turns pairs of elements. Zero fields take the defaults of docs/ops.md.
type Rope struct {
	Rotated         int    // elements of each head that turn
	Layout          string // "neox" or "interleaved"
	Base            float64
	Scaling         string // "none", "linear" or "yarn"
	Factor          float64
	OriginalContext int // positions before scaling
	BetaFast        float64
	BetaSlow        float64
	Untruncated     bool
	Magnitude       float64
	Divisors        Weight // of the angles, one for each pair
	HeadDim         int
	Offset          int // of the first element that turns, in each head
	Inverse         bool
}

func (o *op) rope(r Rope) *op {
	return o.int("n_rot", r.Rotated).text("layout", r.Layout).float("base", r.Base).text("scaling", r.Scaling).
		float("factor", r.Factor).int("original_context", r.OriginalContext).float("beta_fast", r.BetaFast).
		float("beta_slow", r.BetaSlow).flag("untruncated", r.Untruncated).float("magnitude", r.Magnitude)
}

// Rope turns the elements of each head by angles that grow with the position.
func (b *Builder) Rope(name string, x Value, r Rope) Value {
	o := &op{kind: "rope", in: []Value{x}, weights: []Weight{r.Divisors}}
	return b.one(o.int("head_dim", r.HeadDim).int("offset", r.Offset).flag("inverse", r.Inverse).rope(r), name)
}

// Attention holds the operands and attributes of an attention op.
type Attention struct {
	Q, K, V        Value // K and V are stored first; without them the cache is only read
	Rows           Value // of the compressed cache, from [Builder.IndexTop]
	Sinks          Weight
	Cache          State
	Compressed     State
	Heads, KVHeads int
	HeadDim        int
	ValueDim       int // 0: as HeadDim
	Scale          float64
	Window         int // positions that are seen, the token's own included; 0: all
	Softcap        float64
}

// Attention stores the keys and values of the batch and lets each query look at all positions up to its own.
func (b *Builder) Attention(name string, a Attention) Value {
	o := &op{kind: "attention", in: []Value{a.Q, a.K, a.V, a.Rows}, weights: []Weight{a.Sinks}, states: []State{a.Cache, a.Compressed}}
	o.int("heads", a.Heads).int("kv_heads", a.KVHeads).int("head_dim", a.HeadDim).int("value_dim", a.ValueDim)
	return b.one(o.float("scale", a.Scale).int("window", a.Window).float("softcap", a.Softcap), name)
}

// Compress holds the operands and attributes of a compress op.
type Compress struct {
	KV, Gate      Value
	APE, Norm     Weight
	Pending, Rows State
	Ratio, Dim    int
	Overlap       bool
	Eps           float64
	Rope          Rope
}

// Compress folds each run of Ratio positions into one row of the compressed cache.
func (b *Builder) Compress(c Compress) {
	o := &op{kind: "compress", in: []Value{c.KV, c.Gate}, weights: []Weight{c.APE, c.Norm}, states: []State{c.Pending, c.Rows}}
	b.write(o.int("ratio", c.Ratio).int("dim", c.Dim).flag("overlap", c.Overlap).float("eps", c.Eps).rope(c.Rope))
}

// IndexTop picks, for each token, the topK rows of the compressed cache that matter most to it.
func (b *Builder) IndexTop(name string, q, gate Value, rows State, heads, dim, topK int, scale float64) Value {
	o := &op{kind: "index_top", in: []Value{q, gate}, states: []State{rows}}
	return b.one(o.int("heads", heads).int("dim", dim).int("top_k", topK).float("scale", scale), name)
}

// Route holds the operands and attributes of a route op. Zero fields take the defaults of docs/ops.md.
type Route struct {
	Logits    Value
	Picks     Value  // expert ids chosen elsewhere
	Bias      Weight // added for the choice only
	TopK      int
	Gating    string // "softmax", "sigmoid", "sqrt_softplus" or "softmax_selected"
	Normalize bool
	NormFloor float64
	Scale     float64

	Groups, GroupsUsed int // only the experts of the best GroupsUsed of Groups groups are chosen from
}

// Route chooses the experts of each token and their weights, best first.
func (b *Builder) Route(idsName, weightsName string, r Route) (ids, weights Value) {
	o := &op{kind: "route", in: []Value{r.Logits, r.Picks}, weights: []Weight{r.Bias}}
	o.int("top_k", r.TopK).text("gating", r.Gating).flag("normalize", r.Normalize).float("norm_floor", r.NormFloor)
	o.float("scale", r.Scale).int("groups", r.Groups).int("groups_used", r.GroupsUsed)
	out := b.write(o, idsName, weightsName)
	return out[0], out[1]
}

// GLU says how gate and up are combined. Zero fields take the defaults of docs/ops.md.
type GLU struct {
	Activation string // "silu", "gelu_tanh", "swiglu_oai" or "silu_clamped"
	Limit      float64
	Alpha      float64
}

func (o *op) glu(g GLU) *op {
	return o.text("activation", g.Activation).float("limit", g.Limit).float("alpha", g.Alpha)
}

// Experts holds the operands and attributes of an experts op.
type Experts struct {
	X, IDs, Weights            Value
	Bank                       Bank
	GateBias, UpBias, DownBias Weight
	Scale                      Weight // one factor for each expert
	GLU                        GLU
}

// Experts runs each token through its experts and adds their results, in routing order.
func (b *Builder) Experts(name string, e Experts) Value {
	o := &op{kind: "experts", in: []Value{e.X, e.IDs, e.Weights}, bank: e.Bank,
		weights: []Weight{e.GateBias, e.UpBias, e.DownBias, e.Scale}}
	return b.one(o.glu(e.GLU), name)
}

// GLU multiplies the activation of gate by up. Without up, gate holds both halves of the row.
func (b *Builder) GLU(name string, gate, up Value, g GLU) Value {
	o := &op{kind: "glu", in: []Value{gate, up}}
	return b.one(o.glu(g), name)
}

// Add adds two values.
func (b *Builder) Add(name string, x, y Value) Value {
	return b.one(&op{kind: "add", in: []Value{x, y}}, name)
}

// Mul multiplies two values by element; the second may have one element for each row, or for each run of the first.
func (b *Builder) Mul(name string, x, y Value) Value {
	return b.one(&op{kind: "mul", in: []Value{x, y}}, name)
}

// AddWeight adds a vector, repeated along the row.
func (b *Builder) AddWeight(name string, x Value, weight Weight) Value {
	return b.one(&op{kind: "add_weight", in: []Value{x}, weights: []Weight{weight}}, name)
}

// MulWeight multiplies by a vector, repeated along the row.
func (b *Builder) MulWeight(name string, x Value, weight Weight) Value {
	return b.one(&op{kind: "mul_weight", in: []Value{x}, weights: []Weight{weight}}, name)
}

// MulWeightRuns is [Builder.MulWeight] with each number of the vector for run elements in succession.
func (b *Builder) MulWeightRuns(name string, x Value, weight Weight, run int) Value {
	o := &op{kind: "mul_weight", in: []Value{x}, weights: []Weight{weight}}
	return b.one(o.int("run", run), name)
}

// Scale multiplies by a constant, which must not be zero.
func (b *Builder) Scale(name string, x Value, factor float64) Value {
	return b.one((&op{kind: "scale", in: []Value{x}}).float("factor", factor), name)
}

// Unary applies a function to each element: "sigmoid", "silu", "gelu_tanh", "softplus", "tanh", "exp" or "relu".
func (b *Builder) Unary(name, fn string, x Value) Value {
	return b.one((&op{kind: "unary", in: []Value{x}}).text("fn", fn), name)
}

// Softcap bends values so that they stay between -cap and cap.
func (b *Builder) Softcap(name string, x Value, cap float64) Value {
	return b.one((&op{kind: "softcap", in: []Value{x}}).float("cap", cap), name)
}

// Slice takes width elements from start on, of each group of the row (0: of the row).
func (b *Builder) Slice(name string, x Value, group, start, width int) Value {
	return b.one((&op{kind: "slice", in: []Value{x}}).int("group", group).int("start", start).int("width", width), name)
}

// Concat puts the rows of two values behind each other.
func (b *Builder) Concat(name string, x, y Value) Value {
	return b.one(&op{kind: "concat", in: []Value{x, y}}, name)
}

// ConcatGroups cuts the rows of two values into groups parts and puts each part of y behind that of x.
func (b *Builder) ConcatGroups(name string, x, y Value, groups int) Value {
	return b.one((&op{kind: "concat", in: []Value{x, y}}).int("groups", groups), name)
}

// Repeat puts the row times times behind itself.
func (b *Builder) Repeat(name string, x Value, times int) Value {
	return b.one((&op{kind: "repeat", in: []Value{x}}).int("times", times), name)
}

// ShortConv convolves each channel with the inputs before it. The kernel is {taps, channels}, its last tap meets the
// token itself. activation is "none" or "silu".
func (b *Builder) ShortConv(name string, x Value, kernel Weight, history State, activation string) Value {
	o := &op{kind: "short_conv", in: []Value{x}, weights: []Weight{kernel}, states: []State{history}}
	return b.one(o.text("activation", activation), name)
}

// DeltaNet holds the operands and attributes of a gated_delta_net op.
type DeltaNet struct {
	Q, K, V, Beta, Gamma          Value // Gamma: one for each value head, or one for each of its channels
	Memory                        State
	KeyHeads, ValueHeads, HeadDim int
	Map                           string // of value heads to key heads: "tiled" or "grouped"
}

// GatedDeltaNet updates a matrix for each head with every token and reads the query from it.
func (b *Builder) GatedDeltaNet(name string, d DeltaNet) Value {
	o := &op{kind: "gated_delta_net", in: []Value{d.Q, d.K, d.V, d.Beta, d.Gamma}, states: []State{d.Memory}}
	o.int("key_heads", d.KeyHeads).int("value_heads", d.ValueHeads).int("head_dim", d.HeadDim)
	return b.one(o.text("map", d.Map), name)
}

// HyperConnection holds the weights and attributes that mix residual streams.
type HyperConnection struct {
	Fn, Scale, Base Weight
	Streams         int
	Iterations      int     // of the mixing matrix; HCMix only
	Eps             float64 // of the norm
	HCEps           float64
}

// HCMix computes from the streams how a sublayer reads and writes them.
func (b *Builder) HCMix(preName, postName, combName string, streams Value, h HyperConnection) (pre, post, comb Value) {
	o := &op{kind: "hc_mix", in: []Value{streams}, weights: []Weight{h.Fn, h.Scale, h.Base}}
	o.int("streams", h.Streams).int("iterations", h.Iterations).float("eps", h.Eps)
	out := b.write(o.float("hc_eps", h.HCEps), preName, postName, combName)
	return out[0], out[1], out[2]
}

// HCHead computes from the streams how the head reads them.
func (b *Builder) HCHead(name string, streams Value, h HyperConnection) Value {
	o := &op{kind: "hc_head", in: []Value{streams}, weights: []Weight{h.Fn, h.Scale, h.Base}}
	return b.one(o.int("streams", h.Streams).float("eps", h.Eps).float("hc_eps", h.HCEps), name)
}

// HCCollapse adds the streams up, each times its factor.
func (b *Builder) HCCollapse(name string, streams, pre Value, count int) Value {
	return b.one((&op{kind: "hc_collapse", in: []Value{streams, pre}}).int("streams", count), name)
}

// HCExpand mixes the streams and adds a sublayer's result to each, times its factor.
func (b *Builder) HCExpand(name string, streams, y, post, comb Value, count int) Value {
	return b.one((&op{kind: "hc_expand", in: []Value{streams, y, post, comb}}).int("streams", count), name)
}
