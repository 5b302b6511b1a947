// Package recipehost runs recipes: WebAssembly modules that look at a model file through a dozen questions and answer
// with a plan (docs/recipe-abi.md).
//
//	host := recipehost.New(recipehost.Options{})
//	p, err := host.Plan(ctx, "qwen3moe", wasm, recipehost.File(f))
//
// A module is hostile until proved otherwise. It sees the metadata and the tensor table of one model file and nothing
// else: no files, environment, arguments, clock or randomness of the machine. Its code, memory, time, result and calls
// are bounded; whatever goes wrong, the error names the recipe and the process goes on. The plan it returns has passed
// [plan.Validate].
//
// # Costs
//
// Modules are interpreted. A recipe runs once for each model and for some hundred thousand calls at most, and
// interpreting starts sooner than compiling; docs/recipe-abi.md has the measurements. Everything a module used is
// released when Plan returns.
//
// # Concurrency
//
// A [Host] has no state: Plan may be called from several goroutines at once.
package recipehost
