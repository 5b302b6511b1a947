package backend

import (
	"bufio"
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/sdk/compute"
	"github.com/bigmoe/bigmoe/sdk/compute/memory"
	"github.com/bigmoe/bigmoe/sdk/fault"
)

const (
	// hang is what nothing below takes, however busy the machine is, unless it waits for what never comes.
	hang = time.Minute
	// patience is the HangTimeout of backends that are to run into it, and what a working one is silent for only if it gets no
	// processor at all.
	patience = time.Second
)

func impatient(o *Options) { o.HangTimeout = patience }

// within fails the test when f hangs.
func within(t *testing.T, f func()) {
	t.Helper()
	start := time.Now()
	f()
	require.Less(t, time.Since(start), hang)
}

// whenAtWork calls f, from another goroutine, once a backend with a model has shown a sign of life.
func whenAtWork(ctx context.Context, p *Process, f func()) {
	beat := p.box.Load().Heartbeat()
	before := beat.Load()
	go func() {
		for beat.Load() == before {
			if ctx.Err() != nil {
				return
			}
			time.Sleep(time.Millisecond)
		}
		f()
	}()
}

func TestKilledInMidEval(t *testing.T) {
	h := newBench(t)
	want := script(t, h, h.load(t, InProcess(fake{}, h.memory)))

	for name, token := range map[string]int32{"while it computes": tokenWork, "while it asks": tokenRoutes} {
		t.Run(name, func(t *testing.T) {
			p := h.start(t)
			seq := h.load(t, p)
			whenAtWork(t.Context(), p, func() { _ = syscall.Kill(p.PID(), syscall.SIGKILL) })
			var err error
			within(t, func() { err = seq.Eval(t.Context(), h.batch(0, false, token), h) })
			require.ErrorContains(t, err, fmt.Sprintf("backend fake (process %d) died: signal: killed", p.PID()))
			require.Equal(t, fault.Unknown, fault.KindOf(err))
			require.Equal(t, err, p.Dead())
			require.Equal(t, err, seq.Eval(t.Context(), h.batch(0, false, 1), h))
			require.Equal(t, err, seq.Trim(0))
			require.NoError(t, seq.Close())
			_, err = p.Load(t.Context(), h.model, h.layout)
			require.Equal(t, p.Dead(), err)
			within(t, func() { require.NoError(t, p.Close()) })

			require.Equal(t, want, script(t, h, h.load(t, h.start(t))), "a new one works in the same memory")
		})
	}
}

func TestKilledWhileIdle(t *testing.T) {
	h := newBench(t)
	p := h.start(t)
	seq := h.load(t, p)
	require.NoError(t, syscall.Kill(p.PID(), syscall.SIGTERM))
	require.Eventually(t, func() bool { return p.Dead() != nil }, hang, time.Millisecond)
	require.ErrorContains(t, seq.Eval(t.Context(), h.batch(0, false, 1), h), "died: signal: terminated")
}

func TestPanics(t *testing.T) {
	h := newBench(t)
	for token, say := range map[int32]string{tokenPanic: "panic: kernel exploded", tokenPanicThread: "panic: thread exploded"} {
		p := h.start(t)
		seq := h.load(t, p)
		err := seq.Eval(t.Context(), h.batch(0, false, token), h)
		require.ErrorContains(t, err, say)
		require.ErrorContains(t, err, "died: exit status 2")
		require.Equal(t, fault.Bug, fault.KindOf(err))
	}
	h.model.Options.Threads = 903
	_, err := h.start(t).Load(t.Context(), h.model, h.layout)
	require.ErrorContains(t, err, "panic: load exploded")
	require.Equal(t, fault.Bug, fault.KindOf(err))
}

func TestHang(t *testing.T) {
	h := newBench(t)
	p := h.start(t, impatient)
	seq := h.load(t, p)
	h.delay = 2 * patience
	require.NoError(t, seq.Eval(t.Context(), h.batch(0, false, 1), h), "waiting for a slow disk is no hang")
	h.delay = 0

	within(t, func() {
		err := seq.Eval(t.Context(), h.batch(1, false, tokenHang), h)
		require.ErrorContains(t, err, fmt.Sprintf("backend fake (process %d) was killed: no sign of life for 1s during eval", p.PID()))
		require.Equal(t, fault.Unknown, fault.KindOf(err))
	})

	t.Run("stopped", func(t *testing.T) {
		p := h.start(t, impatient)
		seq := h.load(t, p)
		require.NoError(t, syscall.Kill(p.PID(), syscall.SIGSTOP))
		var status syscall.WaitStatus
		_, err := syscall.Wait4(p.PID(), &status, syscall.WUNTRACED, nil) // not before all of its threads have stopped
		require.NoError(t, err)
		require.True(t, status.Stopped())
		within(t, func() {
			require.ErrorContains(t, seq.Eval(t.Context(), h.batch(0, false, 1), h), "no sign of life")
		})
	})
	t.Run("prepare", func(t *testing.T) {
		h.model.Options.Threads = 901
		_, err := h.start(t, impatient).Prepare(t.Context(), h.model)
		require.ErrorContains(t, err, "no sign of life for 1s during prepare")
	})
	t.Run("load", func(t *testing.T) {
		p := h.start(t, impatient)
		h.model.Options.Threads = 904
		h.load(t, p)
		h.model.Options.Threads = 905
		_, err := p.Load(t.Context(), h.model, h.layout)
		require.ErrorContains(t, err, "no sign of life for 1s during load")
	})
}

func TestCancel(t *testing.T) {
	h := newBench(t)
	p := h.start(t)
	seq := h.load(t, p)

	ctx, cancel := context.WithCancel(t.Context())
	h.onRoute = func() {
		if h.routes.Load() == 3 {
			cancel()
		}
	}
	within(t, func() {
		require.Equal(t, context.Canceled, seq.Eval(ctx, h.batch(0, false, tokenRoutes), h))
	})
	require.Equal(t, context.Canceled, seq.Eval(ctx, h.batch(0, false, 1), h), "cancelled beforehand")
	require.NoError(t, p.Dead())

	ctx, cancel = context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	require.Equal(t, context.DeadlineExceeded, seq.Eval(ctx, h.batch(0, false, tokenRoutes), h))
	require.NoError(t, seq.Eval(t.Context(), h.batch(0, false, 1), h), "works afterwards")

	t.Run("deaf", func(t *testing.T) {
		p := h.start(t, impatient)
		seq := h.load(t, p)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		whenAtWork(t.Context(), p, cancel)
		within(t, func() {
			require.Equal(t, context.Canceled, seq.Eval(ctx, h.batch(0, false, tokenWork), h))
		})
		require.ErrorContains(t, p.Dead(), "did not stop within 1s of being cancelled")
	})
	t.Run("load", func(t *testing.T) {
		p := h.start(t)
		h.model.Options.Threads = 905
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		_, err := p.Load(ctx, h.model, h.layout)
		require.Equal(t, context.DeadlineExceeded, err)
		require.ErrorContains(t, p.Dead(), "loading was cancelled")
	})
}

func TestTwoEnginesAtOnce(t *testing.T) {
	want := func() []float32 {
		h := newBench(t)
		return script(t, h, h.load(t, InProcess(fake{}, h.memory)))
	}()
	for i := range 2 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			h := newBench(t)
			h.delay = time.Millisecond
			seq := h.load(t, h.start(t))
			for range 20 {
				require.NoError(t, seq.Trim(0))
				require.Equal(t, want, script(t, h, seq))
			}
		})
	}
}

func TestBadUse(t *testing.T) {
	h := newBench(t)
	p := h.start(t)
	_, err := p.Load(t.Context(), h.model, nil)
	require.ErrorContains(t, err, "no layout")
	seq := h.load(t, p)
	short := h.batch(0, false, 1)
	short.Logits = short.Logits[1:]
	noRows := h.batch(0, false, 1)
	noRows.Rows = nil
	thin := h.batch(0, false, 1)
	thin.Rows[0] = thin.Rows[0][1:]
	for say, b := range map[string]*compute.Batch{
		"batch of 0 tokens":       h.batch(0, false),
		"batch of 6 tokens":       h.batch(0, false, 1, 2, 3, 4, 5, 6),
		"room for 7 logits":       short,
		"rows of 0 weights":       noRows,
		"by-row weight 0":         thin,
		"position 3, expected 0":  h.batch(3, false, 1),
		"at -1":                   h.batch(-1, false, 1),
		"route of bank 77":        h.batch(0, false, tokenBadRoute),
		"wave of 5 slots, at mos": h.batch(0, false, 1),
	} {
		if strings.HasPrefix(say, "wave") {
			h.perWave, h.onRoute = slots, nil
			err := seq.Eval(t.Context(), b, overfull{h})
			require.ErrorContains(t, err, say)
			require.Equal(t, fault.Bug, fault.KindOf(err))
			continue
		}
		err := seq.Eval(t.Context(), b, h)
		require.ErrorContains(t, err, say)
		require.Equal(t, fault.Bug, fault.KindOf(err), say)
	}
	require.ErrorContains(t, seq.Trim(-1), "to -1")
	require.NoError(t, seq.Close())
	require.ErrorContains(t, seq.Eval(t.Context(), h.batch(0, false, 1), h), "closed")
	require.NoError(t, p.Dead())
}

// overfull returns more slots than the layout has room for.
type overfull struct{ *bench }

func (o overfull) Route(int, int, []int32, []float32) (compute.Wave, error) {
	return compute.Wave{Slots: make([]compute.Slot, slots+1)}, nil
}

func TestStartFailures(t *testing.T) {
	h := newBench(t)
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, []byte("hello"), 0o644))
	script := filepath.Join(t.TempDir(), "script")
	require.NoError(t, os.WriteFile(script, []byte("no format the system knows"), 0o755))
	self, err := os.Executable()
	require.NoError(t, err)

	cases := map[string]struct {
		change func(*Options)
		kind   fault.Kind
		say    []string
	}{
		"missing":        {func(o *Options) { o.Path = file + "-not" }, fault.User, []string{"file-not", "no such file"}},
		"folder":         {func(o *Options) { o.Path = filepath.Dir(file) }, fault.User, []string{"not a program"}},
		"not executable": {func(o *Options) { o.Path = file }, fault.User, []string{"permission denied"}},
		"wrong format":   {func(o *Options) { o.Path = script }, fault.User, []string{"exec format error", "a script begins with #!"}},
		"exits":          {role("exits"), fault.User, []string{"not a backend", "exit status 3", "no such device"}},
		"garbage":        {role("garbage"), fault.User, []string{"not a backend", `"hello, world"`}},
		"silent":         {role("silent"), fault.Unknown, []string{"did not answer within 1s"}},
		"deaf":           {role("deaf"), fault.Unknown, []string{"start: "}},
		"old protocol":   {role("netrpc"), fault.Unsupported, []string{"over netrpc, not grpc"}},
		"link to nothing": {func(o *Options) {
			o.Path = filepath.Join(t.TempDir(), "link")
			require.NoError(t, os.Symlink("gone", o.Path))
		}, fault.User, []string{"link", "no such file"}},
		"link in a circle": {func(o *Options) {
			o.Path = filepath.Join(t.TempDir(), "link")
			require.NoError(t, os.Symlink(o.Path, o.Path))
		}, fault.User, []string{"link"}},
		"pipe": {func(o *Options) {
			o.Path = filepath.Join(t.TempDir(), "pipe")
			require.NoError(t, syscall.Mkfifo(o.Path, 0o755))
		}, fault.User, []string{"not a program"}},
		"huge line":       {role("huge line"), fault.User, []string{"not a backend", "xxxx…"}},
		"core protocol":   {role("core"), fault.Unsupported, []string{"version 2 of go-plugin's core protocol, this program speaks version 1"}},
		"older":           {role("older"), fault.Unsupported, []string{"speaks version 0", "this program speaks version 1"}},
		"describe exits":  {role("describe exits"), fault.Unknown, []string{"exit status 7", "gone in describe"}},
		"describe hangs":  {role("describe hangs"), fault.Unknown, []string{"did not answer within 1s"}},
		"describe floods": {role("describe floods"), fault.Unknown, []string{"start: its name, version and kernels are 5242880, 0 and 0 bytes long"}},
		"newer":           {role("newer"), fault.Unsupported, []string{"speaks version 2", "this program speaks version 1"}},
		"checksum":        {func(o *Options) { o.SHA256 = make([]byte, 32) }, fault.Corrupt, []string{"sha256 is", "expected 00000000"}},
		"no memory":       {func(o *Options) { o.Memory = nil }, fault.Bug, []string{"no shared memory"}},
	}
	listed(t, slices.Collect(maps.Keys(cases)))
	// Only a child that stays silent is to run into the time limit; the others are given more than a busy machine needs.
	silent := []string{"silent", "describe hangs"}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			o := h.options("backend")
			if slices.Contains(silent, name) {
				o.StartTimeout = time.Second
			}
			c.change(&o)
			within(t, func() {
				_, err := Start(t.Context(), o)
				require.Error(t, err)
				for _, say := range c.say {
					require.ErrorContains(t, err, say)
				}
				if c.change != nil && o.Path == self {
					require.ErrorContains(t, err, self, "names the program")
				}
				require.Equal(t, c.kind, fault.KindOf(err), err)
				require.NotContains(t, err.Error(), "\n")
			})
		})
	}
	t.Run("cancelled", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, err := Start(ctx, h.options("silent"))
		require.ErrorIs(t, err, context.DeadlineExceeded)
	})
	t.Run("right checksum", func(t *testing.T) {
		b, err := os.ReadFile(self)
		require.NoError(t, err)
		sum := sha256.Sum256(b)
		h.start(t, func(o *Options) { o.SHA256 = sum[:] })
	})
}

func role(name string) func(*Options) {
	return func(o *Options) { o.Env = []string{roleEnv + "=" + name} }
}

func TestStartedByHand(t *testing.T) {
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), roleEnv+"=backend")
	out, err := cmd.CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), "This binary is a plugin")
}

// TestNothingStaysBehind also covers failed starts and killed children.
func TestNothingStaysBehind(t *testing.T) {
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	h := newBench(t)
	before := runtime.NumGoroutine()
	var ends []string
	for _, name := range []string{"exits", "garbage", "backend", "backend"} {
		p, err := Start(t.Context(), h.options(name))
		if name != "backend" {
			require.Error(t, err)
			continue
		}
		require.NoError(t, err)
		seq := h.load(t, p)
		pid := p.PID()
		require.NoError(t, seq.Eval(t.Context(), h.batch(0, false, 1), h))
		within(t, func() { require.NoError(t, p.Close()) })
		require.NoError(t, p.Close())
		require.Error(t, syscall.Kill(pid, 0))
		require.Error(t, p.Dead())
		_, end, _ := strings.Cut(p.Dead().Error(), "died: ")
		ends = append(ends, end)
	}
	require.Contains(t, ends, "exit status 0", "by itself, unless the machine stood still just then")
	p := h.start(t)
	require.NoError(t, syscall.Kill(p.PID(), syscall.SIGKILL))
	require.Eventually(t, func() bool { return p.Dead() != nil }, hang, time.Millisecond)
	require.NoError(t, p.Close())

	stopped := h.start(t)
	require.NoError(t, syscall.Kill(stopped.PID(), syscall.SIGSTOP))
	within(t, func() { require.NoError(t, stopped.Close()) })

	left, err := os.ReadDir(temp)
	require.NoError(t, err)
	require.Empty(t, left)
	for end := time.Now().Add(hang); runtime.NumGoroutine() > before; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			stacks := make([]byte, 1<<20)
			t.Fatalf("%s", stacks[:runtime.Stack(stacks, true)])
		}
	}
}

func TestLogs(t *testing.T) {
	h := newBench(t)
	var log syncBuffer
	p := h.start(t, func(o *Options) { o.Log = zerolog.New(&log).Level(zerolog.DebugLevel) })
	seq := h.load(t, p)
	require.NoError(t, seq.Eval(t.Context(), h.batch(0, false, tokenChatter), h))
	require.Eventually(t, func() bool {
		s := log.String()
		return strings.Contains(s, `"level":"debug","message":"printed after the handshake"`) &&
			strings.Contains(s, `"level":"debug","message":"written to descriptor 2"`) &&
			regexp.MustCompile(`"level":"info",.*"cores":3,.*"message":"in JSON"`).MatchString(s)
	}, hang, 10*time.Millisecond)
	require.NoError(t, p.Close())
	require.NotContains(t, log.String(), `"error"`, "an orderly end is no error")
	require.NotContains(t, log.String(), `"warn"`)
}

// lonelyEngine is the engine that TestEngineKilled kills.
func lonelyEngine() {
	check := func(err error) {
		if err != nil {
			fmt.Println("failed:", err)
			os.Exit(1)
		}
	}
	t := &testing.T{}
	h := &bench{model: model(t, 2), perWave: slots}
	var err error
	h.layout, err = compute.NewLayout(h.model, slots)
	check(err)
	h.memory, err = memory.Create(1 << 30)
	check(err)
	for i := range 1 << 20 {
		h.memory.Bytes()[1<<24+i] = 1
	}
	p, err := Start(context.Background(), h.options("backend"))
	check(err)
	seq, err := p.Load(context.Background(), h.model, h.layout)
	check(err)
	say := func() { fmt.Println(p.PID()) }
	if os.Getenv("BIGMOE_TEST_IDLE") != "" {
		say()
		select {}
	}
	whenAtWork(context.Background(), p, say)
	check(seq.Eval(context.Background(), h.batch(0, false, tokenWork), h))
}

func TestEngineKilled(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("looks into /proc")
	}
	for _, idle := range []string{"", "yes"} {
		temp := t.TempDir()
		self, err := os.Executable()
		require.NoError(t, err)
		cmd := exec.Command(self)
		cmd.Env = append(os.Environ(), roleEnv+"=engine", "BIGMOE_TEST_IDLE="+idle, "TMPDIR="+temp)
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		line, err := bufio.NewReader(out).ReadString('\n')
		require.NoError(t, err)
		pid, err := strconv.Atoi(strings.TrimSpace(line))
		require.NoError(t, err, line)
		maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
		require.NoError(t, err)
		require.Contains(t, string(maps), "memfd:bigmoe")
		id := inode(t, pid)

		require.NoError(t, cmd.Process.Kill())
		_ = cmd.Wait()
		require.Eventually(t, func() bool { return syscall.Kill(pid, 0) != nil || state(pid) == "Z" }, hang, 5*time.Millisecond)
		require.Empty(t, holders(id), "somebody still has the memory")
		left, err := os.ReadDir(temp)
		require.NoError(t, err)
		require.Empty(t, left)
	}
}

// TestEngineKilledWhileStarting: nobody but the backend can remove the folder for its socket then.
func TestEngineKilledWhileStarting(t *testing.T) {
	temp, started := t.TempDir(), filepath.Join(t.TempDir(), "started")
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), roleEnv+"=starting engine", "TMPDIR="+temp, startedEnv+"="+started)
	require.NoError(t, cmd.Start())
	require.Eventually(t, func() bool { _, err := os.Stat(started); return err == nil }, hang, time.Millisecond)
	left, err := os.ReadDir(temp)
	require.NoError(t, err)
	require.NotEmpty(t, left)
	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait()
	require.Eventually(t, func() bool {
		left, err := os.ReadDir(temp)
		return err == nil && len(left) == 0
	}, hang, 5*time.Millisecond)
}

// inode identifies the memfd of a process.
func inode(t *testing.T, pid int) string {
	var st syscall.Stat_t
	require.NoError(t, syscall.Stat(fmt.Sprintf("/proc/%d/fd/%d", pid, compute.RegionFD), &st))
	return fmt.Sprint(st.Ino)
}

// holders returns the processes that map the memfd with the given inode.
func holders(inode string) []string {
	var pids []string
	maps, _ := filepath.Glob("/proc/[0-9]*/maps")
	for _, name := range maps {
		b, _ := os.ReadFile(name)
		for line := range strings.Lines(string(b)) {
			if f := strings.Fields(line); len(f) >= 6 && f[4] == inode && strings.HasPrefix(f[5], "/memfd:bigmoe") {
				pids = append(pids, name)
			}
		}
	}
	return pids
}

func state(pid int) string {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, _ := strings.Cut(string(b), ") ")
	return at(strings.Fields(rest), 0)
}
