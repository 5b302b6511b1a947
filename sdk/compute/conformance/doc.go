// Package conformance checks a backend program against docs/backend.md, from outside, as the engine sees it:
//
//	report, err := conformance.Run(ctx, conformance.Options{Path: "./my-backend"})
//	for _, c := range report.Checks {
//		if c.Outcome == conformance.Fail {
//			t.Errorf("%s: %s: %s", c.Group, c.Name, c.Why)
//		}
//	}
//
// bigmoe backend check PATH prints the same as a table.
//
// Checked are: the start and what the program says about itself, every op and every type of weight with the small plans of
// package optable, the streaming of experts, going back, refusals of what cannot be run, memory, and how it ends.
//
// An op, attribute or type that the backend refuses in Prepare, as docs/backend.md demands, is reported as unsupported; that
// is no failure. A backend without embed and scale can run none of the plans; streaming and going back need the ops of
// optable.Layer.
//
// # Caveats
//
// The program is run with all rights of this process: check only what you would run. Some checks are made on Linux only
// and are skipped elsewhere. A run starts the program about a dozen times and takes some seconds.
//
// # Concurrency
//
// Runs are independent of each other; one uses one program at a time.
package conformance
