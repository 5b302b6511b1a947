package cpu_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/plugins/compute-cpu/cpu"
	"github.com/bigmoe/bigmoe/plugins/compute-cpu/internal/arena"
	"github.com/bigmoe/bigmoe/sdk/compute"
	"github.com/bigmoe/bigmoe/sdk/compute/optable"
	"github.com/bigmoe/bigmoe/sdk/dtype"
	"github.com/bigmoe/bigmoe/sdk/plan"
)

// deltaNet is a model of gated_delta_net ops on the same input, the last of which gives the logits.
type deltaNet struct {
	keys, values, dim int // heads
	tokens            int // of the text, all different
	x                 [][]float32
	model             *optable.Model
}

// parts are the widths of q, k, v, beta and gamma, in the order in which they lie in a row of x.
func (n *deltaNet) parts() []int {
	return []int{n.keys * n.dim, n.keys * n.dim, n.values * n.dim, n.values, n.values}
}

// newDeltaNet makes keys of length 1 and decays from none to all but nothing; some corrections are none.
func newDeltaNet(t testing.TB, keys, values, dim, tokens, layers int) *deltaNet {
	n := &deltaNet{keys: keys, values: values, dim: dim, tokens: tokens}
	rng := rand.New(rand.NewPCG(uint64(dim), uint64(values)))
	width := 0
	var ops []*plan.Op
	for i, w := range n.parts() {
		ops = append(ops, optable.Op("slice", "x", "", []string{"q", "k", "v", "beta", "gamma"}[i], attrs{"start": width, "width": w}))
		width += w
	}
	out, y := values*dim, ""
	var states []*plan.State
	for i := range layers {
		y = fmt.Sprint("y", i)
		net := optable.Op("gated_delta_net", "q k v beta gamma", "", y, attrs{"key_heads": keys, "value_heads": values, "head_dim": dim})
		net.States = []string{fmt.Sprint("s", i)}
		states = append(states, &plan.State{Name: net.States[0], Kind: plan.StateKind_RECURRENT, Elements: uint64(out * dim), Rewind: plan.Rewind_SNAPSHOT})
		ops = append(ops, net)
	}
	var table []byte
	for range tokens {
		row := make([]float32, width)
		for i := range row {
			row[i] = float32(rng.NormFloat64())
		}
		for g := range keys {
			k := row[(keys+g)*dim:][:dim]
			var sum float64
			for _, v := range k {
				sum += float64(v) * float64(v)
			}
			for i := range k {
				k[i] /= float32(math.Sqrt(sum))
			}
		}
		for h := range values {
			row[width-2*values+h] = []float32{0, rng.Float32(), 1}[rng.IntN(3)]
			row[width-values+h] = -[]float32{0, rng.Float32() / 16, 4 * rng.Float32(), 60}[min(rng.IntN(16), 3)]
		}
		n.x, table = append(n.x, row), append(table, arena.Bytes(row)...)
	}
	p := &plan.Plan{Schema: plan.SchemaVersion, Recipe: "delta", Model: &plan.Model{Layers: 1, Vocabulary: uint32(out), ContextLength: 4096},
		Weights: []*plan.Weight{{Name: "table", Shape: []uint64{uint64(width), uint64(tokens)}, Residency: plan.Residency_ROWS, Sources: []*plan.Source{{Tensor: "table"}}}},
		States:  states,
		Blocks: []*plan.Block{
			{Kind: plan.BlockKind_EMBEDDING, Ops: []*plan.Op{optable.Op("embed", "", "table", "x", nil)}},
			{Kind: plan.BlockKind_LAYER, Ops: ops},
			{Kind: plan.BlockKind_HEAD, Ops: []*plan.Op{optable.Op("scale", y, "", plan.Logits, attrs{"factor": 1.0})}},
		}}
	n.model = &optable.Model{Table: table, Dense: [][]byte{nil}, Bound: &compute.Bound{Plan: p,
		Options: &compute.Options{Context: uint32(tokens), Batch: uint32(tokens), LogitRows: uint32(tokens), Threads: 1},
		Weights: []*compute.BoundWeight{{Type: uint32(dtype.F32), RowBytes: uint64(4 * width)}}}}
	var err error
	n.model.Bound.Values, err = plan.Validate(p)
	require.NoError(t, err)
	require.NoError(t, n.model.Place(1, func(size uint64) ([]byte, error) { return make([]byte, size), nil }))
	return n
}

// load returns a sequence for the text, in batches of at most batch tokens.
func (n *deltaNet) load(t testing.TB, kernels string, threads, batch, logitRows int) compute.Sequence {
	b, err := cpu.New(cpu.Options{Kernels: kernels})
	require.NoError(t, err)
	seq, err := b.Load(n.model.Options(&compute.Options{Context: uint32(n.tokens), Batch: uint32(batch), LogitRows: uint32(logitRows), Threads: uint32(threads)}), n.model.Region)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, seq.Close()) })
	return seq
}

// eval runs tokens from position on, in batches of those sizes.
func (n *deltaNet) eval(t testing.TB, seq compute.Sequence, position int, batches ...int) (out []float32) {
	for _, size := range batches {
		tokens := make([]int32, size)
		for i := range tokens {
			tokens[i] = int32(position + i)
		}
		b := n.model.Batch(position, true, tokens...)
		require.NoError(t, seq.Eval(context.Background(), b, optable.NewHost(n.model)))
		out, position = append(out, b.Logits...), position+size
	}
	return out
}

// want is the recurrence token by token, D9 to D13 of specs/qwen35moe.md, in float64.
func (n *deltaNet) want() (out []float64) {
	d := n.dim
	s := make([]float64, n.values*d*d) // [head][key][value]
	for _, row := range n.x {
		var part [][]float32
		for _, w := range n.parts() {
			part, row = append(part, row[:w]), row[w:]
		}
		for h := range n.values {
			g := h % n.keys
			q, k, s := part[0][g*d:], part[1][g*d:], s[h*d*d:]
			decay, beta := math.Exp(float64(part[4][h])), float64(part[3][h])
			for j := range d {
				var mu, o float64
				for i := range d {
					s[i*d+j] *= decay
					mu += s[i*d+j] * float64(k[i])
				}
				for i := range d {
					s[i*d+j] += float64(k[i]) * beta * (float64(part[2][h*d+j]) - mu)
					o += s[i*d+j] * float64(q[i])
				}
				out = append(out, o)
			}
		}
	}
	return out
}

// TestDeltaChunks holds texts of several chunks to the recurrence, on every kernel set, and the same text in other batches
// and on other threads to the same bits.
func TestDeltaChunks(t *testing.T) {
	const tokens = 100
	for _, n := range []*deltaNet{newDeltaNet(t, 1, 1, 1, tokens, 1), newDeltaNet(t, 2, 6, 5, tokens, 1), newDeltaNet(t, 2, 4, 64, tokens, 1)} {
		want := n.want()
		var top float64
		for _, v := range want {
			top = max(top, math.Abs(v))
		}
		for _, kernels := range cpu.Kernels() {
			t.Run(fmt.Sprintf("%d of %d, %s", n.values, n.dim, kernels), func(t *testing.T) {
				got := n.eval(t, n.load(t, kernels, 1, tokens, tokens), 0, tokens)
				for i, v := range want {
					require.InDelta(t, v, got[i], 3e-6*top, "token %d, output %d", i/(n.values*n.dim), i%(n.values*n.dim))
				}
				single := make([]int, tokens)
				for i := range single {
					single[i] = 1
				}
				seq := n.load(t, kernels, 3, tokens, tokens)
				for _, batches := range [][]int{single, {31, 1, 1, 31, 36}, {32, 32, 32, 4}, {33, 67}, {1, 64, 35}, {7, 7, 7, 7, 7, 65}} {
					require.NoError(t, seq.Trim(0))
					require.Equal(t, got, n.eval(t, seq, 0, batches...), "batches of %v", batches)
				}
			})
		}
	}
}

// BenchmarkDelta is the delta nets of Qwen3.5-35B-A3B: one layer's, whose memory stays in the processor's cache, with
// prompts of 64 and 512 tokens in one batch, and all thirty layers' together, token by token and with prompts of 64.
func BenchmarkDelta(b *testing.B) {
	for _, c := range []struct{ layers, tokens int }{{1, 1}, {1, 64}, {1, 512}, {30, 1}, {30, 64}} {
		for threads := 1; threads <= 2; threads++ {
			b.Run(fmt.Sprintf("layers=%d/tokens=%d/threads=%d", c.layers, c.tokens, threads), func(b *testing.B) {
				text := max(c.tokens, 64)
				n := newDeltaNet(b, 16, 32, 128, text, c.layers)
				seq := n.load(b, "", threads, c.tokens, 1)
				host := optable.NewHost(n.model)
				var batches []*compute.Batch
				for from := 0; from < text; from += c.tokens {
					ids := make([]int32, c.tokens)
					for i := range ids {
						ids[i] = int32(from + i)
					}
					batches = append(batches, n.model.Batch(from, false, ids...))
				}
				count := 0
				for i := 0; b.Loop(); i++ {
					if i %= len(batches); i == 0 {
						b.StopTimer()
						require.NoError(b, seq.Trim(0))
						b.StartTimer()
					}
					require.NoError(b, seq.Eval(context.Background(), batches[i], host))
					count += c.tokens * c.layers
				}
				b.ReportMetric(b.Elapsed().Seconds()*1e6/float64(count), "µs/token/layer")
			})
		}
	}
}
