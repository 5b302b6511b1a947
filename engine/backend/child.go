package backend

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// child is the operating system's view of a backend process, in the shape go-plugin asks for. In contrast to
// go-plugin's own it notices an exit at once, even if a grandchild still holds the output pipes.
type child struct {
	cmd            *exec.Cmd
	stdout, stderr *output
	exited         chan struct{} // closed when cmd.ProcessState is there

	mu      sync.Mutex
	process *os.Process // nil until started
	killed  bool
}

func newChild(cmd *exec.Cmd) *child {
	return &child{cmd: cmd, stdout: newOutput(), stderr: newOutput(), exited: make(chan struct{})}
}

// Start implements runner.Runner.
func (c *child) Start(context.Context) error {
	outW, err := c.stdout.open()
	if err != nil {
		return err
	}
	defer outW.Close()
	errW, err := c.stderr.open()
	if err != nil {
		return err
	}
	defer errW.Close()
	c.cmd.Stdout, c.cmd.Stderr = outW, errW
	if err := c.launch(); err != nil {
		c.stdout.Close()
		c.stderr.Close()
		return err
	}
	go func() {
		_ = c.cmd.Wait()
		close(c.exited)
		// What the child wrote is in the pipes; whoever else holds them does not matter.
		end := time.Now().Add(drainTime)
		_ = c.stdout.file.SetReadDeadline(end)
		_ = c.stderr.file.SetReadDeadline(end)
	}()
	return nil
}

// drainTime is how long the output of a dead child is waited for.
const drainTime = 200 * time.Millisecond

// Wait implements runner.Runner: go-plugin calls it when it has read all output.
func (c *child) Wait(context.Context) error {
	<-c.exited
	c.stdout.Close()
	c.stderr.Close()
	if !c.cmd.ProcessState.Success() {
		return fmt.Errorf("%s", c.status())
	}
	return nil
}

// Kill implements runner.Runner.
func (c *child) Kill(context.Context) error {
	c.kill()
	return nil
}

func (c *child) launch() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.killed {
		return errors.New("killed before it started")
	}
	if err := start(c.cmd); err != nil {
		return err
	}
	c.process = c.cmd.Process
	return nil
}

// kill ends the child, or keeps it from starting. Again is fine.
func (c *child) kill() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.killed = true
	if c.process != nil {
		_ = c.process.Kill() // fails only if it is gone already
	}
}

// status says how the child ended: "exit status 1", "signal: killed". Only after exited.
func (c *child) status() string { return c.cmd.ProcessState.String() }

// pid is 0 unless the child was started.
func (c *child) pid() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.process == nil {
		return 0
	}
	return c.process.Pid
}

// ID implements runner.Runner. Empty means that there is nothing to kill.
func (c *child) ID() string {
	if c.pid() == 0 {
		return ""
	}
	return fmt.Sprint(c.pid())
}

// The rest of runner.Runner.

func (c *child) Stdout() io.ReadCloser           { return c.stdout }
func (c *child) Stderr() io.ReadCloser           { return c.stderr }
func (c *child) Name() string                    { return c.cmd.Path }
func (c *child) Diagnose(context.Context) string { return "" }
func (c *child) PluginToHost(network, addr string) (string, string, error) {
	return network, addr, nil
}
func (c *child) HostToPlugin(network, addr string) (string, string, error) {
	return network, addr, nil
}

// output reads what the child writes and remembers what is worth repeating when it dies.
type output struct {
	file  *os.File
	ended chan struct{} // closed when there is nothing more to read
	end   sync.Once
	tail  tail
	late  int // bytes that may still be read when the time is up
}

// pipeBytes is what a pipe holds.
const pipeBytes = 1 << 16

func newOutput() *output { return &output{ended: make(chan struct{}), late: pipeBytes} }

func (o *output) open() (w *os.File, err error) {
	o.file, w, err = os.Pipe()
	return w, err
}

func (o *output) Read(p []byte) (int, error) {
	n, err := o.file.Read(p)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		n, err = o.readLate(p)
	}
	_, _ = o.tail.Write(p[:n])
	if err != nil {
		o.end.Do(func() { close(o.ended) })
	}
	return n, err
}

// readLate reads what is in the pipe when the time is up, without waiting: on a busy machine nobody may have come to it before.
func (o *output) readLate(p []byte) (n int, err error) {
	raw, err := o.file.SyscallConn()
	if err != nil {
		return 0, err
	}
	p = p[:min(len(p), o.late)]
	err = raw.Control(func(fd uintptr) { n, _ = syscall.Read(int(fd), p) })
	if n <= 0 || err != nil {
		return 0, io.EOF
	}
	o.late -= n
	return n, nil
}

func (o *output) Close() error { return o.file.Close() }
