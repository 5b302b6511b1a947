package registry_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/engine"
	"github.com/bigmoe/bigmoe/registry"
	"github.com/bigmoe/bigmoe/sdk/fault"
)

const magic = "\x00asm\x01\x00\x00\x00"

// builtIn is a registry with two recipes of its own.
func builtIn(dirs ...string) *registry.Registry {
	modules := map[string]string{"qwen3moe": magic + "built in", "qwen2moe": magic}
	return registry.New(registry.Config{RecipeDirs: dirs, BuiltIn: []string{"qwen3moe", "qwen2moe"},
		Lookup: func(name string) ([]byte, bool) { m, ok := modules[name]; return []byte(m), ok }})
}

func write(t *testing.T, path, content string) string {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, []byte(content), 0o755))
	return path
}

func TestFindBuiltIn(t *testing.T) {
	r := builtIn()
	got, err := r.Find("qwen3moe")
	require.NoError(t, err)
	require.Equal(t, engine.Recipe{Name: "qwen3moe", Module: []byte(magic + "built in")}, got)

	list, err := r.Recipes()
	require.NoError(t, err)
	require.Len(t, list, 2)
	require.Equal(t, registry.Recipe{Name: "qwen2moe", Origin: registry.BuiltIn, Bytes: 8,
		SHA256: "93a44bbb96c751218e4c00d479e4c14358122a389acca16205b1e4d0dc5f9476"}, list[0])
}

func TestFindUnknown(t *testing.T) {
	r := builtIn()
	_, err := r.Find("frobnicator")
	require.EqualError(t, err, `no recipe "frobnicator"; there are: qwen2moe, qwen3moe; others are added (bigmoe recipe add) or written (bigmoe recipe new)`)
	require.Equal(t, fault.Unsupported, fault.KindOf(err))

	_, err = registry.New(registry.Config{}).Find("qwen3moe")
	require.ErrorContains(t, err, `no recipe "qwen3moe"; there are none`)
}

// The architecture of a model file is a name that somebody else chose.
func TestFindNeverFollowsAName(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "secret.wasm"), magic)
	write(t, filepath.Join(dir, "recipes", "a", "a.wasm"), magic)
	r := builtIn(filepath.Join(dir, "recipes"))
	for _, name := range []string{"", ".", "..", "../secret", "../secret.wasm", filepath.Join(dir, "secret.wasm"), "a/../a", "a\x00",
		"-a", strings.Repeat("a", 1000), "\x1b[2J"} {
		_, err := r.Find(name)
		require.Equal(t, fault.Unsupported, fault.KindOf(err), "%q: %v", name, err)
		require.Contains(t, err.Error(), "there are: a, qwen2moe, qwen3moe")
		require.NotContains(t, err.Error(), "\x1b")
		require.Less(t, len(err.Error()), 400)
	}
}

func TestFoldersComeFirst(t *testing.T) {
	one, two := t.TempDir(), t.TempDir()
	path := write(t, filepath.Join(one, "qwen3moe", "qwen3moe.wasm"), magic+"one")
	write(t, filepath.Join(one, "README.md"), "recipes")
	write(t, filepath.Join(one, "other", "name.wasm"), magic)
	require.NoError(t, os.MkdirAll(filepath.Join(one, "folder", "folder.wasm"), 0o755))
	write(t, filepath.Join(two, "qwen3moe", "qwen3moe.wasm"), magic+"two")
	write(t, filepath.Join(two, "mine", "mine.wasm"), magic+"mine")
	r := builtIn(one, two)

	got, err := r.Find("qwen3moe")
	require.NoError(t, err)
	require.Equal(t, magic+"one", string(got.Module))
	got, err = r.Find("mine")
	require.NoError(t, err)
	require.Equal(t, magic+"mine", string(got.Module))

	list, err := r.Recipes()
	require.NoError(t, err)
	require.Len(t, list, 3)
	require.Equal(t, "mine", list[0].Name)
	require.Equal(t, registry.BuiltIn, list[1].Origin)
	require.Equal(t, path, list[2].Origin)
}

func TestAdd(t *testing.T) {
	dir := t.TempDir()
	r := builtIn()
	path := write(t, filepath.Join(dir, "qwen3moe.wasm"), magic+"added")
	name, err := r.Add(path)
	require.NoError(t, err)
	require.Equal(t, "qwen3moe", name)
	got, err := r.Find(name)
	require.NoError(t, err)
	require.Equal(t, magic+"added", string(got.Module))
	list, err := r.Recipes()
	require.NoError(t, err)
	require.Len(t, list, 2)
	require.Equal(t, path, list[1].Origin)

	for _, c := range []struct {
		path, say string
		kind      fault.Kind
	}{
		{filepath.Join(dir, "missing.wasm"), "no such file", fault.User},
		{dir + "/", "not a regular file", fault.User},
		{write(t, filepath.Join(dir, "text.wasm"), "hello"), "not a WebAssembly module", fault.Corrupt},
		{write(t, filepath.Join(dir, "empty.wasm"), ""), "not a WebAssembly module", fault.Corrupt},
		{write(t, filepath.Join(dir, ".wasm"), magic), "cannot be the name", fault.User},
	} {
		_, err := r.Add(c.path)
		require.ErrorContains(t, err, c.say, c.path)
		require.Equal(t, c.kind, fault.KindOf(err), "%v", err)
	}
}

func TestTooLarge(t *testing.T) {
	dir := t.TempDir()
	path := write(t, filepath.Join(dir, "large", "large.wasm"), magic)
	require.NoError(t, os.Truncate(path, 64<<20+1))
	_, err := registry.New(registry.Config{RecipeDirs: []string{dir}}).Find("large")
	require.ErrorContains(t, err, `recipe "large": 67108865 bytes, expected at most 4194304`)
}

func TestFolderMissing(t *testing.T) {
	r := builtIn(filepath.Join(t.TempDir(), "gone"))
	_, err := r.Recipes()
	require.ErrorContains(t, err, "gone")
	require.Equal(t, fault.User, fault.KindOf(err))
}

func TestBackends(t *testing.T) {
	cpu := engine.Backend{Path: "/usr/bin/bigmoe", Args: []string{"backend-child"}}
	r := registry.New(registry.Config{Backends: map[string]engine.Backend{"cpu": cpu}})
	list, err := r.Backends()
	require.NoError(t, err)
	require.Equal(t, []registry.Backend{{Name: "cpu", Origin: registry.BuiltIn, Backend: cpu}}, list)

	got, err := r.FindBackend("cpu")
	require.NoError(t, err)
	require.Equal(t, cpu, got.Backend)

	dir := t.TempDir()
	program := write(t, filepath.Join(dir, "mine"), "#!/bin/sh\n")
	got, err = r.FindBackend(program)
	require.NoError(t, err)
	require.Equal(t, registry.Backend{Name: "mine", Origin: program, Backend: engine.Backend{Path: program}}, got)

	plain := write(t, filepath.Join(dir, "plain"), "text")
	require.NoError(t, os.Chmod(plain, 0o644))
	for value, say := range map[string]string{
		"gpu":                        `no backend "gpu"; there are: cpu; a program is given by its path, such as ./gpu`,
		filepath.Join(dir, "absent"): "no such file",
		plain:                        "permission denied",
		dir + "/":                    "is a directory",
	} {
		_, err := r.FindBackend(value)
		require.ErrorContains(t, err, say)
		require.Equal(t, fault.User, fault.KindOf(err), "%v", err)
	}
}
