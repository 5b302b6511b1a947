package memory

import (
	"fmt"
	"math"

	mmap "github.com/edsrzf/mmap-go"
)

// Resize changes the size of the region and maps it anew: slices of Bytes made before are invalid from now on. A
// process that mapped the region before keeps its own mapping, so resize before handing it out. Bytes that stay keep
// their content.
func (m *Memory) Resize(bytes uint64) error {
	if bytes == 0 || bytes > math.MaxInt {
		return fmt.Errorf("shared memory of %d bytes: impossible size", bytes)
	}
	if err := m.file.Truncate(int64(bytes)); err != nil {
		return fmt.Errorf("shared memory of %d bytes: %w", bytes, err)
	}
	if err := m.bytes.Unmap(); err != nil {
		return fmt.Errorf("unmap shared memory: %w", err)
	}
	b, err := mmap.MapRegion(m.file, int(bytes), mmap.RDWR, 0, 0)
	if err != nil {
		return fmt.Errorf("map shared memory of %d bytes: %w", bytes, err)
	}
	m.bytes = b
	return nil
}
