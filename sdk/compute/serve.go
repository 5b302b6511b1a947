package compute

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"

	"github.com/bigmoe/bigmoe/sdk/compute/mailbox"
	"github.com/bigmoe/bigmoe/sdk/compute/memory"
	"github.com/bigmoe/bigmoe/sdk/fault"
)

// Handshake is how engine and backend recognise each other.
var Handshake = plugin.HandshakeConfig{
	ProtocolVersion:  mailbox.Version,
	MagicCookieKey:   "BIGMOE_BACKEND",
	MagicCookieValue: "compute",
}

// PluginName is the name under which go-plugin dispenses the control service.
const PluginName = "compute"

// File descriptors that a backend process inherits.
const (
	RegionFD   = 3 // the shared region
	LifelineFD = 4 // read end of a pipe that reaches its end when the engine is gone
)

// MaxControlBytes is the largest control message: a plan that names every expert's tensors takes a few MiB.
const MaxControlBytes = 64 << 20

// spareProcessors is how many more processors Go is told of than a backend has threads. When none is idle, Go takes them away from
// goroutines in system calls, which waits for the engine are, and looks every 20 microseconds for more: with two threads on two cores
// that took a fifth of a token (docs/experiments/idle-processors.md).
const spareProcessors = 4

// Serve makes the process a backend. It returns when the engine closes the backend and ends the process at once when
// the engine is gone. Started by hand it says what it is and exits.
//
// Standard output belongs to the handshake. What the backend writes to standard error ends up in the engine's log;
// lines of JSON in hclog's format keep their level.
//
// With each model that is loaded Serve tells Go of four processors more than the model's threads (GOMAXPROCS).
func Serve(b Backend) {
	s := &server{backend: b}
	if os.Getenv(Handshake.MagicCookieKey) == Handshake.MagicCookieValue {
		signal.Ignore(syscall.SIGPIPE) // of the handshake line to an engine that is gone: it would come before the lifeline
		// A pipe, because the parent-death signal of Linux is tied to a thread of the parent, which Go may end.
		go func() {
			_, _ = os.NewFile(LifelineFD, "lifeline").Read(make([]byte, 1))
			if dir := os.Getenv(plugin.EnvUnixSocketDir); dir != "" { // the engine may not have come to removing it
				for range 3 { // the socket and the file that reserves its name may come into being meanwhile
					if os.RemoveAll(dir) == nil {
						break
					}
				}
			}
			os.Exit(1)
		}()
	}
	plugin.Serve(&plugin.ServeConfig{
		HandshakeConfig: Handshake,
		Plugins:         plugin.PluginSet{PluginName: &served{server: s}},
		GRPCServer: func(opts []grpc.ServerOption) *grpc.Server {
			return grpc.NewServer(append(opts, grpc.MaxRecvMsgSize(MaxControlBytes))...)
		},
	})
}

// served registers the control service with go-plugin.
type served struct {
	plugin.NetRPCUnsupportedPlugin
	server *server
}

func (p *served) GRPCServer(_ *plugin.GRPCBroker, s *grpc.Server) error {
	RegisterControlServer(s, p.server)
	return nil
}

func (p *served) GRPCClient(context.Context, *plugin.GRPCBroker, *grpc.ClientConn) (any, error) {
	return nil, fault.Bugf("a backend has no client")
}

// server answers control calls. The engine makes one at a time.
type server struct {
	UnimplementedControlServer
	backend Backend
	memory  *memory.Memory
	running *runner
}

func (s *server) Describe(context.Context, *DescribeRequest) (*Description, error) {
	return s.backend.Describe(), nil
}

func (s *server) Prepare(_ context.Context, msg *Model) (*Needs, error) {
	m, err := Bind(msg)
	if err != nil {
		return nil, toStatus(err)
	}
	needs, err := s.backend.Prepare(m)
	return needs, toStatus(err)
}

func (s *server) Load(_ context.Context, req *LoadRequest) (*LoadReply, error) {
	if err := s.load(req); err != nil {
		return nil, toStatus(err)
	}
	return &LoadReply{}, nil
}

func (s *server) load(req *LoadRequest) error {
	if s.running != nil {
		select {
		case <-s.running.closed:
			s.running = nil
		default:
			return fault.Bugf("load: the sequence before has not been closed")
		}
	}
	m, err := Bind(req.GetModel())
	if err != nil {
		return err
	}
	if s.memory == nil {
		if s.memory, err = memory.FromFile(os.NewFile(RegionFD, "region")); err != nil {
			return err
		}
	}
	bytes, l := s.memory.Bytes(), req.GetLayout()
	if err := l.Check(m, uint64(len(bytes))); err != nil {
		return err
	}
	box, err := mailbox.Open(bytes[l.Mailbox:])
	if err != nil {
		return fault.As(fault.Bug, err)
	}
	region, err := NewRegion(bytes, l.Ready, l.Slots)
	if err != nil {
		return err
	}
	region.beat = box.Heartbeat()
	runtime.GOMAXPROCS(int(min(m.Options.GetThreads(), 1024)) + spareProcessors) // a number that the backend will refuse is nothing for Go
	seq, err := s.backend.Load(m, region)
	if err != nil {
		return err
	}
	s.running = newRunner(seq, m, l, region, box)
	go s.running.run()
	return nil
}

// runner serves one sequence through its mailbox. It is also the [Host] of its evaluations. It keeps what an evaluation needs, so that
// one allocates nothing.
type runner struct {
	seq     Sequence
	model   *Bound
	layout  *Layout
	region  *Region
	box     *mailbox.Mailbox
	end     *mailbox.End
	ids     []int32   // in the region
	weights []float32 // in the region
	guessed bool      // the answer to a prediction has not been taken
	closed  chan struct{}

	ctx    context.Context // of evaluations, until one is cancelled
	cancel context.CancelFunc
	batch  Batch

	rowAt, rowBytes []uint64 // of the by-row weights
}

func newRunner(seq Sequence, m *Bound, l *Layout, region *Region, box *mailbox.Mailbox) *runner {
	r := &runner{seq: seq, model: m, layout: l, region: region, box: box, end: box.Backend(), closed: make(chan struct{}),
		rowAt: l.RowOffsets(m), rowBytes: m.RowBytes()}
	r.ids = region.Int32s(l.Routes, int(l.MaxRoute))
	r.weights = region.Float32s(l.Routes+4*l.MaxRoute, int(l.MaxRoute))
	r.ctx, r.cancel = context.WithCancel(context.Background())
	return r
}

// run has no recover: a panic ends the process, and the engine reports it with the trace.
func (r *runner) run() {
	for {
		for !r.end.Wait(time.Minute) { // without limit: if the engine goes away, the lifeline ends the process
		}
		msg := r.message()
		var err error
		waited := r.region.Waited()
		switch msg.Kind {
		case mailbox.Eval:
			err = r.eval(&msg)
			if failed := r.settle(); err == nil {
				err = failed
			}
		case mailbox.Trim:
			err = r.seq.Trim(int(msg.Position))
		case mailbox.Close:
			err = r.seq.Close()
			close(r.closed) // before the answer: a load may follow at once
		default:
			die("%v is no request", msg.Kind)
		}
		if err != nil {
			r.end.Send(&mailbox.Message{Kind: mailbox.Error, Fault: uint32(fault.KindOf(err)), Text: text(err)})
		} else {
			r.end.Send(&mailbox.Message{Kind: mailbox.Done, Stall: uint64(r.region.Waited() - waited)})
		}
		if msg.Kind == mailbox.Close {
			return
		}
	}
}

// message takes the message that a wait found.
func (r *runner) message() mailbox.Message {
	msg, err := r.end.Message()
	if err != nil {
		die("%v", err)
	}
	return msg
}

func (r *runner) eval(msg *mailbox.Message) error {
	n, o := int(msg.Tokens), r.model.Options
	rows := 1
	if msg.All {
		rows = n
	}
	if n == 0 || n > int(o.Batch) || rows > int(o.LogitRows) {
		return fault.Bugf("batch of %d tokens and %d rows of logits, the layout has room for %d and %d", n, rows, o.Batch, o.LogitRows)
	}
	b := &r.batch
	*b = Batch{
		Tokens:   r.region.Int32s(r.layout.Tokens, n),
		Position: int(msg.Position),
		All:      msg.All,
		Predict:  msg.Predict,
		Logits:   r.region.Float32s(r.layout.Logits, rows*int(r.model.Plan.Model.Vocabulary)),
		Rows:     b.Rows[:0],
	}
	for i, at := range r.rowAt {
		b.Rows = append(b.Rows, r.region.Bytes[at:at+uint64(n)*r.rowBytes[i]])
	}
	if r.ctx.Err() != nil {
		r.ctx, r.cancel = context.WithCancel(context.Background())
	}
	return r.seq.Eval(r.ctx, b, r)
}

// Route implements [Host].
func (r *runner) Route(bank, k int, ids []int32, weights []float32) (Wave, error) {
	n := len(ids)
	if bank < 0 || bank >= len(r.model.Banks) || k <= 0 || n == 0 || n%k != 0 || n != len(weights) || n > len(r.ids) {
		return Wave{}, fault.Bugf("route of bank %d with %d ids and %d weights, %d per token: at most %d fit", bank, n, len(weights), k, len(r.ids))
	}
	if err := r.settle(); err != nil {
		return Wave{}, err
	}
	copy(r.ids, ids)
	copy(r.weights, weights)
	w, err := r.ask(&mailbox.Message{Kind: mailbox.Route, Bank: uint32(bank), K: uint32(k), Tokens: uint32(n / k)})
	copy(weights, r.weights)
	return w, err
}

// Predict implements [Predictor]. It does not wait for the answer, which says no more than that the guess was read: the next
// call takes it, which saves a token as many round trips as there are layers.
func (r *runner) Predict(bank int, ids []int32) error {
	if bank < 0 || bank >= len(r.model.Banks) || len(ids) == 0 || len(ids) > len(r.ids) {
		return fault.Bugf("prediction of %d experts of bank %d: at most %d of %d banks fit", len(ids), bank, len(r.ids), len(r.model.Banks))
	}
	if err := r.settle(); err != nil {
		return err
	}
	copy(r.ids, ids)
	err := r.send(&mailbox.Message{Kind: mailbox.Predict, Bank: uint32(bank), K: 1, Tokens: uint32(len(ids))})
	r.guessed = err == nil
	return err
}

// settle takes the answer to a prediction, if one is due.
func (r *runner) settle() error {
	if !r.guessed {
		return nil
	}
	r.guessed = false
	_, err := r.answer(mailbox.Predict)
	return err
}

// Next implements [Host].
func (r *runner) Next() (Wave, error) {
	if err := r.settle(); err != nil {
		return Wave{}, err
	}
	return r.ask(&mailbox.Message{Kind: mailbox.Next})
}

func (r *runner) ask(msg *mailbox.Message) (Wave, error) {
	if err := r.send(msg); err != nil {
		return Wave{}, err
	}
	return r.answer(msg.Kind)
}

func (r *runner) send(msg *mailbox.Message) error {
	r.region.Progress()
	if r.box.Cancelled() {
		r.cancel()
		return context.Canceled
	}
	r.end.Send(msg)
	return nil
}

func (r *runner) answer(to mailbox.Kind) (Wave, error) {
	for !r.end.WaitAnswer(time.Minute) {
	}
	reply := r.message()
	switch {
	case reply.Kind != mailbox.Wave || uint64(reply.Slots) > r.layout.MaxWave:
		die("%v with %d slots answers %v", reply.Kind, reply.Slots, to)
	case reply.Text != "":
		return Wave{}, Fault(reply.Fault, reply.Text)
	}
	w := Wave{Slots: r.region.Slots(r.layout.Wave, int(reply.Slots)), More: reply.More}
	for i := range w.Slots {
		if uint64(w.Slots[i].Ready) >= r.layout.Slots {
			return Wave{}, fault.Bugf("expert %d: readiness word %d of %d", w.Slots[i].Expert, w.Slots[i].Ready, r.layout.Slots)
		}
	}
	return w, nil
}

// text is never empty: an empty text means no error.
func text(err error) string {
	if s := err.Error(); s != "" {
		return s
	}
	return "failed without a message"
}

// die ends a backend whose engine broke the protocol: nothing it says can be trusted any more.
func die(format string, args ...any) {
	panic(fmt.Sprintf("protocol: "+format, args...))
}
