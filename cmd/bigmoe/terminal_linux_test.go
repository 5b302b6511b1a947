package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
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

// narrow is a pipe with little room, so that a program that writes a text cannot be done with it before somebody reads.
type narrow struct{ r, w *os.File }

const (
	pageBytes   = 4096 // the least that a pipe holds
	fillerBytes = pageBytes - 128
)

func newNarrow(t *testing.T) *narrow {
	t.Helper()
	r, w, err := os.Pipe()
	require.NoError(t, err)
	t.Cleanup(func() { r.Close(); w.Close() })
	size, err := unix.FcntlInt(w.Fd(), unix.F_SETPIPE_SZ, pageBytes)
	require.NoError(t, err)
	_, err = w.Write(make([]byte, size-pageBytes+fillerBytes))
	require.NoError(t, err)
	return &narrow{r, w}
}

// start starts cmd with the pipe as its standard output, and returns when it has begun to write.
func (p *narrow) start(t *testing.T, cmd *exec.Cmd, start func() error) {
	t.Helper()
	cmd.Stdout = p.w
	before := p.waiting(t)
	require.NoError(t, start())
	require.NoError(t, p.w.Close())
	require.Eventually(t, func() bool { return p.waiting(t) > before }, time.Minute, time.Millisecond)
}

// waiting is how many bytes nobody has read.
func (p *narrow) waiting(t *testing.T) int {
	n, err := unix.IoctlGetInt(int(p.r.Fd()), unix.TIOCINQ)
	require.NoError(t, err)
	return n
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

// Nothing that a model, a recipe or a lock file says moves the cursor, and the log has no remains of colours.
func TestTerminalIsSafe(t *testing.T) {
	dir := t.TempDir()
	outline := filepath.Join(dir, "model.json")
	code, text, _ := run("recipe", "outline", filepath.Join(goldenDir, "qwen3moe", "qwen3moe-f32.gguf"))
	require.Zero(t, code)
	text = strings.Replace(text, `"qwen3moe.block_count"`, `"qwen3moe.\u001b[2J": 1, "qwen3moe.block_count"`, 1)
	require.NoError(t, os.WriteFile(outline, []byte(text), 0o600))
	lock := `{"version": 1, "recipes": {"x": {"source": "\u001b[2J", "digest": "sha256:` + strings.Repeat("0", 64) + `"}}}`
	require.NoError(t, os.WriteFile(filepath.Join(dir, "lock.json"), []byte(lock), 0o600))
	for _, c := range []struct {
		say  string
		args []string
	}{
		{"not read: ␛[2J", []string{"recipe", "plan", outline}},
		{"x (␛[2J) cannot be used", []string{"recipe", "list", "--store", dir}},
		{"␛[2J", []string{"recipe", "verify", "--store", dir}},
		{" DBG ", []string{"run", "--verbose", "--greedy", "-n", "1", "hello"}},
	} {
		p := newTerminal(t)
		cmd := exec.Command("bigmoe", c.args...)
		cmd.Stdout, cmd.Stderr = p.slave, p.slave
		p.start(t, cmd)
		_, text := p.end(t, cmd)
		require.Contains(t, text, c.say)
		require.NotContains(t, text, "\x1b[2J")
		require.Equal(t, strings.Contains(c.say, "␛"), strings.Contains(text, "␛"), text)
	}
}

// Ctrl-C on the terminal reaches both processes. The text stops, the line ends, the summary comes.
func TestInterrupt(t *testing.T) {
	p := newTerminal(t)
	cmd := wild("--threads", "1", "--cache", "1M", "--io-threads", "1")
	cmd.Stderr = p.slave
	stdout := newNarrow(t)
	stdout.start(t, cmd, func() error { p.start(t, cmd); return nil })
	_, err := p.master.Write([]byte{3}) // what the key sends
	require.NoError(t, err)
	wrote, err := io.ReadAll(stdout.r)
	require.NoError(t, err)
	code, text := p.end(t, cmd)
	require.Equal(t, 130, code, text)
	require.True(t, bytes.HasSuffix(wrote, []byte("\n")), "%q", wrote)
	require.Regexp(t, `stopped  interrupted after \d+ tokens\r\n$`, text)
	require.NotContains(t, text, "bigmoe:")
}

// An interrupted --json still prints its object. On a busy machine the text may be complete before we come to interrupting it.
func TestInterruptJSON(t *testing.T) {
	code, text := 0, ""
	for try := 0; try < 5 && code == 0; try++ {
		p := newTerminal(t)
		cmd := wild("--json", "--threads", "1", "--cache", "1M", "--io-threads", "1")
		var stdout bytes.Buffer
		cmd.Stdout, cmd.Stderr = &stdout, p.slave
		p.start(t, cmd)
		require.Eventually(t, func() bool { return strings.Contains(p.text(), "decode ") }, time.Minute, time.Millisecond)
		require.NoError(t, cmd.Process.Signal(os.Interrupt))
		code, text = p.end(t, cmd)
		var out struct {
			Interrupted bool
			Tokens      []int32
		}
		require.NoError(t, json.Unmarshal(stdout.Bytes(), &out))
		require.Equal(t, code != 0, out.Interrupted)
		require.NotEmpty(t, out.Tokens)
	}
	require.Equal(t, 130, code, text)
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
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdout := newNarrow(t)
	stdout.start(t, cmd, cmd.Start)
	require.NoError(t, stdout.r.Close())
	_ = cmd.Wait()
	require.Equal(t, 141, cmd.ProcessState.ExitCode(), stderr.String())
	require.Empty(t, stderr.String())
	entries, err := os.ReadDir(tmp)
	require.NoError(t, err)
	require.Len(t, entries, 1, "the temporary model is gone")
}
