// Package bigmoe_test holds the rules that span all packages.
package bigmoe_test

import (
	"encoding/json"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/bigmoe/bigmoe/"

// TestImports holds the code against the layout of the design: who may import whom. Test files are free.
func TestImports(t *testing.T) {
	rules := []struct {
		from    string   // packages below this folder
		only    []string // of ours they may import nothing but these
		exclude []string // or anything but these
		std     []string // standard packages they must not import
	}{
		{from: "sdk", only: []string{"sdk"}},
		{from: "sdk/recipe", only: []string{"sdk/recipe"}, std: []string{"fmt", "reflect", "encoding/json", "os", "net", "time"}},
		{from: "recipes/", only: []string{"sdk/recipe"}, std: []string{"fmt", "reflect", "encoding/json", "os", "net", "time"}},
		{from: "docs/examples/olmoe", only: []string{"sdk/recipe"}, std: []string{"fmt", "reflect", "encoding/json", "os", "net", "time"}},
		{from: "cmd/bigmoe/internal/recipekit/template", only: []string{"sdk/recipe"}, std: []string{"fmt", "reflect", "encoding/json", "os", "net", "time"}},
		{from: "plugins", only: []string{"sdk", "plugins"}},
		{from: "engine", only: []string{"engine", "sdk"}, std: []string{"os/signal", "log"}},
		{from: "registry", exclude: []string{"cmd", "plugins", "recipes"}},
		{from: "recipes", exclude: []string{"cmd", "engine", "plugins", "registry"}},
	}
	type pkg struct {
		ImportPath string
		Imports    []string
	}
	var pkgs []pkg
	for _, env := range [][]string{nil, {"GOOS=wasip1", "GOARCH=wasm"}} {
		cmd := exec.Command("go", "list", "-json=ImportPath,Imports", "./...")
		cmd.Env = append(cmd.Environ(), env...)
		out, err := cmd.Output()
		require.NoError(t, err)
		for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
			var p pkg
			err := dec.Decode(&p)
			if err == io.EOF {
				break
			}
			require.NoError(t, err)
			pkgs = append(pkgs, p)
		}
	}
	require.NotEmpty(t, pkgs)
	below := func(path string, folders []string) bool {
		return slices.ContainsFunc(folders, func(f string) bool {
			return path == f || strings.HasPrefix(path, strings.TrimSuffix(f, "/")+"/")
		})
	}
	for _, rule := range rules {
		seen := false
		for _, p := range pkgs {
			from := strings.TrimPrefix(p.ImportPath, module)
			if !strings.HasPrefix(from, rule.from) || (!strings.HasSuffix(rule.from, "/") && !below(from, []string{rule.from})) {
				continue
			}
			seen = true
			for _, imp := range p.Imports {
				if imp+"/" == module {
					t.Errorf("%s imports the package for others to import", from)
				}
				to, ours := strings.CutPrefix(imp, module)
				if !ours {
					require.NotContains(t, rule.std, imp, "%s imports %s", from, imp)
					continue
				}
				if rule.only != nil && !below(to, rule.only) || below(to, rule.exclude) {
					t.Errorf("%s imports %s", from, to)
				}
			}
		}
		require.True(t, seen, "no package below %s", rule.from)
	}
	// Only the command reads the environment and writes to the terminal; only it has a main that people start.
}
