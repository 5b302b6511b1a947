package engine_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/engine"
	"github.com/bigmoe/bigmoe/sdk/fault"
)

// TestKilledAtRandomPoints kills the backend at 50 points of start, prefill, decode and rewind. Whatever became of the request
// under way, the next one on the same engine gives the right text.
func TestKilledAtRandomPoints(t *testing.T) {
	g, model := loadGolden(t, "qwen3moe/qwen3moe-f32")
	want := g.Runs["f32"].Greedy.IDs[:6]
	e := open(t, config(model, backends()["child process"]))
	s := e.NewSession()
	right := func(when string) {
		res, err := s.Generate(t.Context(), greedy(g.Prompt.IDs, len(want)), silent)
		require.NoError(t, err, when)
		require.Equal(t, want, res.Tokens, when)
	}
	right("before")
	rng := rand.New(rand.NewPCG(50, 0))
	upTo := func(d time.Duration) time.Duration { return time.Duration(rng.Int64N(int64(d))) }
	failed := map[string]int{}
	for i := range 50 {
		phase := []string{"start", "prefill", "decode", "rewind"}[i%4]
		request, emit := greedy(g.Prompt.IDs, len(want)), silent
		var kill chan struct{} // closed when the deed is done
		switch phase {
		case "start":
			require.NoError(t, syscall.Kill(e.BackendPID(), syscall.SIGKILL))
			_, err := s.Generate(t.Context(), greedy(g.Prompt.IDs[:2], 1), silent)
			require.ErrorContains(t, err, "died")
			kill = killAfter(upTo(25 * time.Millisecond))
		case "prefill":
			s = e.NewSession() // nothing to reuse
			kill = killAfter(upTo(12 * time.Millisecond))
		case "decode":
			at, delay := rng.IntN(len(want)), upTo(2*time.Millisecond)
			emit = func(engine.Token) error {
				if at--; at == -1 {
					kill = killAfter(delay)
				}
				return nil
			}
		case "rewind":
			request = greedy(append(append([]int32(nil), g.Prompt.IDs[:3]...), 7, 8, 9), 2)
			kill = killAfter(upTo(4 * time.Millisecond))
		}
		_, err := s.Generate(t.Context(), request, emit)
		if kill != nil {
			<-kill
		}
		if err == nil { // it came too late for this one, and hits the next that needs the backend
			_, err = s.Generate(t.Context(), greedy(g.Prompt.IDs[:2], 1), silent)
		}
		if err != nil {
			failed[phase]++
			require.Equal(t, fault.Unknown, fault.KindOf(err), "%s: %v", phase, err)
		}
		right(fmt.Sprintf("kill %d, %s", i, phase))
	}
	for _, phase := range []string{"start", "prefill", "decode", "rewind"} {
		require.NotZero(t, failed[phase], "no %s was hit: %v", phase, failed)
	}
}

// killAfter kills the backend, once there is one, after a delay.
func killAfter(delay time.Duration) chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		for end := time.Now().Add(prompt); time.Now().Before(end); time.Sleep(time.Millisecond) {
			if pids := children(); len(pids) > 0 {
				time.Sleep(delay)
				_ = syscall.Kill(pids[0], syscall.SIGKILL)
				return
			}
		}
	}()
	return done
}

// children returns the processes that this one started and that still run.
func children() (pids []int) {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, name := range stats {
		b, _ := os.ReadFile(name)
		var pid, parent int
		var state string
		_, rest, _ := strings.Cut(string(b), ") ")
		if n, _ := fmt.Sscan(string(b), &pid); n == 1 {
			if n, _ := fmt.Sscan(rest, &state, &parent); n == 2 && parent == os.Getpid() && state != "Z" {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}
