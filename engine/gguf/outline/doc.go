// Package outline turns a model file into a small text and back: its metadata and the types and sizes of its tensors,
// without weights and without vocabulary. That is all a recipe sees of a model, so that a recipe can be tested, and its
// tests kept beside it, without files of many gigabytes.
//
//	{
//	  "keys": {
//	    "general.architecture": "olmoe",
//	    "olmoe.block_count": 16,
//	    "olmoe.rope.freq_base": 10000.0,
//	    "tokenizer.ggml.tokens": {"strings": 50304}
//	  },
//	  "tensors": [
//	    "token_embd.weight F32 [2048 50304]"
//	  ]
//	}
//
// Numbers with a point or an exponent are floats. The tokenizer's lists of more than 64 elements, and others of more than
// 1024, are replaced by their length: {"strings": N}, {"integers": N} or {"floats": N}, made up when read.
//
//	o, err := outline.Parse(text)
//	err = o.Write("tiny.gguf") // a file with a hole where the weights were
//
// Widths of integers and of floats are lost: whole numbers come back as 32 bits where they fit, floats as 32 bits. The
// package has no state.
package outline
