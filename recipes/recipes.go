// Package recipes holds the recipes that ship with bigmoe, built to WebAssembly. Each folder below is the main package
// of one, named after the general.architecture it describes; README.md says how to add another.
//
//	wasm, ok := recipes.Lookup("qwen3moe")
//
// The modules are committed and rebuild byte for byte with the Go version in go.mod: go generate ./recipes. The
// package has no state and is safe for concurrent use.
package recipes

import (
	"embed"
	"io/fs"
	"path"
)

//go:generate sh build.sh

//go:embed */*.wasm
var modules embed.FS

// Names returns the architectures that have a recipe, in alphabetical order.
func Names() []string {
	paths, err := fs.Glob(modules, "*/*.wasm")
	if err != nil {
		panic(err) // the pattern is malformed
	}
	names := make([]string, len(paths))
	for i, p := range paths {
		names[i] = path.Dir(p)
	}
	return names
}

// Lookup returns the module of an architecture's recipe, not to be modified.
func Lookup(architecture string) ([]byte, bool) {
	wasm, err := modules.ReadFile(path.Join(architecture, architecture+".wasm"))
	return wasm, err == nil
}
