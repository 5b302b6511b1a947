// Package usage remembers, from run to run, how often a model used each of its experts, so that the next start can read the
// likely ones before anybody asks.
//
//	p, err := usage.Load(dir, id, shape) // an error is a hint lost: log it and go on
//	for _, e := range p.Best() { ... } // warm the cache
//	...
//	c := usage.NewCount(shape)
//	c.Add(layer, k, ids)                 // every batch
//	err = usage.Save(dir, id, p.Merge(c))
//
// A profile is a file of its own for each model, named after its identity ([Identity]): 4 bytes per expert and a checksum. One that is
// damaged, of another version or of another model is an error of Load, and the next Save replaces it. A folder keeps the [MaxFiles]
// profiles that were written last. Runs fade: what a run says counts the less the more tokens were seen after it.
//
// # Caveats
//
// A profile says what texts so far were about. A text about something else gains nothing and loses little: what is
// warmed evicts nothing, and a single use outweighs what was usual.
//
// # Concurrency
//
// Load and Save may be used by several processes at once: files are replaced as a whole, and the last writer wins. A Profile does
// not change. A Count is for one goroutine.
package usage
