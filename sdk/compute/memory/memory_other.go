//go:build !linux

package memory

import "os"

func anonymous() (*os.File, error) {
	f, err := os.CreateTemp("", "bigmoe-*")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(f.Name()); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func seal(*os.File) error { return nil }

func (m *Memory) discard(int64, int64) error { return nil }
