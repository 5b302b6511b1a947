package conformance

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/bigmoe/bigmoe/sdk/compute"
	"github.com/bigmoe/bigmoe/sdk/compute/mailbox"
	"github.com/bigmoe/bigmoe/sdk/compute/memory"
)

// regionBytes is the size of the shared region: more than any plan of the suite needs, and never touched as a whole.
const regionBytes = 1 << 30

// exitTime is how long a backend may take to be gone when the page says at once.
const exitTime = 2 * time.Second

// peer is the program under test, and what an engine has of it. In contrast to the engine's own it makes any mistake that
// a check asks for.
type peer struct {
	o        *Options
	cmd      *exec.Cmd
	memory   *memory.Memory
	lifeline *os.File
	sockets  string // folder for the socket
	socket   string
	conn     *grpc.ClientConn
	control  compute.ControlClient
	exited   chan struct{}
	said     *lastWords
	text     *text // loaded and not closed
	clean    sync.Once
}

// spawn starts the program without a word.
func spawn(o *Options, mem *memory.Memory) (p *peer, stdout io.Reader, err error) {
	p = &peer{o: o, memory: mem, exited: make(chan struct{}), said: &lastWords{}}
	if p.sockets, err = os.MkdirTemp("", "bigmoe-check-"); err != nil {
		return nil, nil, err
	}
	end, lifeline, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	defer end.Close()
	p.lifeline = lifeline
	out, write, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	defer write.Close()
	p.cmd = exec.Command(o.Path, o.Args...)
	p.cmd.Env = append(append(os.Environ(), o.Env...), compute.Handshake.MagicCookieKey+"="+compute.Handshake.MagicCookieValue,
		"PLUGIN_UNIX_SOCKET_DIR="+p.sockets)
	p.cmd.ExtraFiles = []*os.File{mem.File(), end}
	p.cmd.Stdout, p.cmd.Stderr, p.cmd.WaitDelay = write, p.said, time.Second
	if err := p.cmd.Start(); err != nil {
		p.kill()
		return nil, nil, err
	}
	go func() {
		_ = p.cmd.Wait()
		close(p.exited)
	}()
	return p, out, nil
}

// start starts the program and connects to it.
func start(ctx context.Context, o *Options) (*peer, error) {
	mem, err := memory.Create(regionBytes)
	if err != nil {
		return nil, err
	}
	return startIn(ctx, o, mem)
}

func startIn(ctx context.Context, o *Options, mem *memory.Memory) (*peer, error) {
	p, stdout, err := spawn(o, mem)
	if err != nil {
		mem.Close()
		return nil, err
	}
	if err := p.connect(ctx, stdout); err != nil {
		err = fmt.Errorf("%w%s", err, p.lastSaid())
		p.kill()
		return nil, err
	}
	return p, nil
}

func (p *peer) connect(ctx context.Context, stdout io.Reader) error {
	lines := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(io.LimitReader(stdout, 1<<16)).ReadString('\n')
		lines <- strings.TrimSpace(line)
		_, _ = io.Copy(io.Discard, stdout)
	}()
	var line string
	select {
	case line = <-lines:
	case <-time.After(p.o.Patience):
		return fmt.Errorf("no handshake line on standard output within %v", p.o.Patience)
	case <-ctx.Done():
		return ctx.Err()
	}
	f := strings.Split(line, "|")
	switch {
	case len(f) < 5:
		return fmt.Errorf("the first line on standard output is %q, expected 1|%d|unix|PATH|grpc", line, mailbox.Version)
	case f[0] != "1" || f[1] != fmt.Sprint(mailbox.Version) || f[2] != "unix" || f[4] != "grpc":
		return fmt.Errorf("handshake line %q, expected 1|%d|unix|PATH|grpc", line, mailbox.Version)
	}
	p.socket = f[3]
	var err error
	p.conn, err = grpc.NewClient("unix:"+p.socket, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithIdleTimeout(0))
	if err != nil {
		return err
	}
	p.control = compute.NewControlClient(p.conn)
	_, err = p.describe(ctx)
	return err
}

func (p *peer) describe(ctx context.Context) (d *compute.Description, err error) {
	err = p.call(ctx, "Describe", func(ctx context.Context) error {
		d, err = p.control.Describe(ctx, &compute.DescribeRequest{})
		return err
	})
	return d, err
}

// call makes one control call. Errors that the backend made come back with their kind.
func (p *peer) call(ctx context.Context, what string, f func(context.Context) error) error {
	limited, cancel := context.WithTimeout(ctx, p.o.Patience)
	defer cancel()
	err := f(limited)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case limited.Err() != nil:
		return fmt.Errorf("%s did not answer within %v", what, p.o.Patience)
	case status.Code(err) == codes.Unavailable && p.gone(exitTime):
		return p.died("during " + what)
	}
	return compute.FromStatus(err)
}

// shutdown asks the program to exit.
func (p *peer) shutdown(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, exitTime)
	defer cancel()
	// The answer may be lost: the program is on its way out.
	_ = p.conn.Invoke(limited, "/plugin.GRPCController/Shutdown", &emptypb.Empty{}, &emptypb.Empty{})
	if !p.gone(exitTime) {
		return fmt.Errorf("still there %v after Shutdown", exitTime)
	}
	return nil
}

// gone reports whether the program has ended, or ends within the limit.
func (p *peer) gone(limit time.Duration) bool {
	if !p.alive() {
		return true
	}
	select {
	case <-p.exited:
		return true
	case <-time.After(limit):
		return false
	}
}

func (p *peer) alive() bool {
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// errDied is in every error about a program that ended by itself.
var errDied = errors.New("the program ended")

func (p *peer) died(when string) error {
	return fmt.Errorf("%w (%s) %s%s", errDied, p.cmd.ProcessState, when, p.lastSaid())
}

func (p *peer) lastSaid() string {
	if said := p.said.String(); said != "" {
		return "; it said: " + said
	}
	return ""
}

// kill ends the program and frees what belongs to it. Again is fine.
func (p *peer) kill() {
	p.end()
	p.clean.Do(func() { p.memory.Close() })
}

// end is kill without the memory.
func (p *peer) end() {
	if p.cmd.Process != nil {
		_ = p.cmd.Process.Kill()
		<-p.exited
	}
	if p.conn != nil {
		p.conn.Close()
	}
	p.lifeline.Close()
	_ = os.RemoveAll(p.sockets)
}

// lastWords keeps the end of what the program wrote to standard error.
type lastWords struct {
	mu  sync.Mutex
	end []byte
}

func (w *lastWords) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.end = append(w.end, b...)
	if n := len(w.end) - 500; n > 0 {
		w.end = w.end[n:]
	}
	return len(b), nil
}

func (w *lastWords) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Join(strings.Fields(strings.ToValidUTF8(string(w.end), "")), " ")
}
