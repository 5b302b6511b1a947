package drive

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDepthIsRemembered(t *testing.T) {
	model := filepath.Join(t.TempDir(), "model")
	require.NoError(t, os.WriteFile(model, []byte("x"), 0o600))
	if device(model) == "" {
		t.Skip("this system does not tell drives apart")
	}
	dir := filepath.Join(t.TempDir(), "a", "b")
	require.Zero(t, Depth(dir, model))
	require.NoError(t, Remember(dir, model, 16))
	require.Equal(t, 16, Depth(dir, model))
	require.NoError(t, Remember(dir, model, 8))
	require.Equal(t, 8, Depth(dir, model))
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 1, "nothing is left over")

	require.Zero(t, Depth(dir, model+"-gone"))
	require.NoError(t, Remember(dir, model+"-gone", 3))
	require.Zero(t, Depth("", model))
	require.NoError(t, Remember("", model, 3))

	for name, raw := range map[string]string{
		"empty": "", "cut": `{"depths":{"`, "another kind": `[1,2]`, "a number": `7`, "huge": strings.Repeat(" ", maxBytes+1),
		"impossible depths": fmt.Sprintf(`{"depths":{%q:100000}}`, device(model)), "negative": fmt.Sprintf(`{"depths":{%q:-1}}`, device(model)),
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, fileName), []byte(raw), 0o600))
		require.Zero(t, Depth(dir, model), name)
		require.NoError(t, Remember(dir, model, 12), name)
		require.Equal(t, 12, Depth(dir, model), name)
	}

	blocked := filepath.Join(model, "folder") // below a file: nobody can write there
	require.Error(t, Remember(blocked, model, 4))
	require.Zero(t, Depth(blocked, model))
}

func TestTheFileStaysSmall(t *testing.T) {
	dir, model := t.TempDir(), t.TempDir()
	var many []string
	for i := range 3 * maxDrives {
		many = append(many, fmt.Sprintf(`"x%d":4`, i))
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, fileName), []byte(`{"depths":{`+strings.Join(many, ",")+`}}`), 0o600))
	require.NoError(t, Remember(dir, model, 4))
	require.LessOrEqual(t, len(read(dir).Depths), maxDrives)
	if device(model) != "" {
		require.Equal(t, 4, Depth(dir, model))
	}
}
