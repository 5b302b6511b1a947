// Package program compiles a plan into steps with fixed places in memory, and runs them on the CPU.
//
//	p, err := program.Compile(model, program.Limits{...})   // refuses what the backend cannot do
//	m, err := p.Load(set, region)                           // takes the memory p.Needs() said
//	err = m.Eval(ctx, batch, host)
//
// A batch runs layer by layer, each step over all of its tokens. A step splits its work into chunks whose results
// depend neither on the split nor on the worker, so logits are the same bits for any number of threads, any split of a
// prompt into batches and any order in which experts arrive.
//
// Every op goes through the kernel set it is given and is otherwise plain Go: with the reference set and one thread
// this package is the reference of every op.
//
// # Caveats
//
// A Program is bound to memory by Load and can be loaded once.
//
// # Concurrency
//
// One Eval at a time.
package program
