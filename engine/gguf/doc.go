// Package gguf reads model files: GGUF versions 2 and 3, in one file or split over several (specs/gguf.md).
//
//	f, err := gguf.Open("model-00001-of-00003.gguf") // any shard will do
//	if err != nil {
//		return err
//	}
//	defer f.Close()
//	arch, _ := f.Get("general.architecture")
//	name, err := arch.String() // an error names the file, the key, and what was found instead
//	t, ok := f.Tensor("token_embd.weight")
//	_, err = f.Shards()[t.Shard].ReadAt(row, t.Offset)
//
// A file is hostile until proved otherwise. Open makes every check of specs/gguf.md 4.1 that needs no knowledge of
// the architecture: what it returns has unique names, known types, dimensions whose product fits, and tensors that
// lie inside their files without overlapping. Metadata decodes to at most 48 MiB, whatever the counts in the file claim;
// the tensors themselves are not touched. [File.Check] reads all of them and looks for NaN and infinity.
//
// Headers are parsed from a read-only mapping that is gone when Open returns, so that no page of a model is charged
// to this process. Metadata is copied out, except for arrays above 4 KiB: those of the tokenizer, up to 24 MiB of which a
// [File] holds nothing. Each call of a getter reads such an array again. The shards stay open for reading.
//
// A [File] is immutable after Open: every method but Close may be called from several goroutines at once.
package gguf
