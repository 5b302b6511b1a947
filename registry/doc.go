// Package registry finds recipes and compute backends: built into the program, in local folders, a single file, or in the
// store of those that came from elsewhere. It also installs into that store.
//
//	r := registry.New(registry.Config{BuiltIn: recipes.Names(), Lookup: recipes.Lookup, Store: store.New(dir)})
//	offer, err := r.Install(ctx, registry.Request{Kind: artifact.Recipe, Ref: "ghcr.io/someone/olmoe:1.2"})
//	recipe, err := r.Find("olmoe") // for engine.Config.Recipes; no network
//
// A folder of recipes holds NAME/NAME.wasm for each. Folders come before what is built in and earlier folders before
// later ones, so a folder can replace a recipe without a rebuild. The store comes last: what a stranger ships cannot take
// the place of anything.
//
// The subpackages: artifact is how things travel, store how they are kept and pinned, cosign who signed them.
//
// # Caveats
//
// Find gets names from model files, which nobody has to trust: a name is never used as a path. A path that a person
// typed goes through [Registry.Add] first, and is not pinned. Modules are read when asked for, at most 4 MiB each.
//
// # Concurrency
//
// A Registry may be used from several goroutines once all calls to Add have returned.
package registry
