//go:build !linux

package memory

import (
	"errors"
	"os"

	mmap "github.com/edsrzf/mmap-go"
)

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

func mapFile(f *os.File, n int) ([]byte, error) { return mmap.MapRegion(f, n, mmap.RDWR, 0, 0) }

func unmap(b []byte) error { return (*mmap.MMap)(&b).Unmap() }

func collapse([]byte) error { return errors.ErrUnsupported }
