package conform_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/cmd/bigmoe/internal/conform"
	"github.com/bigmoe/bigmoe/engine/gguf"
	"github.com/bigmoe/bigmoe/recipes"
	"github.com/bigmoe/bigmoe/sdk/fault"
)

const fixtures = "../../../../testdata/golden/"

func open(t *testing.T, path string) *gguf.File {
	f, err := gguf.Open(fixtures + path)
	require.NoError(t, err)
	t.Cleanup(func() { f.Close() })
	return f
}

func TestShippedRecipesConform(t *testing.T) {
	for arch, model := range map[string]string{"qwen3moe": "qwen3moe-f32", "deepseek4": "deepseek4-mtp"} {
		module, ok := recipes.Lookup(arch)
		require.True(t, ok)
		f := open(t, arch+"/"+model+".gguf")
		r, err := conform.Check(context.Background(), arch, module, f)
		require.NoError(t, err)
		require.Equal(t, arch, r.Plan.Architecture)
		require.Equal(t, len(f.Tensors()), r.Tensors)
		require.Greater(t, r.Bounds.Timeout.Seconds(), r.Usage.Seconds)
		require.Greater(t, r.Bounds.MemoryLimitBytes, r.Usage.MemoryBytes)
		require.Greater(t, r.Bounds.MaxCalls, r.Usage.Calls)
	}
}

func TestRefused(t *testing.T) {
	module, _ := recipes.Lookup("qwen3moe")
	_, err := conform.Check(context.Background(), "qwen3moe", module, open(t, "badgguf/files/tensor-unexpected.gguf"))
	require.ErrorContains(t, err, `tensor-unexpected.gguf: tensor "blk.0.mystery.weight": recipe "qwen3moe" neither uses it nor lists it`)
	require.Equal(t, fault.Unsupported, fault.KindOf(err))

	_, err = conform.Check(context.Background(), "qwen3moe", module, open(t, "badgguf/files/tensor-missing.gguf"))
	require.ErrorContains(t, err, `tensor-missing.gguf: recipe "qwen3moe": tensor "`)
	require.Equal(t, fault.Corrupt, fault.KindOf(err))
}
