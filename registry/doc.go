// Package registry finds recipes and compute backends: built into the program, in local folders, or a single file.
//
//	r := registry.New(registry.Config{BuiltIn: recipes.Names(), Lookup: recipes.Lookup, RecipeDirs: dirs})
//	recipe, err := r.Find("qwen3moe") // for engine.Config.Recipes
//
// A folder of recipes holds NAME/NAME.wasm for each. Folders come before what is built in and earlier folders before
// later ones, so a folder can replace a recipe without a rebuild.
//
// # Caveats
//
// Find gets names from model files, which nobody has to trust: a name is never used as a path. A path that a person
// typed goes through [Registry.Add] first. Modules are read when asked for, at most 64 MiB each.
//
// # Concurrency
//
// A Registry may be used from several goroutines once all calls to Add have returned.
package registry
