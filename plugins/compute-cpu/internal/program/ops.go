package program

import (
	"math"

	"github.com/bigmoe/bigmoe/plugins/compute-cpu/internal/kernel"
	"github.com/bigmoe/bigmoe/sdk/dtype"
	"github.com/bigmoe/bigmoe/sdk/fault"
	"github.com/bigmoe/bigmoe/sdk/plan"
)

// compilers holds what the backend can do: each emits the steps of one op.
var compilers map[string]func(c *compiler) error

func init() {
	compilers = map[string]func(c *compiler) error{
		"embed":      embed,
		"rms_norm":   rmsNorm,
		"linear":     linear,
		"rope":       rope,
		"attention":  attend,
		"route":      routing,
		"experts":    routed,
		"glu":        glu,
		"add":        add,
		"mul":        mul,
		"add_weight": addWeight,
		"mul_weight": mulWeight,
		"scale":      scale,
		"unary":      unary,
		"softcap":    softcap,
		"slice":      slice,
		"concat":     concat,
		"repeat":     repeat,

		"token_row":   tokenRow,
		"compress":    compressing,
		"index_top":   indexing,
		"hc_mix":      hcMix,
		"hc_head":     hcHead,
		"hc_collapse": hcCollapse,
		"hc_expand":   hcExpand,

		"short_conv":      shortConv,
		"l2_norm":         l2Norm,
		"gated_delta_net": gatedDeltaNet,
	}
}

// rows emits a step that computes each row on its own, at about cost operations per element of out.
func (c *compiler) rows(out ref, cost int, row func(m *Machine, worker, i int)) error {
	c.emit(&rowwise{head: c.head, cost: cost * out.width(), row: row})
	return nil
}

func embed(c *compiler) error {
	table, out := c.weightAt(0), c.out(0)
	factor, late := float32(c.attrs.Float("scale")), c.head
	c.emit(&embedding{table, rowwise{head: c.head, cost: 2 * out.width(), row: func(m *Machine, _, i int) {
		x := m.floats(out, i)
		m.set.Dequantize(table.t, x, table.tokenBytes(m, i, late))
		if factor != 1 {
			times(x, x, factor)
		}
	}}})
	return nil
}

// embedding looks up the rows of the batch's tokens.
type embedding struct {
	table *weight
	rowwise
}

func (s *embedding) run(m *Machine) error {
	for _, id := range m.batch.Tokens {
		if id < 0 || int(id) >= s.table.rows {
			return fault.Userf("token %d: the vocabulary has %d", id, s.table.rows)
		}
	}
	return s.rowwise.run(m)
}

func rmsNorm(c *compiler) error {
	x, w, eps := c.in(0), c.vector(0), float32(c.attrs.Float("eps"))
	out := c.outOver(0, x)
	group := int(c.attrs.Int("group"))
	if group == 0 {
		group = x.width()
	}
	return c.rows(out, 2, func(m *Machine, _, i int) {
		var vec []float32
		if w != nil {
			vec = w.vec
		}
		src, dst := m.floats(x, i), m.floats(out, i)
		for g := 0; g < len(src); g += group {
			m.set.RMSNorm(dst[g:g+group], src[g:g+group], vec, eps)
		}
	})
}

func linear(c *compiler) error {
	// A product of the value that the step before multiplies joins that step.
	step, joins := (*linears)(nil), false
	if n := len(c.p.steps); n > 0 {
		step, joins = c.p.steps[n-1].(*linears)
	}
	if joins = joins && step.head == c.head && step.of == c.values[c.op.In[0]]; joins {
		c.at = len(c.p.steps) - 1
	} else {
		step = &linears{head: c.head, of: c.values[c.op.In[0]]}
	}
	x, w, groups := c.in(0), c.weightAt(0), max(int(c.attrs.Int("groups")), 1)
	act, _ := kernel.ActFor(w.t)
	exact := c.attrs.Flag("exact") && act != kernel.ActF32
	if exact {
		act = kernel.ActF32
		grow(&c.p.work.row, w.n)
	}
	if w.n%act.BlockElems() != 0 {
		return fault.Unsupportedf("weight %q: rows of %d are not a multiple of the %d activations that are rounded together", w.name, w.n, act.BlockElems())
	}
	rx, rounding := c.rounded(x, act)
	if rounding != nil {
		step.roundings = append(step.roundings, rounding)
	}
	out, bias := c.out(0), c.vector(1)
	rows := w.rows / groups
	per := chunkRows(rows, w.rowBytes)
	for g := range groups {
		p := product{w: w, firstRow: g * rows, rows: rows, x: rx, xOffset: act.RowBytes(g * w.n), out: out, bias: bias, exact: exact,
			chunkRows: per, chunks: ceilDiv(rows, per)}
		step.products = append(step.products, p)
		step.chunks += p.chunks
	}
	if !joins {
		c.emit(step)
	}
	return nil
}

// rotations reads the attributes that ops which rotate share.
func (c *compiler) rotations(divisors int) rotation {
	a := c.attrs
	return rotation{nRot: int(a.Int("n_rot")), base: a.Float("base"), scaling: a.Text("scaling"), factor: a.Float("factor"),
		originalContext: a.Int("original_context"), betaFast: a.Float("beta_fast"), betaSlow: a.Float("beta_slow"),
		untruncated: a.Flag("untruncated"), magnitude: a.Float("magnitude"), divisors: divisors, head: c.head}
}

func rope(c *compiler) error {
	r := c.rotations(-1)
	r.inverse = c.attrs.Flag("inverse")
	divisors := c.vector(0)
	if divisors != nil {
		r.divisors = c.weights[divisors.name]
	}
	if err := r.check(); err != nil {
		return err
	}
	table := c.angles[r]
	if table == nil {
		table = &angles{rotation: r, divisors: divisors, table: c.make(8 * (r.nRot / 2))}
		c.angles[r] = table
		c.p.angles = append(c.p.angles, table)
		c.emit(&rowwise{head: c.head, cost: 32 * r.nRot, row: table.fill})
	}
	angle, x := c.use(table.table.buffer), c.in(0)
	out := c.outOver(0, x)
	dim, offset := int(c.attrs.Int("head_dim")), int(c.attrs.Int("offset"))
	interleaved := c.attrs.Text("layout") == "interleaved"
	return c.rows(out, 2, func(m *Machine, _, i int) {
		src, dst, t := m.floats(x, i), m.floats(out, i), m.floats(angle, i)
		copy(dst, src)
		for h := offset; h < len(dst); h += dim {
			rotate(m, dst[h:], t, interleaved)
		}
	})
}

func attend(c *compiler) error {
	a := c.attrs
	c.head = c.head || c.last
	s := &attention{q: c.in(0), head: c.head, heads: int(a.Int("heads")), keyDim: int(a.Int("head_dim")), valueDim: int(a.Int("value_dim")),
		scale: float32(a.Float("scale")), softcap: a.Float("softcap"), window: int(a.Int("window")), sinks: c.vector(0),
		stores: c.has(1), hasV: c.has(2)}
	if s.valueDim == 0 {
		s.valueDim = s.keyDim
	}
	kvHeads := int(a.Int("kv_heads"))
	s.group = s.heads / kvHeads
	var err error
	if s.cache, err = c.cacheFor(0, kvHeads, s.keyDim, s.valueDim); err != nil {
		return err
	}
	if s.cache.layout.ValueDim == 0 && s.valueDim != s.keyDim {
		return fault.Corruptf("values are the keys, but value_dim is %d and head_dim %d", s.valueDim, s.keyDim)
	}
	if s.stores {
		s.k = c.inWhole(1)
	}
	if s.hasV {
		s.v = c.inWhole(2)
	}
	scores := int(c.p.options.Context) + 1
	if len(c.op.States) > 1 && c.op.States[1] != "" {
		if kvHeads != 1 || s.cache.layout.ValueDim != 0 {
			return fault.Unsupportedf("the cpu backend attends to compressed rows with one kv head, whose keys are the values, only")
		}
		if s.rows, err = c.compressedFor(1); err != nil {
			return err
		}
		if c.has(3) {
			picks := c.in(3)
			s.picks = &picks
			scores += picks.width()
		} else {
			scores += s.rows.layout.Positions
		}
	}
	s.out = c.out(0)
	grow(&c.p.work.scores, scores)
	grow(&c.p.work.row, s.keyDim)
	c.emit(s)
	return nil
}

func routing(c *compiler) error {
	a := c.attrs
	g := &gating{logits: c.in(0), k: int(a.Int("top_k")), fn: a.Text("gating"), bias: c.vector(0), normalize: a.Flag("normalize"),
		floor: float32(a.Float("norm_floor")), scale: float32(a.Float("scale"))}
	if c.has(1) {
		picks := c.in(1)
		g.picks = &picks
	}
	g.ids, g.weights = c.out(0), c.out(1)
	grow(&c.p.work.row, g.logits.width())
	g.groups, g.groupsUsed = int(a.Int("groups")), int(a.Int("groups_used"))
	if g.bias != nil || g.limits() {
		grow(&c.p.work.rank, g.logits.width()+g.groups)
	}
	c.emit(&route{gating: g, layer: c.block.Layer, rowwise: rowwise{head: c.head, cost: g.logits.width() * (8 + g.k), row: g.pick}})
	for _, op := range c.rest {
		if op.Kind != "experts" {
			continue
		}
		if op.In[1] == c.op.Out[0] && op.In[2] == c.op.Out[1] {
			c.early = c.newExperts(op)
			c.emit(fetch{c.early})
		}
		break // an experts op of other picks must have its slots to itself
	}
	return nil
}

// newExperts starts the step of an experts op: what its fetch needs.
func (c *compiler) newExperts(op *plan.Op) *experts {
	bank := c.banks[op.Bank]
	ids, weights := c.use(c.values[op.In[1]]), c.use(c.values[op.In[2]])
	count, picks := int(c.m.Plan.Banks[bank].Experts), int(c.p.options.Batch)*ids.width()
	grow(&c.p.sorted.mostPicks, picks)
	grow(&c.p.sorted.mostExperts, count)
	return &experts{head: c.head, bank: bank, layer: c.block.Layer, count: count, k: ids.width(), ids: ids, weights: weights, sorted: &c.p.sorted}
}

func routed(c *compiler) error {
	e := c.early
	if c.early = nil; e == nil {
		e = c.newExperts(c.op)
		c.emit(fetch{e})
	}
	if err := c.parts(e); err != nil {
		return err
	}
	var err error
	if e.glu, err = newGluing(c.attrs); err != nil {
		return err
	}
	e.gateBias, e.upBias, e.downBias, e.scale = c.vector(0), c.vector(1), c.vector(2), c.vector(3)
	e.x = c.in(0)
	c.use(e.ids.buffer)
	c.use(e.weights.buffer)
	if e.gateX, err = c.expertInput(e, &e.gate); err != nil {
		return err
	}
	if e.upX, err = c.expertInput(e, &e.up); err != nil {
		return err
	}
	e.act, _ = kernel.ActFor(e.down.t)
	if e.f%e.act.BlockElems() != 0 {
		return fault.Unsupportedf("bank %q: hidden width %d is not a multiple of the %d activations that are rounded together", c.op.Bank, e.f, e.act.BlockElems())
	}
	e.hidden = c.make(4 * e.k * e.f)
	e.hiddenX = e.hidden
	if e.act != kernel.ActF32 {
		e.hiddenX = c.make(e.k * e.act.RowBytes(e.f))
	}
	e.y = c.make(4 * e.k * e.down.rows)
	e.out = c.out(0)
	grow(&c.p.work.gate, tile*e.gate.chunkRows)
	grow(&c.p.work.up, tile*e.gate.chunkRows)
	grow(&c.p.work.gathers, tile*max(e.gateX.rowBytes, e.upX.rowBytes))
	c.emit(e)
	return nil
}

// expertInput returns the activations that part p multiplies.
func (c *compiler) expertInput(e *experts, p *part) (ref, error) {
	act, _ := kernel.ActFor(p.t)
	if p.n%act.BlockElems() != 0 {
		return ref{}, fault.Unsupportedf("bank %q: width %d is not a multiple of the %d activations that are rounded together", c.op.Bank, p.n, act.BlockElems())
	}
	x, rounding := c.rounded(e.x, act)
	if rounding != nil {
		e.roundings = append(e.roundings, rounding)
	}
	return x, nil
}

// parts finds the matrices of the bank.
func (c *compiler) parts(e *experts) error {
	b, bound := c.m.Plan.Banks[e.bank], c.m.Banks[e.bank]
	_, f, err := plan.BankWidths(b)
	if err != nil {
		return err
	}
	e.f = int(f)
	for i, p := range b.Parts {
		t := dtype.Type(bound.Parts[i].Type)
		if _, ok := kernel.ActFor(t); !ok {
			return fault.Unsupportedf("bank %q: %v is %v, which the cpu backend has no kernel for", b.Name, p.Role, t)
		}
		rowBytes, err := t.RowBytes(int64(p.In))
		if err != nil {
			return err
		}
		if uint64(rowBytes) != bound.Parts[i].RowBytes {
			return fault.Bugf("bank %q: %v has %d bytes per row, %d %v elements take %d", b.Name, p.Role, bound.Parts[i].RowBytes, p.In, t, rowBytes)
		}
		out := part{i: i, t: t, n: int(p.In), rows: int(p.Out), rowBytes: int(rowBytes)}
		out.chunkRows = chunkRows(out.rows, out.rowBytes)
		e.all |= 1 << i
		switch p.Role {
		case plan.Role_GATE:
			e.gate = out
		case plan.Role_UP:
			e.up = out
		case plan.Role_DOWN:
			e.down = out
			continue
		case plan.Role_GATE_UP:
			out.rows = e.f
			e.gate, e.up = out, out
			e.up.offset = uint64(e.f) * uint64(rowBytes)
		}
		e.gateUp |= 1 << i
	}
	e.gate.chunks = ceilDiv(e.gate.rows, e.gate.chunkRows)
	e.down.chunks = ceilDiv(e.down.rows, e.down.chunkRows)
	return nil
}

func glu(c *compiler) error {
	prepare, err := newGluing(c.attrs)
	if err != nil {
		return err
	}
	gate := c.in(0)
	up, out := gate, ref{}
	both := !c.has(1) // gate holds gate and up
	if both {
		out = c.out(0)
	} else {
		up, out = c.in(1), c.outOver(0, gate)
	}
	n := out.width()
	if prepare != nil {
		grow(&c.p.work.row, n)
	}
	return c.rows(out, 8, func(m *Machine, worker, i int) {
		dst, g, u := m.floats(out, i), m.floats(gate, i)[:n], m.floats(up, i)
		if both {
			u = u[n:]
		}
		if prepare != nil {
			s := m.workers[worker].row[:n]
			prepare(dst, s, g, u)
			g, u = dst, s
		}
		m.set.SwiGLU(dst, g, u)
	})
}

func add(c *compiler) error {
	a, b := c.in(0), c.in(1)
	out := c.outOver(0, a)
	return c.rows(out, 1, func(m *Machine, _, i int) { m.set.Add(m.floats(out, i), m.floats(a, i), m.floats(b, i)) })
}

func mul(c *compiler) error {
	a, b := c.in(0), c.in(1)
	out := c.outOver(0, a)
	if run := a.width() / b.width(); run > 1 {
		return c.rows(out, 1, func(m *Machine, _, i int) {
			dst, src := m.floats(out, i), m.floats(a, i)
			for h, factor := range m.floats(b, i) {
				times(dst[h*run:][:run], src[h*run:][:run], factor)
			}
		})
	}
	return c.rows(out, 1, func(m *Machine, _, i int) { m.set.Mul(m.floats(out, i), m.floats(a, i), m.floats(b, i)) })
}

func addWeight(c *compiler) error {
	return c.withWeight(func(m *Machine, dst, x, w []float32) { m.set.Add(dst, x, w) })
}

func mulWeight(c *compiler) error {
	if run := int(c.attrs.Int("run")); run > 1 {
		x, w := c.in(0), c.vector(0)
		out := c.outOver(0, x)
		return c.rows(out, 1, func(m *Machine, _, i int) {
			dst, src := m.floats(out, i), m.floats(x, i)
			for h := range len(src) / run {
				times(dst[h*run:][:run], src[h*run:][:run], w.vec[h%w.n])
			}
		})
	}
	if w := c.vector(0); w.n == 1 {
		x := c.in(0)
		out := c.outOver(0, x)
		return c.rows(out, 1, func(m *Machine, _, i int) { times(m.floats(out, i), m.floats(x, i), w.vec[0]) })
	}
	return c.withWeight(func(m *Machine, dst, x, w []float32) { m.set.Mul(dst, x, w) })
}

// withWeight combines x with a vector that repeats along the row.
func (c *compiler) withWeight(f func(m *Machine, dst, x, w []float32)) error {
	x, w := c.in(0), c.vector(0)
	out := c.outOver(0, x)
	return c.rows(out, 1, func(m *Machine, _, i int) {
		src, dst := m.floats(x, i), m.floats(out, i)
		for j := 0; j < len(src); j += w.n {
			f(m, dst[j:j+w.n], src[j:j+w.n], w.vec)
		}
	})
}

func scale(c *compiler) error {
	x, factor := c.in(0), float32(c.attrs.Float("factor"))
	out := c.outOver(0, x)
	return c.rows(out, 1, func(m *Machine, _, i int) { times(m.floats(out, i), m.floats(x, i), factor) })
}

func times(dst, x []float32, factor float32) {
	for j, v := range x {
		dst[j] = v * factor
	}
}

func unary(c *compiler) error {
	return c.apply(unaries[c.attrs.Text("fn")])
}

func softcap(c *compiler) error {
	limit := c.attrs.Float("cap")
	return c.apply(func(x float64) float64 { return limit * math.Tanh(x/limit) })
}

func (c *compiler) apply(f func(float64) float64) error {
	x := c.in(0)
	out := c.outOver(0, x)
	return c.rows(out, 16, func(m *Machine, _, i int) {
		dst := m.floats(out, i)
		for j, v := range m.floats(x, i) {
			dst[j] = float32(f(float64(v)))
		}
	})
}

func slice(c *compiler) error {
	x, out := c.in(0), c.out(0)
	group, start, width := int(c.attrs.Int("group")), int(c.attrs.Int("start")), int(c.attrs.Int("width"))
	if group == 0 {
		group = x.width()
	}
	return c.rows(out, 1, func(m *Machine, _, i int) {
		src, dst := m.floats(x, i), m.floats(out, i)
		for g := 0; g < len(src)/group; g++ {
			copy(dst[g*width:][:width], src[g*group+start:])
		}
	})
}

func concat(c *compiler) error {
	a, b, out := c.in(0), c.in(1), c.out(0)
	groups := max(int(c.attrs.Int("groups")), 1)
	n, k := a.width()/groups, b.width()/groups
	return c.rows(out, 1, func(m *Machine, _, i int) {
		dst, x, y := m.floats(out, i), m.floats(a, i), m.floats(b, i)
		for g := range groups {
			copy(dst[g*(n+k):], x[g*n:][:n])
			copy(dst[g*(n+k)+n:], y[g*k:][:k])
		}
	})
}

func repeat(c *compiler) error {
	x, out := c.in(0), c.out(0)
	return c.rows(out, 1, func(m *Machine, _, i int) {
		src, dst := m.floats(x, i), m.floats(out, i)
		for j := 0; j < len(dst); j += len(src) {
			copy(dst[j:], src)
		}
	})
}
