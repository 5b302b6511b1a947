// Package recipehost runs recipes: WebAssembly modules that look at a model file through a dozen questions and answer
// with a plan (docs/recipe-abi.md).
//
//	host := recipehost.New(recipehost.Options{})
//	p, values, err := host.Plan(ctx, "qwen3moe", wasm, recipehost.File(f))
//
// A module is hostile until proved otherwise. It sees the metadata and the tensor table of one model file and nothing
// else: no files, environment, arguments, clock or randomness of the machine. Its code, memory, time, result and calls
// are bounded; whatever goes wrong, the error names the recipe and the process goes on. The plan it returns has passed
// [plan.Validate], which is where the values come from.
//
// # Costs
//
// With [Options.CacheDir] a recipe is compiled once, 1.1 s for one of 2 MB, and then starts in 0.1 s; without, it is
// interpreted, which takes 0.4 s for a model of 48 layers. The memory is garbage when Plan returns: up to 110 MB while
// compiling, 25 MB from the cache. A caller that counts every byte makes the plan first and returns the garbage to the
// system (debug.FreeOSMemory) before it takes the model's memory.
//
// # Concurrency
//
// A [Host] has no state: Plan may be called from several goroutines at once.
package recipehost
