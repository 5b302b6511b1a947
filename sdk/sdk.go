// Package sdk carries the sources of what a recipe is built with, so that bigmoe can write them into the folder of a new
// recipe: no network and no checkout is needed to build one.
//
//	files := sdk.Go() // host.go, tensors.go, …
//
// The package has no state.
package sdk

import (
	"embed"
	"io/fs"
	"path"
	"strings"
)

//go:embed recipe/*.go recipe/c/bigmoe.h recipe/rust/bigmoe.rs
var sources embed.FS

// Go returns the files of package recipe by name, without its tests.
func Go() map[string]string { return files("recipe/*.go") }

// C returns the header for recipes in C.
func C() map[string]string { return files("recipe/c/*") }

// Rust returns the module for recipes in Rust.
func Rust() map[string]string { return files("recipe/rust/*") }

func files(pattern string) map[string]string {
	out := map[string]string{}
	paths, err := fs.Glob(sources, pattern)
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
		out[path.Base(p)] = string(text)
	}
	return out
}
