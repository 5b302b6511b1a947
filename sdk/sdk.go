// Package sdk carries the sources of what a recipe is built with, so that bigmoe can write them into the folder of a new
// recipe: no network and no checkout is needed to build one.
//
//	files := sdk.GoGuest() // host.go, tensors.go, …
//
// The package has no state.
package sdk

import (
	"embed"
	"io/fs"
	"path"
	"strings"
)

//go:embed recipe/*.go
var sources embed.FS

// GoGuest returns the files of package recipe by name, without its tests.
func GoGuest() map[string]string {
	files := map[string]string{}
	paths, err := fs.Glob(sources, "recipe/*.go")
	if err != nil {
		panic(err) // the pattern is malformed
	}
	for _, p := range paths {
		if strings.HasSuffix(p, "_test.go") {
			continue
		}
		text, err := sources.ReadFile(p)
		if err != nil {
			panic(err) // it was just listed
		}
		files[path.Base(p)] = string(text)
	}
	return files
}
