//go:build !unix

package drive

func device(string) string { return "" }
