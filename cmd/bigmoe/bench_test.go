package main

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// The figures of a run in this process are those that its counters make: they fit each other and the setting.
func TestBenchFigures(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	code, stdout, stderr := run("bench", "-q", "-n", "24", "--runs", "1", "--warmup", "0", "--warm", "--threads", "1", "--prefetch", "off", "--format", "json", "--vary", "cache=1M,7M")
	require.Zero(t, code, stderr)
	require.Empty(t, stderr)
	type state struct {
		Summary map[string]struct{ Median, Ratio *float64 }
		Runs    []map[string]*float64
	}
	var out struct {
		Tokens       int
		PromptTokens int `json:"prompt_tokens"`
		Drive        struct {
			BytesPerSecond float64 `json:"bytes_per_second"`
			BlockBytes     int64   `json:"block_bytes"`
			Depth          int
		}
		Memory struct {
			BytesPerSecond float64 `json:"bytes_per_second"`
			TokenBytes     float64 `json:"token_bytes"`
			Threads        int
		}
		Variants []struct {
			Settings   map[string]string
			Threads    int
			Cold, Warm state
		}
	}
	require.NoError(t, json.Unmarshal([]byte(stdout), &out))
	require.Equal(t, 24, out.Tokens)
	require.Equal(t, 7, out.PromptTokens)
	require.Positive(t, out.Drive.BytesPerSecond)
	require.EqualValues(t, 20480, out.Drive.BlockBytes, "parts of 18432 bytes, in whole blocks")
	require.Equal(t, 8, out.Drive.Depth)
	require.Equal(t, 1, out.Memory.Threads)
	require.Len(t, out.Variants, 2)
	cacheBytes := []float64{1 << 20, 7_077_888} // no more than there are experts
	for i, v := range out.Variants {
		require.Equal(t, map[string]string{"cache": []string{"1M", "7M"}[i]}, v.Settings)
		require.Equal(t, 1, v.Threads)
		require.Len(t, v.Cold.Runs, 1)
		require.Len(t, v.Warm.Runs, 1)
		for _, r := range slices.Concat(v.Cold.Runs, v.Warm.Runs) {
			require.Equal(t, cacheBytes[i], *r["cache_bytes"])
			require.Positive(t, *r["decode_tokens_per_second"])
			require.Positive(t, *r["first_token_seconds"])
			require.LessOrEqual(t, *r["decode_hit_rate"]+*r["decode_foreseen_rate"], 1.0)
			require.LessOrEqual(t, *r["decode_stall_share"], 1.0)
			require.InEpsilon(t, out.Memory.BytesPerSecond/out.Memory.TokenBytes, *r["decode_memory_limit_tokens_per_second"], 1e-9)
			require.Nil(t, r["prefill_memory_limit_tokens_per_second"])
			if limit := r["decode_drive_limit_tokens_per_second"]; limit != nil {
				require.InEpsilon(t, out.Drive.BytesPerSecond/(1<<20), *limit**r["decode_miss_mib_per_token"], 1e-9, "limit × bytes per token is the drive's speed")
			}
		}
		for _, r := range v.Cold.Runs {
			require.Greater(t, *r["first_token_seconds"], *r["load_seconds"], "loading is part of it")
		}
		require.Nil(t, v.Warm.Runs[0]["load_seconds"], "there was nothing to load")
	}
	// What fits the cache as a whole is read once: the second text finds everything.
	small, large := out.Variants[0], out.Variants[1]
	require.Equal(t, 1.0, *large.Warm.Summary["decode_hit_rate"].Median)
	require.Zero(t, *large.Warm.Summary["decode_miss_mib_per_token"].Median)
	require.Nil(t, large.Warm.Summary["decode_drive_limit_tokens_per_second"].Median, "no reads, no limit")
	require.Less(t, *small.Warm.Summary["decode_hit_rate"].Median, 1.0)
	require.Equal(t, cacheBytes[1]/cacheBytes[0], *large.Cold.Summary["cache_bytes"].Ratio)
	require.Nil(t, small.Cold.Summary["cache_bytes"].Ratio)
}
