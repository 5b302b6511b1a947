package backend

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-plugin"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/sdk/compute"
	"github.com/bigmoe/bigmoe/sdk/compute/futex"
	"github.com/bigmoe/bigmoe/sdk/compute/memory"
	"github.com/bigmoe/bigmoe/sdk/fault"
	"github.com/bigmoe/bigmoe/sdk/plan"
)

// The test binary is also the backend: with roleEnv set it plays a part instead of testing.
const roleEnv = "BIGMOE_TEST_ROLE"

// startedEnv names a file that the slow backend makes first; then it is slow until its engine is gone.
const startedEnv = "BIGMOE_TEST_STARTED"

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func TestMain(m *testing.M) {
	switch role := os.Getenv(roleEnv); role {
	case "":
		os.Exit(m.Run())
	case "backend":
		compute.Serve(fake{})
	case "starting engine":
		_, err := Start(context.Background(), (&bench{memory: must(memory.Create(1 << 20))}).options("slow"))
		panic(err)
	case "engine": // starts a backend, says where it is, and waits to be killed
		lonelyEngine()
	case "exits":
		fmt.Fprintln(os.Stderr, "no such device")
		os.Exit(3)
	case "garbage":
		fmt.Println("hello, world")
		time.Sleep(time.Hour)
	case "silent":
		time.Sleep(time.Hour)
	case "deaf": // shakes hands, but nobody is there
		fmt.Println("1|1|unix|/nonexistent/socket|grpc")
		time.Sleep(time.Hour)
	case "slow":
		if name := os.Getenv(startedEnv); name != "" {
			engine := os.Getppid()
			_ = os.WriteFile(name, nil, 0o600)
			for os.Getppid() == engine {
				time.Sleep(time.Millisecond)
			}
		} else {
			time.Sleep(300 * time.Millisecond)
		}
		compute.Serve(fake{})
	case "huge line":
		line := bytes.Repeat([]byte("x"), 1<<20)
		for range 64 {
			_, _ = os.Stdout.Write(line)
		}
		time.Sleep(time.Hour)
	case "core":
		fmt.Println("2|1|unix|/nonexistent/socket|grpc")
		time.Sleep(time.Hour)
	case "older":
		fmt.Println("1|0|unix|/nonexistent/socket|grpc")
		time.Sleep(time.Hour)
	case "describe exits", "describe hangs", "describe floods":
		compute.Serve(mute{role: role})
	case "netrpc":
		fmt.Println("1|1|unix|/nonexistent/socket|netrpc")
		time.Sleep(time.Hour)
	case "newer":
		h := compute.Handshake
		h.ProtocolVersion = 2
		plugin.Serve(&plugin.ServeConfig{HandshakeConfig: h, Plugins: plugin.PluginSet{}, GRPCServer: plugin.DefaultGRPCServer})
	default:
		panic(role)
	}
}

const (
	vocabulary = 8
	embedding  = 4
	experts    = 6
	picks      = 3
	batch      = 5
	slots      = 4
	partBytes  = 64
	denseByte  = 11
)

// fake is a backend whose arithmetic is nonsense, but depends on everything that crosses the process boundary.
type fake struct{}

func (fake) Describe() *compute.Description {
	return &compute.Description{Name: "fake", Version: "1", Ops: []string{"embed"}, PlanSchema: plan.SchemaVersion}
}

func (fake) Prepare(m *compute.Bound) (*compute.Needs, error) {
	switch m.Options.Threads {
	case 900:
		return nil, fault.Unsupportedf("op %q is not supported", "warp")
	case 901:
		time.Sleep(time.Hour)
	case 906:
		exit("prepare")
	case 907:
		return &compute.Needs{StateBytes: math.MaxUint64, ScratchBytes: 2}, nil
	case 908:
		closeSockets()
	}
	return &compute.Needs{StateBytes: uint64(m.Options.Context)}, nil
}

func (fake) Load(m *compute.Bound, region *compute.Region) (compute.Sequence, error) {
	switch m.Options.Threads {
	case 902:
		return nil, fault.Corruptf("weight %q is not finite", "w")
	case 903:
		panic("load exploded")
	case 904: // slow, but alive
		for range 2 * patience / (50 * time.Millisecond) {
			time.Sleep(50 * time.Millisecond)
			region.Progress()
		}
	case 905:
		time.Sleep(time.Hour)
	case 909:
		exit("load")
	case 16:
		if have := runtime.GOMAXPROCS(0); have <= 16 {
			return nil, fault.Bugf("Go knows of %d processors: none is idle when 16 threads wait for the engine", have)
		}
	}
	return &fakeSequence{model: m, region: region}, nil
}

type fakeSequence struct {
	model   *compute.Bound
	region  *compute.Region
	history []float64
}

func (s *fakeSequence) Trim(position int) error {
	if position == trimHangs {
		time.Sleep(time.Hour)
	}
	if position > len(s.history) {
		return fault.Userf("trim to %d of %d", position, len(s.history))
	}
	s.history = s.history[:position]
	return nil
}

func (s *fakeSequence) Close() error { return nil }

func (s *fakeSequence) Eval(ctx context.Context, b *compute.Batch, host compute.Host) error {
	if b.Position != len(s.history) {
		return fault.Bugf("position %d, expected %d", b.Position, len(s.history))
	}
	if err := s.misbehave(b.Tokens[0], host); err != nil {
		return err
	}
	h := make([]float64, len(b.Tokens))
	for i, token := range b.Tokens {
		h[i] = float64(token) + float64(b.Position+i)/7
		for _, x := range b.Rows[0][i*4*embedding : (i+1)*4*embedding] {
			h[i] += float64(x)
		}
		h[i] += float64(s.region.Bytes[s.model.Weights[1].Offset])
	}
	for bank := range s.model.Banks {
		if err := s.moe(bank, b, h, host); err != nil {
			return fmt.Errorf("layer %d: %w", bank, err)
		}
	}
	row := 0
	for i := range h {
		s.history = append(s.history, h[i])
		if !b.All && i < len(h)-1 {
			continue
		}
		sum := 0.0
		for _, x := range s.history {
			sum += x
		}
		for v := range vocabulary {
			b.Logits[row*vocabulary+v] = float32(sum*float64(v+1) + h[i])
		}
		row++
	}
	return nil
}

func (s *fakeSequence) moe(bank int, b *compute.Batch, h []float64, host compute.Host) error {
	var ids []int32
	var weights []float32
	for i, token := range b.Tokens {
		for j := range picks {
			ids = append(ids, int32(int(token)+b.Position+i+bank+2*j)%experts)
			weights = append(weights, 1/float32(j+1))
		}
	}
	value := map[int32]float64{}
	wave, err := host.Route(bank, picks, ids, weights)
	for ; err == nil; wave, err = host.Next() {
		for _, slot := range wave.Slots {
			if _, twice := value[slot.Expert]; twice {
				return fault.Bugf("expert %d came twice", slot.Expert)
			}
			sum := 0.0
			for part := range 2 {
				if err := s.region.Wait(&slot, 1<<part); err != nil {
					return err
				}
				for _, x := range s.region.Bytes[slot.Part[part]:][:partBytes] {
					sum = 3*sum + float64(x)
				}
			}
			value[slot.Expert] = sum
		}
		if !wave.More {
			break
		}
	}
	if err != nil {
		return err
	}
	for i, id := range ids {
		x, ok := value[id]
		if !ok {
			return fault.Bugf("expert %d never came", id)
		}
		h[i/picks] += float64(weights[i]) * x / 1e6
	}
	return nil
}

// model returns a plan of some layers, bound to nothing in particular.
func model(t testing.TB, layers uint32) *compute.Bound {
	weight := func(name string, shape ...uint64) *plan.Weight {
		return &plan.Weight{Name: name, Sources: []*plan.Source{{Tensor: name}}, Shape: shape}
	}
	table := weight("table", embedding, vocabulary)
	table.Residency = plan.Residency_ROWS
	p := &plan.Plan{Schema: plan.SchemaVersion, Architecture: "fake", Recipe: "fake",
		Model:   &plan.Model{Layers: layers, Embedding: embedding, Vocabulary: vocabulary, ContextLength: 64, Experts: experts, ExpertsUsed: picks},
		Weights: []*plan.Weight{table, weight("router", embedding, experts), weight("head", embedding, vocabulary)},
		Blocks:  []*plan.Block{{Kind: plan.BlockKind_EMBEDDING, Ops: []*plan.Op{{Kind: "embed", Weights: []string{"table"}, Out: []string{"x0"}}}}},
	}
	m := &compute.Bound{Plan: p, Options: &compute.Options{Context: 64, Batch: batch, LogitRows: batch, Threads: 1}}
	for layer := range layers {
		v := func(name string) string { return fmt.Sprintf("%s%d", name, layer) }
		bank := fmt.Sprintf("experts%d", layer)
		p.Banks = append(p.Banks, &plan.Bank{Name: bank, Layer: layer, Experts: experts, Parts: []*plan.Part{
			{Role: plan.Role_GATE_UP, Tensors: []string{bank + ".gate_up"}, In: embedding, Out: 8},
			{Role: plan.Role_DOWN, Tensors: []string{bank + ".down"}, In: 4, Out: embedding},
		}})
		p.Blocks = append(p.Blocks, &plan.Block{Kind: plan.BlockKind_LAYER, Layer: layer, Ops: []*plan.Op{
			{Kind: "linear", In: []string{v("x")}, Weights: []string{"router"}, Out: []string{v("scores")}},
			{Kind: "route", In: []string{v("scores")}, Out: []string{v("ids"), v("weights")},
				Attrs: []*plan.Attr{{Name: "top_k", Value: &plan.Attr_I{I: picks}}, {Name: "gating", Value: &plan.Attr_S{S: "softmax"}}}},
			{Kind: "experts", In: []string{v("x"), v("ids"), v("weights")}, Bank: bank, Out: []string{fmt.Sprintf("x%d", layer+1)},
				Attrs: []*plan.Attr{{Name: "activation", Value: &plan.Attr_S{S: "silu"}}}},
		}})
		m.Banks = append(m.Banks, &compute.BoundBank{Parts: []*compute.BoundPart{{RowBytes: 16}, {RowBytes: 16}}})
	}
	p.Blocks = append(p.Blocks, &plan.Block{Kind: plan.BlockKind_HEAD, Ops: []*plan.Op{
		{Kind: "linear", In: []string{fmt.Sprintf("x%d", layers)}, Weights: []string{"head"}, Out: []string{plan.Logits}}}})
	for range p.Weights {
		m.Weights = append(m.Weights, &compute.BoundWeight{RowBytes: 4 * embedding})
	}
	var err error
	m.Values, err = plan.Validate(p)
	require.NoError(t, err)
	return m
}

// bench is an engine in small: memory with the model in it, and a host that plays the expert store.
type bench struct {
	memory *memory.Memory
	model  *compute.Bound
	layout *compute.Layout
	region *compute.Region
	arena  uint64

	delay   time.Duration // before a slot is ready
	perWave int
	fail    error // what Route returns
	onRoute func()

	bank    int
	pending []int32
	gen     [slots]uint32
	routes  atomic.Int64
	landing sync.WaitGroup
}

func newBench(t testing.TB) *bench { return newBenchOf(t, 2) }

func newBenchOf(t testing.TB, layers uint32) *bench {
	m := model(t, layers)
	l, err := compute.NewLayout(m, slots)
	require.NoError(t, err)
	h := &bench{model: m, layout: l, perWave: slots}
	for _, w := range m.Weights[1:] {
		w.Offset = l.RegionBytes
		l.RegionBytes += 4096
	}
	h.arena = l.RegionBytes
	l.RegionBytes += slots * 4096
	h.memory, err = memory.Create(1 << 30)
	require.NoError(t, err)
	t.Cleanup(func() {
		h.landing.Wait()
		h.memory.Close()
	})
	h.region, err = compute.NewRegion(h.memory.Bytes(), l.Ready, l.Slots)
	require.NoError(t, err)
	h.memory.Bytes()[m.Weights[1].Offset] = denseByte
	return h
}

func (h *bench) Route(bank, k int, ids []int32, weights []float32) (compute.Wave, error) {
	h.routes.Add(1)
	if h.onRoute != nil {
		h.onRoute()
	}
	if h.fail != nil {
		return compute.Wave{}, h.fail
	}
	for i := range weights {
		weights[i] *= 2
	}
	h.bank, h.pending = bank, slices.Compact(slices.Sorted(slices.Values(ids)))
	return h.Next()
}

func (h *bench) Next() (compute.Wave, error) {
	if len(h.pending) == 0 {
		return compute.Wave{}, errors.New("no more waves")
	}
	n := min(h.perWave, len(h.pending))
	var w compute.Wave
	for i, id := range h.pending[:n] {
		at := h.arena + uint64(i)*4096
		h.gen[i]++
		word := h.region.Word(uint32(i))
		word.Store(h.gen[i] << compute.GenShift)
		w.Slots = append(w.Slots, compute.Slot{Expert: id, Ready: uint32(i), Gen: h.gen[i], Part: [3]uint64{at, at + 1000}})
		bank := h.bank
		h.landing.Add(1)
		land := func() {
			defer h.landing.Done()
			for part := range 2 {
				for j := range uint64(partBytes) {
					h.memory.Bytes()[at+1000*uint64(part)+j] = byte(100*bank + 10*int(id) + part + int(j))
				}
				word.Or(1 << part)
				futex.Wake(word)
			}
		}
		if h.delay > 0 {
			time.AfterFunc(h.delay, land)
		} else {
			land()
		}
	}
	h.pending = h.pending[n:]
	w.More = len(h.pending) > 0
	return w, nil
}

func (h *bench) batch(position int, all bool, tokens ...int32) *compute.Batch {
	raw := make([]byte, 0, len(tokens)*4*embedding)
	for _, token := range tokens {
		for range embedding {
			raw = binary.LittleEndian.AppendUint32(raw, uint32(token)*2654435761)
		}
	}
	rows := 1
	if all {
		rows = len(tokens)
	}
	return &compute.Batch{Tokens: tokens, Position: position, Rows: [][]byte{raw}, All: all, Logits: make([]float32, rows*vocabulary)}
}

// options start the test binary in the given role.
func (h *bench) options(role string) Options {
	path, err := os.Executable()
	if err != nil {
		panic(err)
	}
	return Options{Path: path, Env: []string{roleEnv + "=" + role}, Memory: h.memory, Log: zerolog.Nop(), StartTimeout: hang}
}

func (h *bench) start(t testing.TB, change ...func(*Options)) *Process {
	o := h.options("backend")
	for _, f := range change {
		f(&o)
	}
	p, err := Start(t.Context(), o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p
}

func (h *bench) load(t testing.TB, d Device) compute.Sequence {
	seq, err := d.Load(t.Context(), h.model, h.layout)
	require.NoError(t, err)
	return seq
}

// syncBuffer is a log that two goroutines may use.
type syncBuffer struct {
	mu  sync.Mutex
	buf strings.Builder
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
