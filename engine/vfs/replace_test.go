package vfs

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestReplace(t *testing.T) {
	name := filepath.Join(t.TempDir(), "new", "folder", "file")
	for _, text := range []string{"first, longer", "second"} {
		require.NoError(t, Replace(name, []byte(text)))
		got, err := os.ReadFile(name)
		require.NoError(t, err)
		require.Equal(t, text, string(got))
	}
	entries, err := os.ReadDir(filepath.Dir(name))
	require.NoError(t, err)
	require.Len(t, entries, 1, "nothing temporary stays")
	require.Error(t, Replace(filepath.Join(name, "under"), nil), "a file is no folder")
}
