package backend

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"
	"github.com/hashicorp/go-plugin/runner"
	"github.com/rs/zerolog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/bigmoe/bigmoe/sdk/compute"
	"github.com/bigmoe/bigmoe/sdk/compute/mailbox"
	"github.com/bigmoe/bigmoe/sdk/compute/memory"
	"github.com/bigmoe/bigmoe/sdk/fault"
)

// Options say which backend to start and how patient to be.
type Options struct {
	Path         string // the program
	Args         []string
	Env          []string // added to this process's environment
	SHA256       []byte   // of the program; not checked when empty
	Log          zerolog.Logger
	Memory       *memory.Memory // what Load places things in; must outlive the process
	StartTimeout time.Duration  // default 30 s
	HangTimeout  time.Duration  // without any sign of life while at work; default 60 s
}

// Times that nobody needs to choose.
const (
	tick        = 100 * time.Millisecond // how often a waiting engine looks around
	cancelGrace = 10 * time.Second       // for a backend to notice that it was cancelled; at most HangTimeout
	closeGrace  = 2 * time.Second        // for a backend to exit by itself
)

// Process is a backend in a child process. Except for [Process.Dead], [Process.PID] and [Process.Close] one method is
// called at a time.
type Process struct {
	opts     Options
	child    *child
	client   *plugin.Client
	control  compute.ControlClient
	about    *compute.Description
	lifeline *os.File // the child ends when this closes, with us at the latest
	sockets  string   // folder of go-plugin's socket
	box      atomic.Pointer[mailbox.Mailbox]
	seq      *sequence

	dead    chan struct{} // closed when the child has exited and death is set
	death   error
	reason  atomic.Pointer[error] // why we killed it
	closing atomic.Bool
	close   sync.Once
}

var _ Device = (*Process)(nil)

// Start starts a backend and waits until it has described itself. ctx only bounds the start.
func Start(ctx context.Context, opts Options) (*Process, error) {
	if opts.StartTimeout == 0 {
		opts.StartTimeout = 30 * time.Second
	}
	if opts.HangTimeout == 0 {
		opts.HangTimeout = time.Minute
	}
	p := &Process{opts: opts, dead: make(chan struct{})}
	if err := p.start(ctx); err != nil {
		return nil, fmt.Errorf("backend %s: %w", opts.Path, err)
	}
	return p, nil
}

func (p *Process) start(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := p.checkProgram(); err != nil {
		return err
	}
	end, lifeline, err := os.Pipe()
	if err != nil {
		return err
	}
	defer end.Close()
	p.lifeline = lifeline

	cmd := exec.Command(p.opts.Path, p.opts.Args...)
	cmd.ExtraFiles = []*os.File{compute.RegionFD - 3: p.opts.Memory.File(), compute.LifelineFD - 3: end}
	p.child = newChild(cmd)
	name := filepath.Base(p.opts.Path)
	stray := &lines{log: p.opts.Log, tail: &p.child.stderr.tail}
	p.client = plugin.NewClient(&plugin.ClientConfig{
		HandshakeConfig:  compute.Handshake,
		Plugins:          plugin.PluginSet{compute.PluginName: dispenser{}},
		AllowedProtocols: []plugin.Protocol{plugin.ProtocolGRPC},
		Logger:           newLogger(p.opts.Log, name),
		SyncStdout:       stray,
		SyncStderr:       stray,
		SkipHostEnv:      true, // it would win over opts.Env
		StartTimeout:     p.opts.StartTimeout,
		GRPCDialOptions:  []grpc.DialOption{grpc.WithIdleTimeout(0)}, // the socket is gone by then
		RunnerFunc: func(_ hclog.Logger, spec *exec.Cmd, sockets string) (runner.Runner, error) {
			cmd.Env = slices.Concat(os.Environ(), p.opts.Env, spec.Env)
			p.sockets = sockets
			return p.child, nil
		},
	})

	limited, cancel := context.WithTimeout(ctx, p.opts.StartTimeout)
	defer cancel()
	err = p.connect(limited)
	// Nothing connects a second time, and a killed process could not clean up.
	if p.sockets != "" {
		_ = os.RemoveAll(p.sockets)
	}
	if err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		} else {
			err = p.startError(limited, err)
		}
		p.child.kill()
		p.client.Kill()
		p.lifeline.Close()
		return err
	}
	go p.watch()
	return nil
}

// connect starts the program, shakes hands and asks for the description.
func (p *Process) connect(ctx context.Context) error {
	// go-plugin takes no context: end the wait by ending the child.
	defer context.AfterFunc(ctx, p.child.kill)()
	if _, err := p.client.Start(); err != nil {
		return err
	}
	client, err := p.client.Client()
	if err != nil {
		return err
	}
	control, err := client.Dispense(compute.PluginName)
	if err != nil {
		return err
	}
	p.control = control.(compute.ControlClient)
	p.about, err = p.control.Describe(ctx, &compute.DescribeRequest{})
	if err == nil && len(p.about.Name)+len(p.about.Version)+len(p.about.Kernels) > compute.MaxNameBytes {
		err = fmt.Errorf("its name, version and kernels are %d, %d and %d bytes long; at most %d fit a message",
			len(p.about.Name), len(p.about.Version), len(p.about.Kernels), compute.MaxNameBytes)
	}
	return err
}

// startError replaces go-plugin's account of a failed start by what happened.
func (p *Process) startError(limited context.Context, err error) error {
	c := p.child
	if c.pid() == 0 {
		return launchError(p.opts.Path, err)
	}
	select {
	case <-c.exited: // the usual end: let it finish
		<-c.stderr.ended
	case <-time.After(drainTime):
	}
	said, _ := c.stderr.tail.said()
	if said != "" {
		said = "; it said: " + said
	}
	line := c.stdout.tail.firstLine()
	fields := strings.Split(line, "|")
	handshake := len(fields) >= 5
	version, verr := strconv.Atoi(at(fields, 1))
	switch {
	case limited.Err() != nil:
		return fmt.Errorf("did not answer within %v%s", p.opts.StartTimeout, said)
	case line != "" && (!handshake || verr != nil):
		return fault.Userf("is not a backend: it printed %q%s", line, said)
	case handshake && fields[0] != strconv.Itoa(plugin.CoreProtocolVersion):
		return fault.Unsupportedf("speaks version %s of go-plugin's core protocol, this program speaks version %d", fields[0], plugin.CoreProtocolVersion)
	case handshake && version != mailbox.Version:
		return fault.Unsupportedf("speaks version %d of the backend protocol, this program speaks version %d", version, mailbox.Version)
	case handshake && fields[4] != string(plugin.ProtocolGRPC):
		return fault.Unsupportedf("wants to be controlled over %s, not grpc", fields[4])
	}
	select {
	case <-c.exited:
		if line == "" && c.cmd.ProcessState.Exited() { // and was not killed: that may happen to any program
			return fault.Userf("is not a backend: it ended (%s) without a handshake%s", c.status(), said)
		}
		return fmt.Errorf("ended (%s) during the start%s", c.status(), said)
	default:
		return fmt.Errorf("start: %w%s", compute.FromStatus(err), said)
	}
}

func at(list []string, i int) string {
	if i < len(list) {
		return list[i]
	}
	return ""
}

// dispenser makes the control client.
type dispenser struct{ plugin.NetRPCUnsupportedPlugin }

func (dispenser) GRPCServer(*plugin.GRPCBroker, *grpc.Server) error {
	return fault.Bugf("the engine serves no backend")
}

func (dispenser) GRPCClient(_ context.Context, _ *plugin.GRPCBroker, conn *grpc.ClientConn) (any, error) {
	return compute.NewControlClient(conn), nil
}

// watch records the death of the child and wakes whoever waits for it.
func (p *Process) watch() {
	<-p.child.exited
	select {
	case <-p.child.stderr.ended:
	case <-time.After(2 * drainTime):
	}
	said, crashed := p.child.stderr.tail.said()
	text := fmt.Sprintf("backend %s (process %d) died: %s", p.about.Name, p.PID(), p.child.status())
	if r := p.reason.Load(); r != nil {
		text = fmt.Sprintf("backend %s (process %d) was killed: %v", p.about.Name, p.PID(), *r)
	}
	if said != "" {
		text += "; it last said: " + said
	}
	if p.death = errors.New(text); crashed {
		p.death = fault.As(fault.Bug, p.death)
	}
	if !p.closing.Load() {
		p.opts.Log.Warn().Msg(text)
	}
	close(p.dead)
	if box := p.box.Load(); box != nil {
		box.Nudge()
	}
}

// kill ends the child and returns the error that tells why.
func (p *Process) kill(format string, args ...any) error {
	reason := fmt.Errorf(format, args...)
	p.reason.CompareAndSwap(nil, &reason)
	p.child.kill()
	<-p.dead
	return p.death
}

// Dead implements [Device].
func (p *Process) Dead() error {
	select {
	case <-p.dead:
		return p.death
	default:
		return nil
	}
}

// PID implements [Device].
func (p *Process) PID() int { return p.child.pid() }

// Describe implements [Device].
func (p *Process) Describe() *compute.Description { return p.about }

// Prepare implements [Device].
func (p *Process) Prepare(ctx context.Context, m *compute.Bound) (*compute.Needs, error) {
	msg, err := m.Message()
	if err != nil {
		return nil, err
	}
	var needs *compute.Needs
	err = p.call(ctx, "prepare", nil, func(ctx context.Context) error {
		needs, err = p.control.Prepare(ctx, msg)
		return err
	})
	if err == nil {
		for _, bytes := range []uint64{needs.StateBytes, needs.ScratchBytes, needs.ProcessBytes} {
			if bytes > mostBytes {
				return nil, fault.Bugf("backend %s: says that it takes %d bytes", p.about.Name, bytes)
			}
		}
	}
	return needs, err
}

// mostBytes is what no backend can take: sums of it do not overflow.
const mostBytes = 1 << 56

// Load implements [Device].
func (p *Process) Load(ctx context.Context, m *compute.Bound, l *compute.Layout) (compute.Sequence, error) {
	if p.seq != nil {
		if err := p.seq.Close(); err != nil {
			return nil, err
		}
		p.seq = nil
	}
	msg, err := m.Message()
	if err != nil {
		return nil, err
	}
	bytes := p.opts.Memory.Bytes()
	if err := l.Check(m, uint64(len(bytes))); err != nil {
		return nil, err
	}
	box, err := mailbox.Format(bytes[l.Mailbox:])
	if err != nil {
		return nil, fault.As(fault.Bug, err)
	}
	region, err := compute.NewRegion(bytes, l.Ready, l.Slots)
	if err != nil {
		return nil, fault.As(fault.Bug, err)
	}
	p.box.Store(box)
	err = p.call(ctx, "load", box, func(ctx context.Context) error {
		_, err := p.control.Load(ctx, &compute.LoadRequest{Model: msg, Layout: l})
		return err
	})
	if err != nil {
		if ctx.Err() != nil && p.Dead() == nil {
			_ = p.kill("loading was cancelled")
		}
		return nil, err
	}
	p.seq = newSequence(p, m, l, region, box)
	return p.seq, nil
}

// call makes a control call, with a watch on the child and its heartbeat if it has one by now.
func (p *Process) call(ctx context.Context, what string, box *mailbox.Mailbox, f func(context.Context) error) error {
	if err := p.Dead(); err != nil {
		return err
	}
	done, watched := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(watched)
		pulse := newPulse(box)
		for {
			select {
			case <-done:
				return
			case <-p.dead:
				return
			case <-time.After(tick):
			}
			if pulse.quiet(tick) >= p.opts.HangTimeout {
				_ = p.kill("no sign of life for %v during %s", p.opts.HangTimeout, what)
			}
		}
	}()
	err := f(ctx)
	close(done)
	<-watched
	if err == nil {
		return nil
	}
	if status.Code(err) == codes.DeadlineExceeded { // the child was told the deadline too, and may notice it a moment before ctx does
		select {
		case <-ctx.Done():
		case <-time.After(tick):
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if status.Code(err) == codes.Unavailable { // the connection broke: watch is about to tell why
		select {
		case <-p.dead:
			return p.death
		case <-time.After(5 * drainTime):
			return p.kill("control connection: %v", err)
		}
	}
	if err := p.Dead(); err != nil {
		return err
	}
	err = compute.FromStatus(err)
	return fmt.Errorf("backend %s: %s: %w", p.about.Name, what, err)
}

// Close implements [Device]: it asks the child to exit, kills it after two seconds, and returns when it is gone.
func (p *Process) Close() error {
	p.close.Do(func() {
		p.closing.Store(true)
		timer := time.AfterFunc(closeGrace, p.child.kill) // go-plugin waits for ever for a stopped process
		p.client.Kill()
		timer.Stop()
		<-p.dead
		p.lifeline.Close()
	})
	return nil
}

// pulse measures how long a backend has shown no sign of life. It adds up time spent looking, not time on the
// clock: when the whole process group was stopped, that time does not count.
type pulse struct {
	box   *mailbox.Mailbox
	beat  uint32
	still time.Duration
}

func newPulse(box *mailbox.Mailbox) pulse {
	p := pulse{box: box}
	if box != nil {
		p.beat = box.Heartbeat().Load()
	}
	return p
}

// quiet is told that looked went by and returns the time since the last sign of life.
func (p *pulse) quiet(looked time.Duration) time.Duration {
	if p.box != nil {
		if beat := p.box.Heartbeat().Load(); beat != p.beat {
			p.beat, p.still = beat, 0
			return 0
		}
	}
	p.still += min(looked, tick)
	return p.still
}
