package cpu_test

import (
	"context"
	"math"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/bigmoe/bigmoe/plugins/compute-cpu/cpu"
	"github.com/bigmoe/bigmoe/sdk/compute"
	"github.com/bigmoe/bigmoe/sdk/compute/optable"
	"github.com/bigmoe/bigmoe/sdk/dtype"
	"github.com/bigmoe/bigmoe/sdk/fault"
	"github.com/bigmoe/bigmoe/sdk/plan"
)

func newBackend(t testing.TB) compute.Backend {
	b, err := cpu.New(cpu.Options{Version: "1.2.3"})
	require.NoError(t, err)
	return b
}

func TestNewAndDescribe(t *testing.T) {
	_, err := cpu.New(cpu.Options{Kernels: "abacus"})
	require.ErrorContains(t, err, `no kernels "abacus" here`)
	require.Equal(t, fault.User, fault.KindOf(err))
	require.Equal(t, "go", cpu.Kernels()[0])

	d := newBackend(t).Describe()
	require.Equal(t, "cpu", d.Name)
	require.Equal(t, "1.2.3", d.Version)
	require.Equal(t, cpu.Kernels()[len(cpu.Kernels())-1], d.Kernels)
	require.EqualValues(t, plan.SchemaVersion, d.PlanSchema)
	for _, typ := range []dtype.Type{dtype.F32, dtype.F16, dtype.BF16, dtype.Q8_0, dtype.Q4_0, dtype.Q4_K, dtype.Q5_K, dtype.Q6_K, dtype.MXFP4} {
		require.Contains(t, d.Types, uint32(typ))
	}
	for _, kind := range d.Ops {
		_, ok := plan.Lookup(kind)
		require.True(t, ok, kind)
	}
}

// small is a golden model loaded with a context of 24, batches of 8 and every expert in reach.
func small(t *testing.T) (m *optable.Model, seq compute.Sequence) {
	m = openModel(t, filepath.Join(goldenDir, "qwen3moe/qwen3moe-f32.gguf"), 16)
	bound := m.Options(&compute.Options{Context: 24, Batch: 8, LogitRows: 2, Threads: 2, KvType: compute.KVType_F16})
	seq, err := newBackend(t).Load(bound, m.Region)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, seq.Close()) })
	return m, seq
}

func TestTrim(t *testing.T) {
	m, seq := small(t)
	ctx, h := context.Background(), optable.NewHost(m)
	first := m.Batch(0, false, 1, 2, 3, 4)
	require.NoError(t, seq.Eval(ctx, first, h))
	next := m.Batch(4, false, 5)
	require.NoError(t, seq.Eval(ctx, next, h))

	require.NoError(t, seq.Trim(2))
	require.NoError(t, seq.Eval(ctx, m.Batch(2, false, 77, 78, 79), h)) // another continuation, over the forgotten entries
	require.NoError(t, seq.Trim(2))
	again := m.Batch(2, false, 3, 4)
	require.NoError(t, seq.Eval(ctx, again, h))
	require.Equal(t, first.Logits, again.Logits)
	require.NoError(t, seq.Trim(0))
	require.NoError(t, seq.Eval(ctx, m.Batch(0, false, 1, 2, 3, 4), h))
	again = m.Batch(4, false, 5)
	require.NoError(t, seq.Eval(ctx, again, h))
	require.Equal(t, next.Logits, again.Logits)

	require.Equal(t, fault.Bug, fault.KindOf(seq.Trim(6)))
	require.Equal(t, fault.Bug, fault.KindOf(seq.Trim(-1)))
}

func TestEvalRefuses(t *testing.T) {
	m, seq := small(t)
	tests := []struct {
		name string
		b    *compute.Batch
		kind fault.Kind
		say  string
	}{
		{"no tokens", m.Batch(0, false), fault.Bug, "batch of 0 tokens"},
		{"too many tokens", m.Batch(0, false, 1, 2, 3, 4, 5, 6, 7, 8, 9), fault.Bug, "batch of 9 tokens"},
		{"gap", m.Batch(1, false, 1), fault.Bug, "at position 1, the sequence has 0"},
		{"too many logits", m.Batch(0, true, 1, 2, 3), fault.Bug, "logits of 3 tokens"},
		{"no room for logits", &compute.Batch{Tokens: []int32{1}, Rows: m.Rows([]int32{1}), Logits: make([]float32, 3)}, fault.Bug, "room for 3 logits"},
		{"no rows", &compute.Batch{Tokens: []int32{1}, Logits: make([]float32, 384)}, fault.Bug, "rows of 0 weights"},
		{"short rows", &compute.Batch{Tokens: []int32{1}, Rows: [][]byte{{1}}, Logits: make([]float32, 384)}, fault.Bug, "1 bytes for 1 rows"},
		{"unknown token", func() *compute.Batch { b := m.Batch(0, false, 1); b.Tokens = []int32{384}; return b }(), fault.User, "token 384: the vocabulary has 384"},
	}
	for _, tt := range tests {
		err := seq.Eval(context.Background(), tt.b, optable.NewHost(m))
		require.ErrorContains(t, err, tt.say, tt.name)
		require.Equal(t, tt.kind, fault.KindOf(err), tt.name)
	}
	for pos := 0; pos < 24; pos += 8 {
		require.NoError(t, seq.Eval(context.Background(), m.Batch(pos, false, 1, 2, 3, 4, 5, 6, 7, 8), optable.NewHost(m)))
	}
	err := seq.Eval(context.Background(), m.Batch(24, false, 1), optable.NewHost(m))
	require.ErrorContains(t, err, "25 positions do not fit the context of 24")
	require.Equal(t, fault.User, fault.KindOf(err))
}

// hostFunc changes what a host answers.
type hostFunc struct {
	*optable.Host
	change func(w *compute.Wave)
}

func (h hostFunc) Route(bank, k int, ids []int32, weights []float32) (compute.Wave, error) {
	w, err := h.Host.Route(bank, k, ids, weights)
	h.change(&w)
	return w, err
}

// TestFailures checks that an Eval that fails says why, and that the sequence goes on from where it was.
func TestFailures(t *testing.T) {
	m, seq := small(t)
	good := optable.NewHost(m)
	start := m.Batch(0, false, 1, 2)
	require.NoError(t, seq.Eval(context.Background(), start, good))
	want := m.Batch(2, false, 3)
	require.NoError(t, seq.Eval(context.Background(), want, good))
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	failing := optable.NewHost(m)
	failing.Fail = true
	late := optable.NewHost(m)
	late.Fail, late.Late, late.Shuffle = true, true, rand.New(rand.NewPCG(1, 1))
	tests := []struct {
		name string
		ctx  context.Context
		host compute.Host
		say  string
	}{
		{"cancelled", cancelled, good, "context canceled"},
		{"read error", context.Background(), failing, "layer 0: expert "},
		{"read error while waiting", context.Background(), late, "reading it failed"},
		{"unpicked expert", context.Background(), hostFunc{good, func(w *compute.Wave) { w.Slots[0].Expert = 16 }}, "expert 16 came, which nobody picked"},
		{"expert twice", context.Background(), hostFunc{good, func(w *compute.Wave) { w.Slots = append(w.Slots, w.Slots[0]) }}, "an expert came twice"},
		{"expert left out", context.Background(), hostFunc{good, func(w *compute.Wave) { w.Slots = w.Slots[1:] }}, "the waves left out experts of 1 picks"},
		{"outside the region", context.Background(), hostFunc{good, func(w *compute.Wave) { w.Slots[1].Part[2] = math.MaxUint64 }}, "part 2 lies outside the region"},
		{"slot given away", context.Background(), hostFunc{good, func(w *compute.Wave) { w.Slots[0].Gen++ }}, "was given away"},
	}
	for _, tt := range tests {
		require.NoError(t, seq.Trim(2))
		err := seq.Eval(tt.ctx, m.Batch(2, false, 3), tt.host)
		late.Wait()
		require.ErrorContains(t, err, tt.say, tt.name)
		again := m.Batch(2, false, 3)
		require.NoError(t, seq.Eval(context.Background(), again, good), tt.name)
		require.Equal(t, want.Logits, again.Logits, tt.name)
	}
}

func TestRouterLogitsMustBeFinite(t *testing.T) {
	m, seq := small(t)
	for i, w := range m.Bound.Plan.Weights {
		if w.Name == "blk.2.ffn_norm.weight" {
			copy(m.Region.Bytes[m.Bound.Weights[i].Offset:], []byte{0, 0, 0xc0, 0x7f})
		}
	}
	err := seq.Eval(context.Background(), m.Batch(0, false, 1, 2, 3), optable.NewHost(m))
	require.ErrorContains(t, err, "layer 2: router logits are not finite")
	require.Equal(t, fault.Corrupt, fault.KindOf(err))
}

// TestEqualRouterLogits: ties go to the smaller expert (specs/qwen3moe.md 4).
func TestEqualRouterLogits(t *testing.T) {
	m, seq := small(t)
	for i, w := range m.Bound.Plan.Weights {
		if w.Name == "blk.0.ffn_gate_inp.weight" {
			clear(m.Region.Bytes[m.Bound.Weights[i].Offset:][:16*m.Bound.Weights[i].RowBytes])
		}
	}
	h := optable.NewHost(m)
	require.NoError(t, seq.Eval(context.Background(), m.Batch(0, false, 1, 2), h))
	require.Equal(t, []int32{0, 1, 2, 3, 0, 1, 2, 3}, h.IDs[0])
	require.Equal(t, []float32{.25, .25, .25, .25, .25, .25, .25, .25}, h.Weights[0])
}

// TestEngineChangesWeights: the sum uses what Route left in weights.
func TestEngineChangesWeights(t *testing.T) {
	m, seq := small(t)
	plain := m.Batch(0, false, 1)
	require.NoError(t, seq.Eval(context.Background(), plain, optable.NewHost(m)))
	require.NoError(t, seq.Trim(0))
	changed := m.Batch(0, false, 1)
	require.NoError(t, seq.Eval(context.Background(), changed, dropping{optable.NewHost(m)}))
	require.NotEqual(t, plain.Logits, changed.Logits)
}

type dropping struct{ *optable.Host }

func (h dropping) Route(bank, k int, ids []int32, weights []float32) (compute.Wave, error) {
	weights[k-1] = 0
	return h.Host.Route(bank, k, ids, weights)
}

// TestNeeds holds Prepare to the numbers that can be computed by hand.
func TestNeeds(t *testing.T) {
	m := openModel(t, filepath.Join(goldenDir, "qwen3moe/qwen3moe-f32.gguf"), 1)
	needs := func(context, batch, threads uint32, kv compute.KVType) *compute.Needs {
		n, err := newBackend(t).Prepare(m.Options(&compute.Options{Context: context, Batch: batch, LogitRows: 1, Threads: threads, KvType: kv}))
		require.NoError(t, err)
		return n
	}
	n := needs(512, 1, 1, compute.KVType_F16)
	require.EqualValues(t, 4*512*(2+2)*32*2, n.StateBytes) // layers x positions x heads of keys and values x dim x bytes
	require.EqualValues(t, 2*n.StateBytes, needs(512, 1, 1, compute.KVType_F32).StateBytes)
	require.Less(t, n.ScratchBytes, uint64(256<<10))
	more := needs(512, 64, 1, compute.KVType_F16)
	// The largest value that must be kept whole is the output of every pick: 64 tokens x 4 experts x 96.
	require.Greater(t, more.ScratchBytes-n.ScratchBytes, uint64(63*4*96*4))
	require.Less(t, more.ScratchBytes-n.ScratchBytes, uint64(63*4*96*4)*5)
	require.NotZero(t, n.ProcessBytes)
}

func TestPrepareRefuses(t *testing.T) {
	good := openModel(t, filepath.Join(goldenDir, "qwen3moe/qwen3moe-k-q8_0.gguf"), 1)
	find := func(p *plan.Plan, kind string) *plan.Op {
		for _, b := range p.Blocks {
			for _, o := range b.Ops {
				if o.Kind == kind {
					return o
				}
			}
		}
		return nil
	}
	tests := []struct {
		name   string
		change func(b *compute.Bound)
		kind   fault.Kind
		say    []string
	}{
		{"op", func(b *compute.Bound) { *find(b.Plan, "add") = *optable.Op("cube", "h", "", "0.mid", nil) },
			fault.Unsupported, []string{`recipe "qwen3moe"`, `op "cube"`, "LAYER 0"}},
		{"weight type", func(b *compute.Bound) { b.Weights[2].Type = uint32(dtype.I32) }, fault.Unsupported, []string{"blk.0.attn_q.weight", "I32"}},
		{"expert type", func(b *compute.Bound) { b.Banks[1].Parts[2].Type = uint32(dtype.Q8_K) }, fault.Unsupported, []string{"bank.1", "DOWN", "Q8_K"}},
		{"unknown type", func(b *compute.Bound) { b.Weights[1].Type = 99 }, fault.Unsupported, []string{"blk.0.attn_norm.weight", "type 99"}},
		{"state", func(b *compute.Bound) { b.Plan.States[0].Kind = plan.StateKind(9) }, fault.Unsupported, []string{"kv.0", "is 9"}},
		{"compressed attention", func(b *compute.Bound) { a := find(b.Plan, "attention"); a.States = append(a.States, "kv.1") },
			fault.Unsupported, []string{"op attention", "compressed rows"}},
		{"row size", func(b *compute.Bound) { b.Weights[2].RowBytes++ }, fault.Bug, []string{"blk.0.attn_q.weight", "273"}},
		{"no context", func(b *compute.Bound) { b.Options.Context = 0 }, fault.Bug, []string{"context 0"}},
		{"no options", func(b *compute.Bound) { b.Options = nil }, fault.Bug, []string{"context 0"}},
		{"missing bank", func(b *compute.Bound) { b.Banks = b.Banks[1:] }, fault.Bug, []string{"banks are bound"}},
	}
	for _, tt := range tests {
		b := good.Options(&compute.Options{Context: 8, Batch: 4, LogitRows: 1, Threads: 1})
		b.Plan = proto.Clone(b.Plan).(*plan.Plan)
		b.Weights, b.Banks = nil, nil
		for _, w := range good.Bound.Weights {
			b.Weights = append(b.Weights, proto.Clone(w).(*compute.BoundWeight))
		}
		for _, bank := range good.Bound.Banks {
			b.Banks = append(b.Banks, proto.Clone(bank).(*compute.BoundBank))
		}
		_, err := newBackend(t).Prepare(b)
		require.NoError(t, err, tt.name)
		tt.change(b)
		_, err = newBackend(t).Prepare(b)
		for _, say := range tt.say {
			require.ErrorContains(t, err, say, tt.name)
		}
		require.Equal(t, tt.kind, fault.KindOf(err), tt.name)
		_, loadErr := newBackend(t).Load(b, good.Region)
		require.EqualError(t, loadErr, err.Error(), tt.name)
	}
}

func TestLoadRefusesWeightsOutsideTheRegion(t *testing.T) {
	m := openModel(t, filepath.Join(goldenDir, "qwen3moe/qwen3moe-f32.gguf"), 1)
	b := m.Options(&compute.Options{Context: 8, Batch: 4, LogitRows: 1, Threads: 1})
	for _, offset := range []uint64{uint64(len(m.Region.Bytes)) - 8, math.MaxUint64 - 8} {
		b.Weights[1].Offset = offset
		_, err := newBackend(t).Load(b, m.Region)
		require.ErrorContains(t, err, "blk.0.attn_norm.weight")
		require.Equal(t, fault.Bug, fault.KindOf(err))
	}
}
