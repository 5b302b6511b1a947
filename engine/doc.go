// Package engine runs mixture-of-experts language models that are larger than memory: dense weights stay resident,
// routed experts are streamed from the file into a bounded cache while the backend computes.
//
//	e, err := engine.Open(ctx, engine.Config{Model: "model.gguf", Recipes: recipes, Backend: engine.Backend{Path: "bigmoe-compute-cpu"}})
//	defer e.Close()
//	s := e.NewSession()
//	result, err := s.Generate(ctx, engine.Request{Prompt: "Once upon a time"}, func(t engine.Token) error {
//		_, err := os.Stdout.WriteString(t.Text)
//		return err
//	})
//
// The subpackages are its rooms: gguf (files), recipehost (recipes), model (a plan bound to a file), budget (memory),
// vfs and expert (streaming), backend (the compute process), token and sample (text).
//
// # Caveats
//
// The output does not depend on cache size, policy, read mode, readers or threads, bit for bit; it does depend on the
// backend. An Engine holds one sequence of states: when sessions take turns, each turn evaluates its text again.
//
// The package reads no environment variables and prints nothing.
//
// # Concurrency
//
// An Engine and its sessions may be used from several goroutines; calls that evaluate take turns. A context that ends
// stops the call at the next layer and leaves the session usable.
package engine
