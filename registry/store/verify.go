package store

import (
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
		found := Finding{Name: name, Entry: entries[name]}
		if found.Err = found.Entry.check(); found.Err == nil {
			found.Err = damaged(s.within(func(f artifact.Folder) error {
				a, err := open(f, kind, found.Entry)
				if err != nil {
					return err
				}
				found.Bytes = a.File.Size
				_, err = readFile(f, kind, name, a)
				return err
			}))
		}
		list = append(list, found)
	}
	return list, nil
}
