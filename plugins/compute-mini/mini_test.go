package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/engine"
	"github.com/bigmoe/bigmoe/engine/sample"
	"github.com/bigmoe/bigmoe/recipes"
	"github.com/bigmoe/bigmoe/registry"
	"github.com/bigmoe/bigmoe/sdk/compute"
	"github.com/bigmoe/bigmoe/sdk/compute/conformance"
)

const childArg = "-be-a-backend"

// TestMain lets the test binary be the backend.
func TestMain(m *testing.M) {
	if slices.Contains(os.Args, childArg) {
		main()
		return
	}
	os.Exit(m.Run())
}

func self(t *testing.T) string {
	path, err := os.Executable()
	require.NoError(t, err)
	return path
}

func TestConformance(t *testing.T) {
	report, err := conformance.Run(t.Context(), conformance.Options{Path: self(t), Args: []string{childArg}})
	require.NoError(t, err)
	for _, c := range report.Checks {
		if c.Outcome == conformance.Fail {
			t.Errorf("%s: %s: %s", c.Group, c.Name, c.Why)
		}
	}
	require.Greater(t, report.Count(conformance.Pass), 80)
}

// TestSameTextAsLlama continues the prompt of a golden as llama.cpp did.
func TestSameTextAsLlama(t *testing.T) {
	const folder = "../../testdata/golden/qwen3moe"
	for _, name := range []string{"qwen3moe-f32", "qwen3moe-f16"} {
		t.Run(name, func(t *testing.T) {
			text, err := os.ReadFile(filepath.Join(folder, name+".json"))
			require.NoError(t, err)
			var g struct {
				Prompt struct{ IDs []int32 }
				Runs   struct {
					F32 struct{ Greedy struct{ IDs []int32 } }
				}
			}
			require.NoError(t, json.Unmarshal(text, &g))
			want := g.Runs.F32.Greedy.IDs
			require.NotEmpty(t, want)
			e, err := engine.Open(t.Context(), engine.Config{
				Model: filepath.Join(folder, name+".gguf"), MemoryBytes: 512 << 20, Context: 256, Batch: 16, KV: compute.KVType_F32,
				Recipes: registry.New(registry.Config{BuiltIn: recipes.Names(), Lookup: recipes.Lookup}),
				Backend: engine.Backend{Path: self(t), Args: []string{childArg}},
			})
			require.NoError(t, err)
			defer func() { require.NoError(t, e.Close()) }()
			var got []int32
			_, err = e.NewSession().Generate(t.Context(), engine.Request{Tokens: g.Prompt.IDs, MaxTokens: len(want), IgnoreEnd: true, Sampling: sample.Greedy()}, func(tok engine.Token) error {
				got = append(got, tok.ID)
				return nil
			})
			require.NoError(t, err)
			require.Equal(t, want, got)
		})
	}
}
