//go:build !linux

package memory

import "os"

func anonymous(bytes int64) (*os.File, error) {
	f, err := os.CreateTemp("", "bigmoe-*")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(f.Name()); err != nil {
		f.Close()
		return nil, err
	}
	if err := f.Truncate(bytes); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func (m *Memory) discard(int64, int64) error { return nil }
