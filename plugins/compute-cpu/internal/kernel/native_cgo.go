//go:build cgo && amd64

package kernel

func native() []*Set { return nil }
