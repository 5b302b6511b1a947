// Package artifact is the form in which recipes and backends travel: OCI artifacts, in a registry or in a layout folder.
//
//	ref, err := artifact.Parse("ghcr.io/someone/olmoe:1.2")
//	src, err := artifact.Connect(ctx, ref, artifact.Config{})
//	a, err := artifact.Open(ctx, src, src.Root, artifact.Recipe, "")
//	module, err := artifact.Read(ctx, src, a.File, artifact.MaxRecipeBytes)
//
// A recipe is a manifest with one layer. A backend is an index with one such manifest for each operating system and
// processor. docs/registry.md has the media types.
//
// # Caveats
//
// Nothing that comes back was taken on trust: every byte was hashed as it was read and compared with the digest that led
// to it. What documents say about themselves is data of a stranger: titles go through [ValidName] before they are used.
// Everything is held in memory, within the limits below.
//
// # Concurrency
//
// Functions may be called concurrently. A context that ends stops a transfer.
package artifact
