package cpu_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/plugins/compute-cpu/cpu"
	"github.com/bigmoe/bigmoe/sdk/compute"
	"github.com/bigmoe/bigmoe/sdk/compute/optable"
	"github.com/bigmoe/bigmoe/sdk/dtype"
	"github.com/bigmoe/bigmoe/sdk/plan"
)

// layerSize is the shape of a one-layer qwen3moe.
type layerSize struct {
	embedding, heads, kvHeads, dim, hidden, experts, used int
	attention, gateUp, down                               dtype.Type
}

var q30 = layerSize{2048, 32, 4, 128, 768, 128, 8, dtype.Q4_K, dtype.Q4_K, dtype.Q6_K}
var tiny = layerSize{64, 4, 2, 16, 32, 8, 2, dtype.Q8_0, dtype.Q8_0, dtype.Q8_0}

// layer is a loaded layer with random weights, all experts in memory, and a host that says so.
type layer struct {
	compute.Sequence
	region *compute.Region
	slot   []compute.Slot
	wave   []compute.Slot
	row    int
	table  []byte
	bytes  int // weights that one token touches
}

func (l *layer) Route(_, _ int, ids []int32, _ []float32) (compute.Wave, error) {
	l.wave = l.wave[:0]
	var seen [8]uint32 // a bit per expert
	for _, id := range ids {
		if bit := uint32(1) << (id % 32); seen[id/32]&bit == 0 {
			seen[id/32] |= bit
			l.wave = append(l.wave, l.slot[id])
		}
	}
	return compute.Wave{Slots: l.wave}, nil
}

func (l *layer) Next() (compute.Wave, error) { return compute.Wave{}, fmt.Errorf("there is one wave") }

// newLayer loads a layer for batches of batch tokens.
func newLayer(b testing.TB, s layerSize, kernels string, threads, batch, context int) *layer {
	rng := rand.New(rand.NewPCG(1, 2))
	const vocabulary = 64
	p := &plan.Plan{Schema: plan.SchemaVersion, Recipe: "layer", Model: &plan.Model{Layers: 1, Vocabulary: vocabulary, ContextLength: 4096},
		States: []*plan.State{{Name: "kv", Kind: plan.StateKind_KV, KeyWidth: uint64(s.kvHeads * s.dim), ValueWidth: uint64(s.kvHeads * s.dim)}}}
	bound := &compute.Bound{Plan: p, Options: &compute.Options{Context: uint32(context), Batch: uint32(batch), LogitRows: 1, Threads: uint32(threads)}}
	l := &layer{}
	var dense []byte
	weight := func(name string, t dtype.Type, shape ...int) {
		w := &plan.Weight{Name: name, Sources: []*plan.Source{{Tensor: name}}}
		rows := 1
		for i, d := range shape {
			w.Shape = append(w.Shape, uint64(d))
			if i > 0 {
				rows *= d
			}
		}
		rowBytes, err := t.RowBytes(int64(shape[0]))
		require.NoError(b, err)
		bw := &compute.BoundWeight{Type: uint32(t), RowBytes: uint64(rowBytes), Offset: uint64(len(dense))}
		data := randomRows(rng, t, int(rowBytes), rows)
		if name == "table" {
			w.Residency = plan.Residency_ROWS
			l.table, l.row = data, int(rowBytes)
		} else {
			dense = append(dense, data...)
			l.bytes += len(data)
		}
		p.Weights, bound.Weights = append(p.Weights, w), append(bound.Weights, bw)
	}
	qd, kd := s.heads*s.dim, s.kvHeads*s.dim
	weight("table", dtype.F32, s.embedding, vocabulary)
	weight("norm", dtype.F32, s.embedding)
	weight("head_norm", dtype.F32, s.dim)
	weight("q", s.attention, s.embedding, qd)
	weight("k", s.attention, s.embedding, kd)
	weight("v", s.attention, s.embedding, kd)
	weight("o", s.attention, qd, s.embedding)
	weight("router", dtype.F32, s.embedding, s.experts)
	weight("head", dtype.F32, s.embedding, vocabulary)
	parts := []*plan.Part{
		{Role: plan.Role_GATE, Tensors: []string{"gate"}, In: uint64(s.embedding), Out: uint64(s.hidden)},
		{Role: plan.Role_UP, Tensors: []string{"up"}, In: uint64(s.embedding), Out: uint64(s.hidden)},
		{Role: plan.Role_DOWN, Tensors: []string{"down"}, In: uint64(s.hidden), Out: uint64(s.embedding)},
	}
	p.Banks = []*plan.Bank{{Name: "bank", Experts: uint32(s.experts), Parts: parts}}
	bank, expertBytes := &compute.BoundBank{}, 0
	for i, part := range parts {
		t := []dtype.Type{s.gateUp, s.gateUp, s.down}[i]
		rowBytes, err := t.RowBytes(int64(part.In))
		require.NoError(b, err)
		bank.Parts = append(bank.Parts, &compute.BoundPart{Type: uint32(t), RowBytes: uint64(rowBytes)})
		expertBytes += int(rowBytes) * int(part.Out)
	}
	bound.Banks = []*compute.BoundBank{bank}
	l.bytes += s.used * expertBytes
	rope, norm := attrs{"head_dim": s.dim, "n_rot": s.dim, "base": 1e6}, attrs{"eps": 1e-6, "group": s.dim}
	attention := optable.Op("attention", "qr kr v", "", "a", attrs{"heads": s.heads, "kv_heads": s.kvHeads, "head_dim": s.dim, "scale": 0.1})
	experts := optable.Op("experts", "f ids w", "", "m", nil)
	attention.States, experts.Bank = []string{"kv"}, "bank"
	p.Blocks = []*plan.Block{
		{Kind: plan.BlockKind_EMBEDDING, Ops: []*plan.Op{optable.Op("embed", "", "table", "h", nil)}},
		{Kind: plan.BlockKind_LAYER, Ops: []*plan.Op{
			optable.Op("rms_norm", "h", "norm", "x", attrs{"eps": 1e-6}), optable.Op("linear", "x", "q", "q", nil), optable.Op("linear", "x", "k", "k", nil), optable.Op("linear", "x", "v", "v", nil),
			optable.Op("rms_norm", "q", "head_norm", "qn", norm), optable.Op("rms_norm", "k", "head_norm", "kn", norm),
			optable.Op("rope", "qn", "", "qr", rope), optable.Op("rope", "kn", "", "kr", rope), attention, optable.Op("linear", "a", "o", "b", nil), optable.Op("add", "h b", "", "g", nil),
			optable.Op("rms_norm", "g", "norm", "f", attrs{"eps": 1e-6}), optable.Op("linear", "f", "router", "l", nil),
			optable.Op("route", "l", "", "ids w", attrs{"top_k": s.used, "normalize": true}), experts, optable.Op("add", "g m", "", "y", nil)}},
		{Kind: plan.BlockKind_HEAD, Ops: []*plan.Op{optable.Op("linear", "y", "head", plan.Logits, nil)}},
	}
	values, err := plan.Validate(p)
	require.NoError(b, err)
	bound.Values = values
	ready := len(dense)
	for ready%4 != 0 {
		ready++
	}
	at := ready + 4*s.experts
	region := make([]byte, at+s.experts*expertBytes)
	copy(region, dense)
	l.region, err = compute.NewRegion(region, uint64(ready), uint64(s.experts))
	require.NoError(b, err)
	for e := range s.experts {
		slot := compute.Slot{Expert: int32(e), Ready: uint32(e), Gen: 1}
		l.region.Word(slot.Ready).Store(1<<compute.GenShift | 7)
		for i, part := range bank.Parts {
			slot.Part[i] = uint64(at)
			rows := int(parts[i].Out)
			at += copy(region[at:], randomRows(rng, dtype.Type(part.Type), int(part.RowBytes), rows))
		}
		l.slot = append(l.slot, slot)
	}
	backend, err := cpu.New(cpu.Options{Kernels: kernels})
	require.NoError(b, err)
	l.Sequence, err = backend.Load(bound, l.region)
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, l.Close()) })
	return l
}

// randomRows returns rows of random codes with scales of ordinary size.
func randomRows(rng *rand.Rand, t dtype.Type, rowBytes, rows int) []byte {
	out := make([]byte, rowBytes*rows)
	if t == dtype.F32 {
		for i := 0; i < len(out); i += 4 {
			binary.LittleEndian.PutUint32(out[i:], 0x3c000000|rng.Uint32()&0x81ffffff)
		}
		return out
	}
	for i := 0; i+8 <= len(out); i += 8 {
		binary.LittleEndian.PutUint64(out[i:], rng.Uint64())
	}
	halves := map[dtype.Type][]int{dtype.Q4_K: {0, 2}, dtype.Q5_K: {0, 2}, dtype.Q6_K: {208}, dtype.Q8_0: {0}}[t]
	for b := 0; b < len(out); b += t.BlockBytes() {
		for _, at := range halves {
			binary.LittleEndian.PutUint16(out[b+at:], 0x1000)
		}
	}
	return out
}

// step evaluates n tokens at the start of the sequence, or after from of them.
func (l *layer) step(b testing.TB, batch *compute.Batch) {
	if err := l.Eval(context.Background(), batch, l); err != nil {
		b.Fatal(err)
	}
}

// newBatch makes a batch of n tokens that differ.
func (l *layer) newBatch(n int) *compute.Batch {
	batch := &compute.Batch{Rows: [][]byte{make([]byte, n*l.row)}, Tokens: make([]int32, n), Logits: make([]float32, 64)}
	for i := range n {
		batch.Tokens[i] = int32(i % 64)
		copy(batch.Rows[0][i*l.row:], l.table[i%64*l.row:][:l.row])
	}
	return batch
}

// BenchmarkDecode runs one token through a layer of the size of Qwen3-30B-A3B; MB/s counts the weights it touches.
func BenchmarkDecode(b *testing.B) {
	for _, kernels := range cpu.Kernels() {
		for threads := 1; threads <= runtime.NumCPU(); threads *= 2 {
			b.Run(fmt.Sprintf("%s/threads=%d", kernels, threads), func(b *testing.B) {
				l := newLayer(b, q30, kernels, threads, 1, 512)
				batch := l.newBatch(1)
				b.SetBytes(int64(l.bytes))
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					if batch.Position = i % 512; batch.Position == 0 {
						require.NoError(b, l.Trim(0))
					}
					copy(batch.Rows[0], l.table[i%64*l.row:][:l.row])
					l.step(b, batch)
				}
			})
		}
	}
}

// BenchmarkPrefill runs a prompt through the same layer.
func BenchmarkPrefill(b *testing.B) {
	const tokens = 256
	for threads := 1; threads <= runtime.NumCPU(); threads *= 2 {
		b.Run(fmt.Sprintf("threads=%d", threads), func(b *testing.B) {
			l := newLayer(b, q30, "", threads, tokens, tokens)
			batch := l.newBatch(tokens)
			for b.Loop() {
				require.NoError(b, l.Trim(0))
				l.step(b, batch)
			}
			b.ReportMetric(float64(tokens*b.N)/b.Elapsed().Seconds(), "tok/s")
		})
	}
}

// TestEvalDoesNotAllocate covers decode and prefill, on one thread and on two.
func TestEvalDoesNotAllocate(t *testing.T) {
	for _, threads := range []int{1, 2} {
		l := newLayer(t, tiny, "", threads, 8, 16)
		one, eight := l.newBatch(1), l.newBatch(8)
		one.Position = 8
		n := testing.AllocsPerRun(50, func() {
			require.NoError(t, l.Trim(0))
			l.step(t, eight)
			l.step(t, one)
		})
		require.Zero(t, n, "%d threads", threads)
	}
}
