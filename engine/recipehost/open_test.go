package recipehost

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/engine/gguf"
)

// open opens a model of testdata/golden.
func open(t testing.TB, name string) *gguf.File {
	t.Helper()
	f, err := gguf.Open("../../testdata/golden/" + name)
	require.NoError(t, err)
	t.Cleanup(func() { f.Close() })
	return f
}
