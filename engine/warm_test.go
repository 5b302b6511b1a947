package engine_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/engine"
)

// TestUsageProfile: the first run leaves a profile, the second is warmed by it, and no run's output depends on it, whatever the
// folder holds.
func TestUsageProfile(t *testing.T) {
	g, model := loadGolden(t, "qwen3moe/qwen3moe-k-q4_k_m")
	base := config(model, backends()["in process"])
	base.Threads = 1
	want := observe(t, base, g.Prompt.IDs, 13, 8)
	dir := filepath.Join(t.TempDir(), "usage")
	with := func(dir string) engine.Config {
		cfg := base
		cfg.UsageDir = dir
		return cfg
	}
	state := func(cfg engine.Config) (engine.UsageState, int64) {
		e, err := engine.Open(t.Context(), cfg)
		require.NoError(t, err)
		require.NoError(t, e.Close())
		r := e.Report()
		return r.Usage, r.WarmedBytes
	}
	kept := func() []os.DirEntry {
		entries, err := os.ReadDir(dir)
		require.NoError(t, err)
		return entries
	}

	got, _ := state(base)
	require.Equal(t, engine.UsageOff, got)
	got, _ = state(with(dir))
	require.Equal(t, engine.UsageNew, got)
	require.NoDirExists(t, dir, "nothing was used")

	requireSame(t, want, observe(t, with(dir), g.Prompt.IDs, 13, 8))
	require.Len(t, kept(), 1)
	got, _ = state(with(dir))
	require.Equal(t, engine.UsageUsed, got)
	requireSame(t, want, observe(t, with(dir), g.Prompt.IDs, 13, 8))
	small := with(dir)
	small.CacheBytes = leastCache(t, base)
	requireSame(t, want, observe(t, small, g.Prompt.IDs, 13, 8))

	name := filepath.Join(dir, kept()[0].Name())
	require.NoError(t, os.WriteFile(name, []byte("something else"), 0o600))
	got, _ = state(with(dir))
	require.Equal(t, engine.UsageNew, got, "a damaged profile is none")
	requireSame(t, want, observe(t, with(dir), g.Prompt.IDs, 13, 8))
	got, _ = state(with(dir))
	require.Equal(t, engine.UsageUsed, got, "and has been replaced")

	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	requireSame(t, want, observe(t, with(filepath.Join(file, "under")), g.Prompt.IDs, 13, 8))
}
