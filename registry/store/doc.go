// Package store keeps recipes and backends on this machine: a lock file that says which, and their content by digest.
//
//	s := store.New(folder)
//	err := s.Put(ctx, artifact.Recipe, "olmoe", store.Entry{Source: …, Digest: …}, blobs, false)
//	module, entry, err := s.Module("olmoe") // no network
//
// The folder:
//
//	lock.json              for each name a source, the digest of its artifact, and the key and signature if one was asked for
//	blobs/sha256/HEX       manifests, indexes and modules, as in an OCI layout
//	programs/HEX/NAME      the programs of backends, executable
//
// The digest in the lock file is the only thing trusted. It leads to the manifest, which has the digest of the module;
// both are hashed as they are read, and the bytes that were hashed are the bytes that are returned.
//
// # Caveats
//
// A program is started by its path, so whoever starts it checks its digest ([Store.Program] returns it). Between that check
// and the start there is a moment in which somebody with the user's own rights could exchange the file.
//
// Reading a store never writes to it and works on a folder that cannot be written, or does not exist: then it is empty.
//
// # Concurrency
//
// Stores may be used concurrently, by several processes too: changes take turns by a file lock, and readers see the state
// before or after a change.
package store
