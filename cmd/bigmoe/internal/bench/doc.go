// Package bench is the arithmetic of a paired benchmark: which configurations, in which order they run, whether their
// runs may be compared at all, and what the figures come to. It measures nothing itself.
//
//	variants, err := bench.Variants([]string{"cache=2000M,4000M"}, nil)
//	report := bench.New(header, variants)
//	for _, step := range bench.Schedule(len(variants), 1, 3) {
//		run := measure(variants[step.Variant])
//		if err := report.Add(step, run); err != nil {
//			return err // its text differs: nothing to compare
//		}
//	}
//	err = report.WriteMarkdown(os.Stdout)
//
// # Why pairs
//
// A machine drifts: clocks, the drive, the neighbours. So the variants take turns, each round is a pair (or more) that saw
// the same weather, and ratios are taken round by round before their median is. Medians of the figures themselves are
// for orientation.
//
// # Concurrency
//
// A Report may be used from one goroutine at a time.
package bench
