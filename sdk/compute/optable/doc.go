// Package optable is the op table: small plans, one or more for each op of docs/ops.md, with random weights and inputs
// and what they must give, computed in float64 from the equations of that page. A backend is held against it from
// outside by package conformance, and may hold its own parts against it in unit tests:
//
//	for _, c := range optable.Cases() {
//		m, err := c.Build()
//		err = m.Place(6, func(n uint64) ([]byte, error) { return make([]byte, n), nil })
//		seq, err := myBackend.Load(m.Bound, m.Region)
//		batch := m.Batch(0, true, optable.AllTokens()...)
//		err = seq.Eval(ctx, batch, optable.NewHost(m))
//		err = c.Compare(m, batch.Logits)
//	}
//
// The logits of a case are the value that it is about. [Types] makes such cases for an element type, from blocks whose
// contents were decoded once and are kept beside them.
//
// # Concurrency
//
// Cases are independent of each other. A [Host] belongs to one evaluation at a time.
package optable
