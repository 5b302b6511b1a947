package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

type badCase struct {
	ID, Entry, Stage, Must string
	Say                    []string
}

func (c *badCase) args() []string {
	path := filepath.Join(goldenDir, "badgguf", "files", c.Entry)
	switch c.Stage {
	case "open":
		return []string{"inspect", path}
	case "check":
		return []string{"check", path}
	}
	return []string{"run", "-m", path, "-n", "1", "--mem", "192M", "--quiet", "--greedy", "hello"}
}

// verify judges what a run of the case's verb came to.
func (c *badCase) verify(t *testing.T, code int, stdout, stderr string) {
	t.Helper()
	all := stdout + stderr
	require.NotContains(t, all, "panic")
	require.NotContains(t, all, "goroutine ")
	require.NotContains(t, all, "\xff", "bytes of the file reach the terminal")
	switch c.Must {
	case "accept":
		require.Zero(t, code, all)
	case "reject":
		require.NotZero(t, code, all)
	}
	if code == 0 {
		return
	}
	require.Contains(t, []int{2, 3, 4}, code, all)
	require.True(t, strings.HasPrefix(stderr, "bigmoe: "), stderr)
	message := strings.ToLower(stderr)
	if len(c.Say) > 0 && c.Say[0] == c.Entry { // its words must not count as the message's
		require.Contains(t, stderr, c.Entry)
		message = strings.ReplaceAll(message, strings.ToLower(c.Entry), "")
	}
	for _, want := range c.Say {
		if want == c.Entry {
			continue
		}
		require.True(t, slices.ContainsFunc(strings.Split(strings.ToLower(want), "|"), func(s string) bool { return strings.Contains(message, s) }),
			"%q does not say %q", stderr, want)
	}
}

func readCases(t *testing.T) []badCase {
	raw, err := os.ReadFile(filepath.Join(goldenDir, "badgguf", "cases.json"))
	require.NoError(t, err)
	var all struct{ Cases []badCase }
	require.NoError(t, json.Unmarshal(raw, &all))
	require.Greater(t, len(all.Cases), 100)
	return all.Cases
}

// TestMalformedFiles runs every case through the verb that has to notice it. A refusal takes less than a second (the
// best of three tries, since the machine may be busy) and does not make the heap grow by 64 MiB.
func TestMalformedFiles(t *testing.T) {
	for _, c := range readCases(t) {
		t.Run(c.ID, func(t *testing.T) {
			for try := range 3 {
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				start := time.Now()
				code, stdout, stderr := run(c.args()...)
				took := time.Since(start)
				runtime.ReadMemStats(&after)
				c.verify(t, code, stdout, stderr)
				if code == 0 {
					return
				}
				// Address space that is reserved but not backed does not count: Go reserves 64 MiB at a time.
				backed := func(m runtime.MemStats) int64 { return int64(m.HeapSys) - int64(m.HeapReleased) }
				require.Less(t, backed(after)-backed(before), int64(64<<20))
				if took < time.Second {
					return
				}
				require.Less(t, try, 2, "took %v", took)
			}
		})
	}
}

// TestMalformedFilesProcess does the same for one case of each kind as a person would.
func TestMalformedFilesProcess(t *testing.T) {
	for _, c := range readCases(t) {
		if !slices.Contains([]string{"ok-base", "ok-empty-v3", "ok-shards", "bad-magic", "shard-missing", "architecture-unknown", "nan-norm"}, c.ID) {
			continue
		}
		t.Run(c.ID, func(t *testing.T) {
			cmd := exec.Command("bigmoe", c.args()...)
			var stdout, stderr strings.Builder
			cmd.Stdout, cmd.Stderr = &stdout, &stderr
			_ = cmd.Run()
			c.verify(t, cmd.ProcessState.ExitCode(), stdout.String(), stderr.String())
		})
	}
}
