package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
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
// best of three tries, since the machine may be busy) and does not make the process grow by 64 MiB.
func TestMalformedFiles(t *testing.T) {
	for _, c := range readCases(t) {
		t.Run(c.ID, func(t *testing.T) {
			for try := range 3 {
				before, measured := residentBytes()
				start := time.Now()
				code, stdout, stderr := run(c.args()...)
				took := time.Since(start)
				grown := statusBytes("VmHWM:") - before
				c.verify(t, code, stdout, stderr)
				if code == 0 {
					return
				}
				if measured {
					require.Less(t, grown, int64(64<<20))
				}
				if took < time.Second {
					return
				}
				require.Less(t, try, 2, "took %v", took)
			}
		})
	}
}

// residentBytes makes peakBytes start anew and returns what is resident now; ok is false where the system does not tell.
func residentBytes() (bytes int64, ok bool) {
	if !resetPeak() {
		return 0, false
	}
	return statusBytes("VmRSS:"), true
}

func statusBytes(name string) int64 {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == name {
			kib, _ := strconv.ParseInt(f[1], 10, 64)
			return kib << 10
		}
	}
	return 0
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
