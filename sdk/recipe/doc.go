// Package recipe is what a recipe imports: it asks the host about a model file and writes the plan that describes it.
//
// A recipe is a main package built with GOOS=wasip1 GOARCH=wasm -buildmode=c-shared. It registers one function and
// has an empty main:
//
//	func init() { recipe.Register("llama", "1", build) }
//	func main() {}
//
//	func build(b *recipe.Builder) {
//		layers, width := b.Uint("block_count", 1, recipe.MaxLayers), b.Uint("embedding_length", 1, recipe.MaxWidth)
//		table, head := b.TableAndHead(width, b.Vocabulary())
//		b.Embedding()
//		h := b.Embed("h", table, 1)
//		for i := range layers {
//			blk := b.Layer(i)
//			x := b.RMSNorm("attn_norm", h, b.Weight(blk+"attn_norm.weight", width), 1e-6, 0)
//			// ...
//		}
//		b.Head()
//		b.Linear(recipe.Logits, h, head, "")
//	}
//
// There are no errors to handle. A key or tensor that is missing, or not as the recipe needs it, ends the recipe with
// a message that names it, what was expected and what was found; so does [Builder.Refuse]. What the plan means is in
// docs/plan.md, what each op computes in docs/ops.md, and the calls behind this package in docs/recipe-abi.md.
//
// # Caveats
//
// The package keeps away from reflection and protobuf so that a recipe stays below 2 MB. A recipe cannot import os, nor what
// imports it, such as fmt: the host has no files. It runs alone and once: nothing here may be called concurrently.
package recipe
