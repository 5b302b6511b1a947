package gguf_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/engine/gguf"
	"github.com/bigmoe/bigmoe/sdk/fault"
)

const casesDir = "../../testdata/golden/badgguf"

type badCase struct {
	ID, Entry, Stage, Must string
	Files, Say             []string
}

func readCases(t *testing.T) []badCase {
	raw, err := os.ReadFile(filepath.Join(casesDir, "cases.json"))
	require.NoError(t, err)
	var all struct{ Cases []badCase }
	require.NoError(t, json.Unmarshal(raw, &all))
	require.Greater(t, len(all.Cases), 100)
	return all.Cases
}

// requireSays checks that text contains every entry of say, ignoring case; a|b means one of them.
func requireSays(t *testing.T, text string, say []string) {
	t.Helper()
	text = strings.ToLower(text)
	for _, want := range say {
		found := slices.ContainsFunc(strings.Split(strings.ToLower(want), "|"), func(s string) bool { return strings.Contains(text, s) })
		require.True(t, found, "%q does not say %q", text, want)
	}
}

// cheap fails the test unless f allocates less than 64 MiB and takes less than a second: the best of three tries, since the machine
// may be busy.
func cheap(t *testing.T, f func()) {
	t.Helper()
	took := time.Hour
	for try := 0; try < 3 && took >= time.Second; try++ {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		start := time.Now()
		f()
		took = time.Since(start)
		runtime.ReadMemStats(&after)
		require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(64<<20))
	}
	require.Less(t, took, time.Second)
}

// TestCases opens every malformed and healthy file of the golden set. What only a recipe or a tokenizer can notice
// must still open; what only the values show must be found by Check.
func TestCases(t *testing.T) {
	for _, c := range readCases(t) {
		t.Run(c.ID, func(t *testing.T) {
			var f *gguf.File
			var err error
			cheap(t, func() {
				if f != nil { // of the try before
					require.NoError(t, f.Close())
				}
				f, err = gguf.Open(filepath.Join(casesDir, "files", c.Entry))
				if err == nil && c.Stage == "check" {
					err = f.Check(context.Background(), nil)
				}
			})
			if f != nil {
				defer f.Close()
			}

			ours := c.Stage != "load" || strings.HasPrefix(c.ID, "shard-")
			switch {
			case c.Must == "reject" && ours:
				require.Error(t, err)
			case c.Must == "accept", !ours:
				require.NoError(t, err)
			}
			if c.Stage == "check" {
				require.NotNil(t, f, "only Check may notice")
			}
			if err != nil {
				t.Log(err)
				path := filepath.Join(casesDir, "files", c.Entry)
				require.True(t, strings.HasPrefix(err.Error(), path+": "), "%v", err)
				if len(c.Say) > 0 { // the first is the name of the file, whose words must not count as the message's
					message := strings.TrimPrefix(err.Error(), path)
					if c.Say[0] == c.Entry {
						c.Say = c.Say[1:]
					}
					requireSays(t, message, c.Say)
				}
				require.NotEqual(t, fault.Unknown, fault.KindOf(err))
				require.NotContains(t, err.Error(), "\xff")
			}
		})
	}
}
