package demo_test

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/cmd/bigmoe/internal/demo"
)

func TestChecksumIsThatOfTheCard(t *testing.T) {
	card, err := os.ReadFile("README.md")
	require.NoError(t, err)
	require.Contains(t, string(card), "sha256: "+demo.SHA256)
}

func TestFile(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "folder")
	path, remove, err := demo.File(dir)
	require.NoError(t, err)
	require.Equal(t, filepath.Join(dir, "bigmoe-demo.gguf"), path)
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, demo.SHA256, fmt.Sprintf("%x", sha256.Sum256(data)))
	before, err := os.Stat(path)
	require.NoError(t, err)
	remove()
	require.FileExists(t, path, "a cached file stays")

	again, _, err := demo.File(dir)
	require.NoError(t, err)
	require.Equal(t, path, again)
	after, err := os.Stat(path)
	require.NoError(t, err)
	require.True(t, os.SameFile(before, after), "written once")
}

func TestFileRepairsWhatIsDamaged(t *testing.T) {
	dir := t.TempDir()
	path, _, err := demo.File(dir)
	require.NoError(t, err)
	good, err := os.ReadFile(path)
	require.NoError(t, err)
	for name, bad := range map[string][]byte{"short": good[:1000], "changed": append(append([]byte{}, good[:len(good)-1]...), good[len(good)-1]^1)} {
		require.NoError(t, os.WriteFile(path, bad, 0o644), name)
		_, _, err := demo.File(dir)
		require.NoError(t, err)
		now, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, good, now, name)
	}
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 1, "nothing left behind")
}

func TestFileWithoutACache(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	blocked := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(blocked, nil, 0o644))
	for _, dir := range []string{"", filepath.Join(blocked, "under")} {
		path, remove, err := demo.File(dir)
		require.NoError(t, err)
		require.FileExists(t, path)
		remove()
		require.NoFileExists(t, path)
		require.NoDirExists(t, filepath.Dir(path))
	}
}

func TestFileAtOnce(t *testing.T) {
	dir := t.TempDir()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			path, _, err := demo.File(dir)
			if err != nil {
				t.Error(err)
			} else if info, err := os.Stat(path); err != nil || info.Size() != 8365312 {
				t.Error(info, err)
			}
		})
	}
	wg.Wait()
}
