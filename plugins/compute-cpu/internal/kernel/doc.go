// Package kernel is the arithmetic floor of the CPU backend: products with quantised weights and the vector operations
// between them (specs/quants.md, specs/qwen3moe.md 3 and 4).
//
//	k := kernel.Best()
//	a, ok := kernel.ActFor(dtype.Q4_K)
//	x := make([]byte, a.RowBytes(2048))
//	k.Quantize(a, x, hidden)
//	k.MatMul(dtype.Q4_K, weights, 768, 2048, x, len(x), 1, out, 768)
//
// Weights are used as they lie in the file. Activations are rounded once per row to the format the weights want, and
// the products inside a block are exact integers, so only the few float32 additions across blocks have an order, and
// that order is fixed: block after block, one running sum per output. That is why a result does not depend on tiles,
// threads, batches or, for quantised weights, on the instruction set.
//
// All block types of specs/quants.md are decoded and multiplied. TQ1_0, Q1_0 and Q2_0, which no model of the mission
// uses, are multiplied in plain Go on every set. Codebook types (IQ1 to IQ3) look up every four or eight elements, so that
// with one token a core computes IQ2 about 2 times and IQ3 about 3.5 times as long as as many elements of Q4_K; with many
// tokens the cost of looking up is shared.
//
// A Set holds one implementation: plain Go everywhere, and C with intrinsics where cgo and the CPU allow. To add an
// instruction set, write one C file, one Go file that fills a Set, and list it in native.
//
// Everything here is stateless and safe for concurrent use. Nothing starts threads: callers split rows.
package kernel
