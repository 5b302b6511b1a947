// Package engine runs mixture-of-experts language models that are larger than memory: dense weights stay resident,
// routed experts are streamed from the file into a bounded cache while the backend computes.
//
//	e, err := bigmoe.Open(ctx, engine.Config{Model: "model.gguf", MemoryBytes: 6 << 30})
//	defer e.Close()
//	res, err := e.NewSession().Generate(ctx, engine.Request{Prompt: "Once upon a time"}, func(t engine.Token) error {
//		_, err := os.Stdout.WriteString(t.Text)
//		return err
//	})
//
// Package bigmoe adds the recipes and the backend that ship; [Open] wants to be told which. The subpackages are the
// engine's rooms: gguf (files), recipehost (recipes), model (a plan bound to a file), budget (memory), vfs and expert
// (streaming), backend (the compute process), token and sample (text).
//
// # Caveats
//
// The output does not depend on cache size, policy, read mode, readers or threads, bit for bit; it does depend on the
// backend. An Engine holds one sequence of states: when sessions take turns, each turn evaluates its text again.
//
// The package reads no environment variables and prints nothing. Sizes are in bytes, unless a name says otherwise; a
// Context is counted in tokens. Several engines in one process do not know of each other: give each its MemoryBytes.
//
// # Errors
//
// [fault.KindOf] says whose move it is: [fault.User], a request that cannot be meant, too little memory included;
// [fault.Corrupt], a damaged file or a misbehaving recipe; [fault.Unsupported]; [fault.Bug]. What the machine does (a
// read that fails, a backend that is killed) has no kind. After an error of an evaluation the next call works; a dead
// backend is started again.
//
// # Concurrency
//
// Everything may be used from several goroutines; calls that evaluate take turns. When a context ends, the call returns
// its error: Open, Inspect, waits for one's turn and waits for reads at once, computing at the next layer. Nothing is
// left behind, and the session is usable. Only Close must not be called from a function that the engine calls.
package engine
