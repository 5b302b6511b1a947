package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unicode"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// terminal is a pseudo-terminal and what was written to it so far.
type terminal struct {
	master, slave *os.File
	mu            sync.Mutex
	seen          bytes.Buffer
	ended         chan struct{}
}

func newTerminal(t *testing.T) *terminal {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no pseudo-terminals here: %v", err)
	}
	fd := int(master.Fd())
	require.NoError(t, unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0))
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	require.NoError(t, err)
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	require.NoError(t, unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 25, Col: 80}))
	p := &terminal{master: master, slave: slave, ended: make(chan struct{})}
	go func() {
		defer close(p.ended)
		buf := make([]byte, 4096)
		for {
			n, err := master.Read(buf)
			p.mu.Lock()
			p.seen.Write(buf[:n])
			p.mu.Unlock()
			if err != nil { // EIO: nobody has the terminal open any more
				return
			}
		}
	}()
	t.Cleanup(func() { slave.Close(); master.Close() })
	return p
}

func (p *terminal) text() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seen.String()
}

// start runs bigmoe in a session of its own, with the terminal in control.
func (p *terminal) start(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 0}
	cmd.Stdin = p.slave
	require.NoError(t, cmd.Start())
}

// end waits for the program and returns all that it showed.
func (p *terminal) end(t *testing.T, cmd *exec.Cmd) (code int, text string) {
	t.Helper()
	_ = cmd.Wait()
	p.slave.Close()
	select {
	case <-p.ended:
	case <-time.After(time.Minute):
		t.Fatal("somebody keeps the terminal open")
	}
	return cmd.ProcessState.ExitCode(), p.text()
}

// wild samples text that is nearly random bytes.
func wild(args ...string) *exec.Cmd {
	return exec.Command("bigmoe", append([]string{"run", "--seed", "5", "--temp", "50", "--top-k", "0", "--top-p", "1", "--min-p", "0", "--ignore-eos", "hello"}, args...)...)
}

// On a terminal the text comes with progress before and a summary after it, and no control character of the model's.
func TestTerminal(t *testing.T) {
	raw, err := wild("-q", "--json").Output()
	require.NoError(t, err)
	var out struct{ Text string }
	require.NoError(t, json.Unmarshal(raw, &out))
	require.True(t, strings.ContainsFunc(out.Text, func(r rune) bool { return unicode.IsControl(r) && r != '\n' && r != '\t' }),
		"the model wrote nothing dangerous: choose another seed")

	p := newTerminal(t)
	cmd := wild()
	cmd.Stdout, cmd.Stderr = p.slave, p.slave
	p.start(t, cmd)
	code, text := p.end(t, cmd)
	require.Zero(t, code, text)
	require.Contains(t, text, "\rload    [")
	require.Contains(t, text, "\r\x1b[K", "the status line is taken away")
	require.Contains(t, text, "\r\nstopped  the context is full\r\n")
	for _, ours := range []string{"\r\n", "\r", "\x1b[K", "\n", "\t"} {
		text = strings.ReplaceAll(text, ours, "")
	}
	require.False(t, strings.ContainsFunc(text, unicode.IsControl), "%q", text)
}

// Ctrl-C on the terminal reaches both processes. The text stops, the line ends, the summary comes.
func TestInterrupt(t *testing.T) {
	p := newTerminal(t)
	cmd := wild("--threads", "1", "--cache", "1M", "--io-threads", "1")
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	cmd.Stderr = p.slave
	p.start(t, cmd)
	first := make([]byte, 1)
	_, err = io.ReadFull(stdout, first)
	require.NoError(t, err)
	_, err = p.master.Write([]byte{3}) // what the key sends
	require.NoError(t, err)
	rest, err := io.ReadAll(stdout)
	require.NoError(t, err)
	code, text := p.end(t, cmd)
	require.Equal(t, 130, code, text)
	require.True(t, bytes.HasSuffix(rest, []byte("\n")), "%q", rest)
	require.Regexp(t, `stopped  interrupted after \d+ tokens\r\n$`, text)
	require.NotContains(t, text, "bigmoe:")
}

// An interrupted --json still prints its object.
func TestInterruptJSON(t *testing.T) {
	p := newTerminal(t)
	cmd := wild("--json", "--threads", "1", "--cache", "1M", "--io-threads", "1")
	var stdout bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, p.slave
	p.start(t, cmd)
	for !strings.Contains(p.text(), "decode ") {
		time.Sleep(time.Millisecond)
	}
	require.NoError(t, cmd.Process.Signal(os.Interrupt))
	code, text := p.end(t, cmd)
	require.Equal(t, 130, code, text)
	var out struct {
		Interrupted bool
		Tokens      []int32
	}
	require.NoError(t, json.Unmarshal(stdout.Bytes(), &out))
	require.True(t, out.Interrupted)
	require.NotEmpty(t, out.Tokens)
}

// While it waits for a prompt it says so, and can be interrupted.
func TestInterruptStdin(t *testing.T) {
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer w.Close()
	defer r.Close()
	cmd := exec.Command("bigmoe", "run")
	cmd.Stdin = r
	stderr, err := cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	said := make([]byte, len("bigmoe: waiting for the prompt on standard input\n"))
	_, err = io.ReadFull(stderr, said)
	require.NoError(t, err)
	require.Equal(t, "bigmoe: waiting for the prompt on standard input\n", string(said))
	require.NoError(t, cmd.Process.Signal(os.Interrupt))
	rest, err := io.ReadAll(stderr)
	require.NoError(t, err)
	require.Empty(t, string(rest))
	_ = cmd.Wait()
	require.Equal(t, 130, cmd.ProcessState.ExitCode())
}

// A reader that has had enough is no error worth a word, and nothing stays behind.
func TestBrokenPipe(t *testing.T) {
	tmp := t.TempDir()
	cmd := wild("-q")
	cmd.Env = append(os.Environ(), "XDG_CACHE_HOME="+tmp+"/file/under", "TMPDIR="+tmp)
	require.NoError(t, os.WriteFile(tmp+"/file", nil, 0o644))
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	require.NoError(t, cmd.Start())
	_, err = io.ReadFull(stdout, make([]byte, 1))
	require.NoError(t, err)
	require.NoError(t, stdout.Close())
	_ = cmd.Wait()
	require.Equal(t, 141, cmd.ProcessState.ExitCode(), stderr.String())
	require.Empty(t, stderr.String())
	entries, err := os.ReadDir(tmp)
	require.NoError(t, err)
	require.Len(t, entries, 1, "the temporary model is gone")
}
