//go:build !(cgo && (amd64 || arm64))

package kernel

// native returns the sets beyond Reference that this build has: none.
func native() []*Set { return nil }
