//go:build !linux

package conformance

import "errors"

func privateBytes(int) (uint64, error) {
	return 0, errors.New("memory of another process is measured on Linux only")
}
