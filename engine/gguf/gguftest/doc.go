// Package gguftest writes small model files for tests: healthy ones, ones with exactly one defect (specs/gguf.md 5), and
// the heads of files of any size.
//
//	b := gguftest.NewBuilder().
//		Set("general.architecture", "qwen3moe").
//		Set("qwen3moe.block_count", uint32(1)).
//		Tensor("output_norm.weight", dtype.F32, []uint64{4}, gguftest.Float32s(1, 1, 1, 1))
//	require.NoError(t, b.Write(path))
//
// Set and Tensor replace an entry of the same name, Drop removes it, and Clone lets the rows of a table start from one
// base. Nothing is checked: dimensions need not agree with the data, so a hostile tensor is one call. Everything is
// held in memory. A Builder is not safe for concurrent use.
package gguftest
