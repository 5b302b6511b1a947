package main

import (
	"path/filepath"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/engine/gguf"
	"github.com/bigmoe/bigmoe/engine/gguf/gguftest"
	"github.com/bigmoe/bigmoe/engine/sample"
	"github.com/bigmoe/bigmoe/sdk/fault"
)

// params merges the keys of a file and the arguments of a command line.
func params(t *testing.T, keys map[string]any, args ...string) (sample.Params, error) {
	t.Helper()
	b := gguftest.NewBuilder().Set("general.architecture", "test")
	for key, value := range keys {
		b.Set("general.sampling."+key, value)
	}
	path := filepath.Join(t.TempDir(), "model.gguf")
	require.NoError(t, b.Write(path))
	file, err := gguf.Open(path)
	require.NoError(t, err)
	defer file.Close()
	var f samplingFlags
	flags := pflag.NewFlagSet("run", pflag.ContinueOnError)
	f.add(flags)
	require.NoError(t, flags.Parse(args))
	return f.params(flags, file, 4096)
}

func TestSamplingPrecedence(t *testing.T) {
	p, err := params(t, nil, "--seed", "7")
	require.NoError(t, err)
	want := sample.Default()
	want.Seed = 7
	require.Equal(t, want, p, "neither file nor flags say anything")

	file := map[string]any{"temp": float32(0.5), "top_k": int32(20), "top_p": float32(0.8), "min_p": float32(0), "penalty_repeat": float32(1.25),
		"penalty_last_n": int32(-1), "xtc_probability": float32(0.5), "xtc_threshold": float32(0.25), "mirostat": int32(2),
		"mirostat_tau": float32(4), "mirostat_eta": float32(0.25), "sequence": "top_k;dry; typical ;temp;top_k"}
	p, err = params(t, file, "--seed", "7", "--top-k", "3", "--repeat-penalty", "1")
	require.NoError(t, err)
	want.Temperature, want.TopK, want.TopP, want.MinP, want.RepeatPenalty, want.PenaltyLastN = 0.5, 3, 0.8, 0, 1, 4096
	want.XTCProbability, want.XTCThreshold, want.Mirostat, want.MirostatTau, want.MirostatEta = 0.5, 0.25, 2, 4, 0.25
	want.Samplers = []string{"top_k", "typ_p", "temperature"}
	require.Equal(t, want, p)

	p, err = params(t, file, "--greedy")
	require.NoError(t, err)
	require.Zero(t, p.Temperature)
	require.Zero(t, p.Mirostat)
}

func TestSamplingSeed(t *testing.T) {
	seen := map[uint32]bool{}
	for range 8 {
		p, err := params(t, nil)
		require.NoError(t, err)
		require.NotEqual(t, uint32(sample.RandomSeed), p.Seed, "the summary could not tell it")
		seen[p.Seed] = true
	}
	require.Greater(t, len(seen), 1)
	p, err := params(t, nil, "--seed", "4294967294")
	require.NoError(t, err)
	require.Equal(t, uint32(4294967294), p.Seed)
}

func TestSamplingRefuses(t *testing.T) {
	for _, c := range []struct {
		name string
		keys map[string]any
		args []string
		say  string
		kind fault.Kind
	}{
		{"flag out of range", nil, []string{"--min-p", "-1"}, "min_p is -1", fault.User},
		{"flag not a number", nil, []string{"--temp", "NaN"}, "temperature is NaN", fault.User},
		{"seed too large", nil, []string{"--seed", "4294967295"}, "--seed 4294967295", fault.User},
		{"file out of range", map[string]any{"top_p": float32(2)}, nil, "model.gguf: keys general.sampling.*: sampling: top_p is 2", fault.Corrupt},
		{"file not an integer", map[string]any{"top_k": "forty"}, nil, `"general.sampling.top_k"`, fault.Corrupt},
		{"file far out of range", map[string]any{"top_k": uint64(1) << 40}, nil, `key "general.sampling.top_k" is 1099511627776: out of range`, fault.Corrupt},
		{"file with a stage nobody knows", map[string]any{"sequence": "top_k;magic"}, nil, `sampler "magic" is not supported`, fault.Corrupt},
	} {
		_, err := params(t, c.keys, c.args...)
		require.ErrorContains(t, err, c.say, c.name)
		require.Equal(t, c.kind, fault.KindOf(err), c.name)
	}
}
