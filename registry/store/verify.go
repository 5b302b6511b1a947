package store

import (
	"errors"
	"io/fs"
	"maps"
	"slices"

	"github.com/bigmoe/bigmoe/registry/artifact"
)

// Finding is an entry after its content was read.
type Finding struct {
	Name  string
	Entry Entry
	Bytes int64 // of the module or program
	Err   error // what is wrong with it
}

// Verify reads everything that entries of a kind refer to and compares it with their digests, by name.
func (s *Store) Verify(kind artifact.Kind) ([]Finding, error) {
	entries, err := s.Entries(kind)
	if err != nil {
		return nil, err
	}
	var list []Finding
	for _, name := range slices.Sorted(maps.Keys(entries)) {
		found := Finding{Name: name}
		found.Entry, found.Err = s.read(kind, name, func(_ *artifact.Artifact, file []byte) error {
			found.Bytes = int64(len(file))
			return nil
		})
		if errors.Is(found.Err, fs.ErrNotExist) {
			continue // removed meanwhile
		}
		list = append(list, found)
	}
	return list, nil
}
