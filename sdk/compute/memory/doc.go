// Package memory holds the region of memory that the engine and a compute backend share.
//
//	m, err := memory.Create(budgetBytes) // engine
//	m, err := memory.FromFile(os.NewFile(3, "region")) // backend
//	copy(m.Bytes()[off:], weights)
//	m.Close()
//
// The region is sparse: pages cost memory from the first write on, so it may be created larger than what will be
// used. It has no name (a memfd on Linux, an unlinked file elsewhere): when the last process that has it goes away,
// however it goes, the memory is free again.
//
// # Caveats
//
// Outside Linux the region is backed by a file in the temporary folder, which the kernel may write back to disk, and
// [Memory.Discard] does nothing.
//
// # Concurrency
//
// The bytes are plain memory: whoever shares them agrees on who writes what. Close must be the last call, and nobody
// may touch the bytes after it.
package memory
