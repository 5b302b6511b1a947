package memory

import (
	"fmt"
	"math"
	"os"
)

// Memory is one mapped region.
type Memory struct {
	file  *os.File
	bytes []byte
	huge  hugePages
}

// New returns a region that has no size yet: its file can be handed to a child before anybody knows how large it must
// be. Size it before anybody maps it.
func New() (*Memory, error) {
	f, err := anonymous()
	if err != nil {
		return nil, fmt.Errorf("shared memory: %w", err)
	}
	return &Memory{file: f}, nil
}

// Size gives a new region its size, once and for ever, and maps it, zero-filled.
func (m *Memory) Size(bytes uint64) error {
	if bytes == 0 || bytes > math.MaxInt || m.bytes != nil {
		return fmt.Errorf("shared memory of %d bytes: impossible size, or sized before", bytes)
	}
	err := m.file.Truncate(int64(bytes))
	if err == nil {
		err = seal(m.file)
	}
	if err == nil {
		m.bytes, err = mapFile(m.file, int(bytes))
	}
	if err != nil {
		return fmt.Errorf("shared memory of %d bytes: %w", bytes, err)
	}
	if bytes >= smallBytes {
		m.huge.asked = make([]bool, bytes/hugeBytes)
	}
	return nil
}

// Create is New and Size: a region of bytes zeros. On Linux its size is sealed, so that touching it never faults.
func Create(bytes uint64) (*Memory, error) {
	m, err := New()
	if err != nil {
		return nil, err
	}
	if err := m.Size(bytes); err != nil {
		m.Close()
		return nil, err
	}
	return m, nil
}

// FromFile maps the region behind f, which another process created, and takes f over.
func FromFile(f *os.File) (*Memory, error) {
	info, err := f.Stat()
	if err == nil && (!info.Mode().IsRegular() || info.Size() == 0) {
		err = fmt.Errorf("%v of %d bytes is no shared region", info.Mode(), info.Size())
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("shared memory: %w", err)
	}
	return mapped(f, uint64(info.Size()))
}

func mapped(f *os.File, bytes uint64) (*Memory, error) {
	b, err := mapFile(f, int(bytes))
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("map shared memory of %d bytes: %w", bytes, err)
	}
	return &Memory{file: f, bytes: b}, nil
}

// Bytes returns the whole region. It starts at a page boundary and never moves.
func (m *Memory) Bytes() []byte { return m.bytes }

// File is what another process maps, for handing on to a child. Do not close it.
func (m *Memory) File() *os.File { return m.file }

// Discard gives the pages inside [off, off+n) back to the system, for every process; they read as zero afterwards.
// Partial pages at both ends are zeroed but stay. Outside Linux it does nothing.
func (m *Memory) Discard(off, n uint64) error {
	if off > uint64(len(m.bytes)) || n > uint64(len(m.bytes))-off {
		return fmt.Errorf("discard %d bytes at %d: region has %d", n, off, len(m.bytes))
	}
	if n == 0 {
		return nil
	}
	m.huge.splitUp(off, n)
	return m.discard(int64(off), int64(n))
}

// Close unmaps the region and drops this process's hold on it.
func (m *Memory) Close() error {
	if m.file == nil {
		return nil
	}
	var err error
	if m.bytes != nil {
		err = unmap(m.bytes)
	}
	if cerr := m.file.Close(); err == nil {
		err = cerr
	}
	m.file = nil
	return err
}
