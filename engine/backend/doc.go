// Package backend runs a compute backend for the engine: as a child process, or within this one.
//
//	mem, err := memory.Create(budgetBytes)
//	dev, err := backend.Start(ctx, backend.Options{Path: "bigmoe-compute-cpu", Memory: mem, Log: log})
//	needs, err := dev.Prepare(ctx, bound)
//	layout, err := compute.NewLayout(bound, slots)
//	// place the dense weights and the slots behind it, read the weights into mem.Bytes()
//	seq, err := dev.Load(ctx, bound, layout)
//	err = seq.Eval(ctx, batch, host) // calls host from this goroutine
//	dev.Close()
//
// [InProcess] gives the same [Device] without a child: the engine cannot tell them apart, and results are identical.
//
// # When a backend dies
//
// The call under way returns an error that says how it died and what it said last, within a second. [Device.Dead] is not
// nil from then on. Close the device, start another with the same memory, Load again: the weights are still in place,
// only the states are lost. A backend that shows no sign of life for Options.HangTimeout, breaks the protocol, or does
// not stop within ten seconds of being cancelled is killed and then is such a dead one. A child never outlives this
// process, even if that is killed. [Restarts] says when the next one may be started.
//
// # Costs
//
// A route takes 9 to 35 µs more than in process (docs/experiments/process-boundary.md). Inputs and logits are copied unless the batch's slices already lie
// in the region.
//
// # Concurrency
//
// One call at a time, except for Dead, PID and Close, which any goroutine may call at any time.
package backend
