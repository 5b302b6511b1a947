package compute

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/bigmoe/bigmoe/sdk/compute/futex"
	"github.com/bigmoe/bigmoe/sdk/fault"
	"github.com/bigmoe/bigmoe/sdk/plan"
)

// bound returns a plan of one layer with two by-row tables, bound.
func bound(t testing.TB) *Bound {
	weight := func(name string, r plan.Residency, shape ...uint64) *plan.Weight {
		return &plan.Weight{Name: name, Sources: []*plan.Source{{Tensor: name}}, Shape: shape, Residency: r}
	}
	choice := func(name, v string) *plan.Attr {
		return &plan.Attr{Name: name, Value: &plan.Attr_S{S: v}}
	}
	p := &plan.Plan{Schema: plan.SchemaVersion, Recipe: "test", Model: &plan.Model{Layers: 1, Vocabulary: 10, ContextLength: 8},
		Weights: []*plan.Weight{weight("a", plan.Residency_ROWS, 4, 10), weight("router", plan.Residency_RESIDENT, 4, 6),
			weight("b", plan.Residency_ROWS, 4, 10), weight("head", plan.Residency_RESIDENT, 4, 10)},
		Banks: []*plan.Bank{{Name: "bank", Experts: 6, Parts: []*plan.Part{
			{Role: plan.Role_GATE_UP, Tensors: []string{"gu"}, In: 4, Out: 8}, {Role: plan.Role_DOWN, Tensors: []string{"d"}, In: 4, Out: 4}}}},
		Blocks: []*plan.Block{
			{Kind: plan.BlockKind_EMBEDDING, Ops: []*plan.Op{
				{Kind: "embed", Weights: []string{"a"}, Out: []string{"xa"}},
				{Kind: "embed", Weights: []string{"b"}, Out: []string{"xb"}},
				{Kind: "add", In: []string{"xa", "xb"}, Out: []string{"x"}}}},
			{Kind: plan.BlockKind_LAYER, Ops: []*plan.Op{
				{Kind: "linear", In: []string{"x"}, Weights: []string{"router"}, Out: []string{"scores"}},
				{Kind: "route", In: []string{"scores"}, Out: []string{"ids", "weights"},
					Attrs: []*plan.Attr{{Name: "top_k", Value: &plan.Attr_I{I: 3}}, choice("gating", "softmax")}},
				{Kind: "experts", In: []string{"x", "ids", "weights"}, Bank: "bank", Out: []string{"y"}, Attrs: []*plan.Attr{choice("activation", "silu")}}}},
			{Kind: plan.BlockKind_HEAD, Ops: []*plan.Op{{Kind: "linear", In: []string{"y"}, Weights: []string{"head"}, Out: []string{plan.Logits}}}},
		}}
	values, err := plan.Validate(p)
	require.NoError(t, err)
	m := &Bound{Plan: p, Values: values, Options: &Options{Context: 8, Batch: 5, LogitRows: 2, Threads: 1},
		Banks: []*BoundBank{{Parts: []*BoundPart{{RowBytes: 16}, {RowBytes: 16}}}}}
	for i := range p.Weights {
		m.Weights = append(m.Weights, &BoundWeight{RowBytes: 16 + uint64(i)})
	}
	return m
}

func TestLayoutHasRoomForEverything(t *testing.T) {
	m := bound(t)
	l, err := NewLayout(m, 100)
	require.NoError(t, err)
	require.EqualValues(t, 5*3, l.MaxRoute)
	require.EqualValues(t, 6, l.MaxWave, "a wave has at most all experts of a layer")
	require.Zero(t, l.RegionBytes%4096)
	rows := l.RowOffsets(m)
	require.Equal(t, []uint64{16, 18}, m.RowBytes())

	used := map[uint64]string{}
	for _, p := range []struct {
		name  string
		at, n uint64
	}{
		{"mailbox", l.Mailbox, 4096}, {"tokens", l.Tokens, 5 * 4}, {"logits", l.Logits, 2 * 10 * 4}, {"routes", l.Routes, 15 * 8},
		{"wave", l.Wave, 6 * 40}, {"ready", l.Ready, 100 * 4}, {"rows a", rows[0], 5 * 16}, {"rows b", rows[1], 5 * 18},
	} {
		require.Zero(t, p.at%64, p.name)
		for b := p.at; b < p.at+p.n; b++ {
			require.Empty(t, used[b], "%s overlaps", p.name)
			used[b] = p.name
			require.Less(t, b, l.RegionBytes)
		}
	}
	require.NoError(t, l.Check(m, l.RegionBytes))
	require.ErrorContains(t, l.Check(m, l.RegionBytes-1), "the region has")
}

func TestCheckRefuses(t *testing.T) {
	for say, spoil := range map[string]func(l *Layout, m *Bound){
		"mailbox":      func(l *Layout, m *Bound) { l.Mailbox = l.RegionBytes - 64 },
		"tokens":       func(l *Layout, m *Bound) { l.Tokens = 2 },
		"logits":       func(l *Layout, m *Bound) { l.Logits = 1 << 63 },
		"routes":       func(l *Layout, m *Bound) { l.MaxRoute = 1 << 61 },
		"wave":         func(l *Layout, m *Bound) { l.Wave += 4 },
		"ready":        func(l *Layout, m *Bound) { l.Slots = 1 << 62 },
		"rows":         func(l *Layout, m *Bound) { l.Rows = l.RegionBytes },
		"14 picks":     func(l *Layout, m *Bound) { l.MaxRoute = 14 },
		"no room":      func(l *Layout, m *Bound) { l.MaxWave = 0 },
		`weight "head`: func(l *Layout, m *Bound) { m.Weights[3].Offset = l.RegionBytes - 100 },
	} {
		m := bound(t)
		l, err := NewLayout(m, 100)
		require.NoError(t, err)
		spoil(l, m)
		err = l.Check(m, l.RegionBytes)
		require.ErrorContains(t, err, say)
		require.Equal(t, fault.Bug, fault.KindOf(err))
	}
}

func TestBoundCrossesTheWire(t *testing.T) {
	m := bound(t)
	msg, err := m.Message()
	require.NoError(t, err)
	raw, err := proto.Marshal(msg)
	require.NoError(t, err)
	back := &Model{}
	require.NoError(t, proto.Unmarshal(raw, back))
	got, err := Bind(back)
	require.NoError(t, err)
	require.True(t, proto.Equal(m.Plan, got.Plan))
	require.Equal(t, m.Values, got.Values)
	require.Equal(t, m.RowBytes(), got.RowBytes())

	for say, spoil := range map[string]func(m *Model){
		"plan":           func(m *Model) { m.Plan = []byte{0xff} },
		"schema version": func(m *Model) { m.Plan = nil },
		"3 weights":      func(m *Model) { m.Weights = m.Weights[1:] },
		"options":        func(m *Model) { m.Options = nil },
		"impossible":     func(m *Model) { m.Options = &Options{Context: 1, Batch: 1, LogitRows: 2} },
		"rows of 0":      func(m *Model) { m.Weights[0] = &BoundWeight{} },
		"1 parts":        func(m *Model) { m.Banks[0].Parts = m.Banks[0].Parts[1:] },
	} {
		bad := proto.CloneOf(back)
		spoil(bad)
		_, err := Bind(bad)
		require.ErrorContains(t, err, say)
	}
}

func TestFaultsCrossTheWire(t *testing.T) {
	for k := fault.Unknown; k <= fault.Bug; k++ {
		err := FromStatus(toStatus(fmt.Errorf("outer: %w", fault.As(k, errors.New("inner")))))
		require.EqualError(t, err, "outer: inner")
		require.Equal(t, k, fault.KindOf(err))
		require.Equal(t, k, fault.KindOf(Fault(uint32(k), "x")))
	}
	require.NoError(t, FromStatus(toStatus(nil)))
	require.Equal(t, fault.Unknown, fault.KindOf(Fault(99, "x")))
	other := status.Error(codes.Unavailable, "connection lost")
	require.Equal(t, other, FromStatus(other))
}

func TestRegionWait(t *testing.T) {
	r, err := NewRegion(make([]byte, 64), 0, 4)
	require.NoError(t, err)
	slot := &Slot{Expert: 9, Ready: 2, Gen: 5}
	word := r.Word(2)
	set := func(v uint32) { word.Store(v); futex.Wake(word) }

	set(5<<GenShift | 1)
	require.True(t, r.Landed(slot, 1))
	require.False(t, r.Landed(slot, 3))
	time.AfterFunc(10*time.Millisecond, func() { set(5<<GenShift | 3) })
	require.NoError(t, r.Wait(slot, 3))
	time.AfterFunc(10*time.Millisecond, func() { set(5<<GenShift | 3 | ReadyError) })
	require.ErrorContains(t, r.Wait(slot, 7), "expert 9: reading it failed")
	require.False(t, r.Landed(slot, 1))
	set(6 << GenShift)
	require.ErrorContains(t, r.Wait(slot, 1), "given away")
	require.False(t, r.Landed(slot, 0))

	for _, c := range [][2]uint64{{2, 1}, {64, 1}, {68, 0}, {0, 17}, {0, 1 << 62}} {
		_, err := NewRegion(make([]byte, 64), c[0], c[1])
		require.Error(t, err, c)
	}
}

func TestProgressReachesTheHeartbeat(t *testing.T) {
	var beat atomic.Uint32
	r, err := NewRegion(make([]byte, 64), 0, 4)
	require.NoError(t, err)
	r.Progress()
	r.beat = &beat
	r.Progress()
	require.EqualValues(t, 1, beat.Load())
}

func FuzzLoadRequest(f *testing.F) {
	m := bound(f)
	l, err := NewLayout(m, 4)
	require.NoError(f, err)
	msg, err := m.Message()
	require.NoError(f, err)
	raw, err := proto.Marshal(&LoadRequest{Model: msg, Layout: l})
	require.NoError(f, err)
	f.Add(raw)
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, raw []byte) {
		req := &LoadRequest{}
		if proto.Unmarshal(raw, req) != nil {
			return
		}
		m, err := Bind(req.Model)
		if err != nil || req.Layout.Check(m, 1<<20) != nil {
			return
		}
		// Everything that was accepted can be touched.
		region, err := NewRegion(make([]byte, 1<<20), req.Layout.Ready, req.Layout.Slots)
		require.NoError(t, err)
		region.Int32s(req.Layout.Tokens, int(m.Options.Batch))
		region.Float32s(req.Layout.Logits, int(m.Options.LogitRows*m.Plan.Model.Vocabulary))
		region.Slots(req.Layout.Wave, int(req.Layout.MaxWave))
		for i, at := range req.Layout.RowOffsets(m) {
			_ = region.Bytes[at : at+uint64(m.Options.Batch)*m.RowBytes()[i]]
		}
	})
}
