package compute

import (
	"math/bits"

	"github.com/bigmoe/bigmoe/sdk/compute/mailbox"
	"github.com/bigmoe/bigmoe/sdk/fault"
	"github.com/bigmoe/bigmoe/sdk/plan"
)

const (
	cacheLine = 64
	pageBytes = 4096
)

// NewLayout places everything of a region that has a fixed size, from offset 0 on: mailbox, inputs, logits, routes, wave
// and the readiness words of the given number of slots. Dense weights and expert slots go behind it, from
// RegionBytes on (a multiple of 4096); whoever places them raises RegionBytes.
func NewLayout(m *Bound, slots uint64) (*Layout, error) {
	if err := m.check(); err != nil {
		return nil, err
	}
	o := m.Options
	batch := uint64(o.Batch)
	at := uint64(0)
	take := func(n uint64) uint64 {
		start := at
		at = roundUp(at+n, cacheLine)
		return start
	}
	l := &Layout{MaxRoute: batch * m.picks(), MaxWave: min(slots, m.experts()), Slots: slots}
	l.Mailbox = take(mailbox.Bytes)
	l.Tokens = take(4 * batch)
	l.Routes = take(2 * 4 * l.MaxRoute)
	l.Wave = take(slotBytes * l.MaxWave)
	l.Ready = take(4 * slots)
	l.Logits = take(4 * uint64(o.LogitRows) * uint64(m.Plan.Model.Vocabulary))
	l.Rows = at
	_, at = m.rowOffsets(at)
	l.RegionBytes = roundUp(at, pageBytes)
	return l, nil
}

func roundUp(n, unit uint64) uint64 { return (n + unit - 1) / unit * unit }

// picks returns the most experts that one layer picks for a token.
func (m *Bound) picks() uint64 {
	most := uint64(0)
	for _, b := range m.Plan.Blocks {
		for _, op := range b.Ops {
			if op.Kind == "experts" {
				most = max(most, uint64(m.Values[op.In[1]].Width))
			}
		}
	}
	return most
}

// experts returns the most experts of one layer.
func (m *Bound) experts() uint64 {
	most := uint64(0)
	for _, b := range m.Plan.Banks {
		most = max(most, uint64(b.Experts))
	}
	return most
}

// RowOffsets returns where the raw rows of each by-row weight start, in plan order: row i of the batch follows at
// i x row_bytes.
func (l *Layout) RowOffsets(m *Bound) []uint64 {
	offsets, _ := m.rowOffsets(l.Rows)
	return offsets
}

// RowBytes returns the bytes of one row of each by-row weight, in plan order.
func (m *Bound) RowBytes() []uint64 {
	var bytes []uint64
	for i, w := range m.Plan.Weights {
		if w.Residency == plan.Residency_ROWS {
			bytes = append(bytes, m.Weights[i].RowBytes)
		}
	}
	return bytes
}

func (m *Bound) rowOffsets(at uint64) (offsets []uint64, end uint64) {
	for i, w := range m.Plan.Weights {
		if w.Residency == plan.Residency_ROWS {
			offsets = append(offsets, at)
			at = roundUp(at+uint64(m.Options.Batch)*m.Weights[i].RowBytes, cacheLine)
		}
	}
	return offsets, at
}

// Check verifies that everything l and m place fits in a region of regionBytes mapped bytes and is aligned as
// promised. Both sides of the process boundary call it before a backend sees either.
func (l *Layout) Check(m *Bound, regionBytes uint64) error {
	if l == nil {
		return fault.Bugf("no layout")
	}
	if l.RegionBytes > regionBytes {
		return fault.Bugf("layout needs %d bytes, the region has %d", l.RegionBytes, regionBytes)
	}
	o := m.Options
	rows, rowsEnd := m.rowOffsets(l.Rows)
	for _, p := range []struct {
		name             string
		at, n, unit, per uint64
	}{
		{"mailbox", l.Mailbox, 1, mailbox.Bytes, cacheLine},
		{"tokens", l.Tokens, uint64(o.Batch), 4, 4},
		{"logits", l.Logits, uint64(o.LogitRows) * uint64(m.Plan.Model.Vocabulary), 4, 4},
		{"routes", l.Routes, l.MaxRoute, 8, 4},
		{"wave", l.Wave, l.MaxWave, slotBytes, 8},
		{"ready", l.Ready, l.Slots, 4, 4},
		{"rows", l.Rows, rowsEnd - l.Rows, 1, cacheLine},
	} {
		if !fits(p.at, p.n, p.unit, l.RegionBytes) || p.at%p.per != 0 {
			return fault.Bugf("layout: %s: %d x %d bytes at %d: outside the region of %d bytes or not at a multiple of %d",
				p.name, p.n, p.unit, p.at, l.RegionBytes, p.per)
		}
	}
	if need := uint64(o.Batch) * m.picks(); l.MaxRoute < need {
		return fault.Bugf("layout: room for %d picks, %d tokens make %d", l.MaxRoute, o.Batch, need)
	}
	if len(m.Plan.Banks) > 0 && l.MaxWave == 0 {
		return fault.Bugf("layout: no room for a wave")
	}
	row := 0
	for i, w := range m.Plan.Weights {
		b := m.Weights[i]
		if w.Residency == plan.Residency_ROWS {
			if !fits(rows[row], uint64(o.Batch), b.RowBytes, l.RegionBytes) {
				return fault.Bugf("layout: rows of weight %q are outside the region", w.Name)
			}
			row++
			continue
		}
		n := uint64(1)
		for _, d := range w.Shape[1:] {
			hi, lo := bits.Mul64(n, d)
			if n = lo; hi != 0 {
				n = ^uint64(0)
			}
		}
		if !fits(b.Offset, n, b.RowBytes, l.RegionBytes) {
			return fault.Bugf("layout: weight %q: %d x %d bytes at %d are outside the region of %d bytes", w.Name, n, b.RowBytes, b.Offset, l.RegionBytes)
		}
	}
	return nil
}

// fits reports whether n x unit bytes at offset at end within size.
func fits(at, n, unit, size uint64) bool {
	hi, bytes := bits.Mul64(n, unit)
	return hi == 0 && at <= size && bytes <= size-at
}
