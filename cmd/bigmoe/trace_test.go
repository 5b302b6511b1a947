package main

import (
	"bufio"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/engine/expert/replay"
)

// counts are the figures that run, a trace and its replay must agree on.
type counts struct {
	Requested int64 `json:"experts_requested"`
	Hits      int64 `json:"experts_hit"`
	MissBytes int64 `json:"miss_bytes"`
}

// TestTraceReplays: a recording, replayed with the policy and the cache of the run, has the counters that the run had.
func TestTraceReplays(t *testing.T) {
	for _, c := range []struct{ name, policy, cache, batch string }{
		{"as shipped", "forecast", "2560K", "512"},
		{"frequency", "frequency", "2560K", "512"},
		{"lru", "lru", "2560K", "512"},
		{"all fits", "frequency", "16M", "512"},
		{"prompt in parts", "forecast", "2560K", "3"},
		{"layer in waves", "frequency", "300K", "512"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv("XDG_CACHE_HOME", t.TempDir())
			path := filepath.Join(t.TempDir(), "trace.csv")
			same := []string{"-q", "--greedy", "--ignore-eos", "-n", "24", "--policy", c.policy, "--cache", c.cache, "--batch", c.batch}
			code, out, errs := run(append([]string{"run", "--json", "--prefetch", "off"}, same...)...)
			require.Zero(t, code, errs)
			var ran struct {
				Prompt  int `json:"prompt_tokens"`
				Prefill counts
				Decode  struct {
					counts
					Tokens int
				}
			}
			require.NoError(t, json.Unmarshal([]byte(out), &ran))
			require.Positive(t, ran.Decode.Requested)

			code, out, errs = run(append([]string{"trace", "-o", path}, same...)...)
			require.Zero(t, code, errs)
			require.Empty(t, out)
			code, out, errs = run("replay", path, "--policy", c.policy, "--cache", c.cache, "--json")
			require.Zero(t, code, errs)
			var replayed struct {
				PromptTokens int `json:"prompt_tokens"`
				Tokens       int
				Results      []struct {
					Policy          string
					Prefill, Decode counts
				}
			}
			require.NoError(t, json.Unmarshal([]byte(out), &replayed))
			require.Equal(t, ran.Prompt, replayed.PromptTokens)
			require.Equal(t, ran.Decode.Tokens, replayed.Tokens)
			require.Len(t, replayed.Results, 1)
			require.Equal(t, ran.Prefill, replayed.Results[0].Prefill)
			require.Equal(t, ran.Decode.counts, replayed.Results[0].Decode)

			read, steps := traceBytes(t, path)
			require.Equal(t, ran.Prefill.MissBytes, read["0"])
			require.Equal(t, ran.Decode.MissBytes, read["1"])
			require.Equal(t, ran.Prompt+ran.Decode.Tokens, steps)
		})
	}
}

// TestTraceScores: without gating bias, what a router picks is what it scores highest.
func TestTraceScores(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	dir := t.TempDir()
	trace, scores := filepath.Join(dir, "trace.csv"), filepath.Join(dir, "scores.csv.gz")
	code, _, errs := run("trace", "-q", "--greedy", "--ignore-eos", "-n", "12", "--batch", "3", "-o", trace, "--scores", scores)
	require.Zero(t, code, errs)
	tr, err := replay.Open(trace)
	require.NoError(t, err)
	require.NoError(t, tr.OpenScores(scores))
	for i := range tr.Batches {
		b := &tr.Batches[i]
		tokens := len(b.Experts) / b.K
		require.Len(t, b.Scores, tokens*tr.Experts)
		for token := range tokens {
			picks, all := b.Experts[token*b.K:(token+1)*b.K], b.Scores[token*tr.Experts:(token+1)*tr.Experts]
			least := all[picks[b.K-1]]
			for e, s := range all {
				if !slices.Contains(picks, int32(e)) {
					require.LessOrEqual(t, s, least, "step %d layer %d expert %d", b.Step, b.Layer, e)
				}
			}
		}
	}
	code, out, errs := run("replay", trace, "--scores", scores, "--json")
	require.Zero(t, code, errs)
	require.Contains(t, out, `"chosen_next"`)

	again := filepath.Join(dir, "again.csv")
	code, _, errs = run("trace", "-q", "--greedy", "--ignore-eos", "-n", "12", "--batch", "3", "-o", again)
	require.Zero(t, code, errs)
	want, err := os.ReadFile(again)
	require.NoError(t, err)
	got, err := os.ReadFile(trace)
	require.NoError(t, err)
	require.Equal(t, string(want), string(got), "asking for scores changes nothing")

	for _, args := range [][]string{{"--scores", "-"}, {"--scores", trace, "-o", trace}, {"--scores", scores, "--backend", "/no/such/program"}} {
		code, _, errs := run(append([]string{"trace", "-q", "--greedy", "-n", "2"}, args...)...)
		require.Equal(t, 2, code, errs)
	}
}

// traceBytes adds up the expert_bytes of each phase and checks that every position has its rows in order.
func traceBytes(t *testing.T, path string) (read map[string]int64, steps int) {
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	read = map[string]int64{}
	for sc := bufio.NewScanner(f); sc.Scan(); {
		cells := strings.Split(sc.Text(), ",")
		if len(cells) != 9 || cells[0] == "turn" {
			continue
		}
		number := func(i int) int64 {
			n, err := strconv.ParseInt(cells[i], 10, 64)
			require.NoError(t, err, sc.Text())
			return n
		}
		require.Less(t, number(4), int64(4), "picks of a token")
		require.LessOrEqual(t, number(2), int64(steps), sc.Text())
		steps = max(steps, int(number(2))+1)
		resident, bytes := number(7), number(8)
		require.False(t, resident == 1 && bytes != 0, sc.Text())
		read[cells[1]] += bytes
	}
	return read, steps
}
