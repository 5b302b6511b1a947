package recipehost

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/engine/gguf"
)

// open opens a model of testdata/golden.
func open(t testing.TB, name string) *gguf.File {
	t.Helper()
	return openPath(t, "../../testdata/golden/"+name)
}

func openPath(t testing.TB, path string) *gguf.File {
	t.Helper()
	f, err := gguf.Open(path)
	require.NoError(t, err)
	t.Cleanup(func() { f.Close() })
	return f
}
