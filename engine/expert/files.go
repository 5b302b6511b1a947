package expert

import (
	"errors"
	"fmt"

	"github.com/bigmoe/bigmoe/engine/vfs"
	"github.com/bigmoe/bigmoe/sdk/fault"
)

// source is an open model file.
type source struct {
	name     string
	direct   vfs.File // nil: read buffered
	buffered vfs.File // also the way out when a direct read is refused
}

// openFiles opens every file, and finds out which mode each of them achieves.
func (s *Store) openFiles() error {
	directs := 0
	for _, name := range s.cfg.Files {
		buffered, err := s.cfg.FS.Open(name, vfs.Buffered)
		if err != nil {
			return fmt.Errorf("expert store: %w", err)
		}
		s.files = append(s.files, source{name: name, buffered: buffered})
		src := &s.files[len(s.files)-1]
		if s.cfg.Mode == BufferedOnly {
			s.modeReason = "buffered reads were asked for"
			continue
		}
		src.direct, err = openDirect(s.cfg.FS, name, buffered)
		if err != nil && s.cfg.Mode == DirectOnly {
			return fault.Unsupportedf("%s cannot be read around the page cache: %w", name, err)
		}
		if err != nil {
			s.modeReason = fmt.Sprintf("%s: %v", name, err)
			continue
		}
		directs++
	}
	switch {
	case directs == len(s.files):
		s.mode = "direct"
	case directs == 0:
		s.mode = "buffered"
	default:
		s.mode = "mixed"
	}
	return nil
}

// openDirect opens a file for direct reads and makes sure that they give what buffered reads give.
func openDirect(fs vfs.FS, name string, buffered vfs.File) (vfs.File, error) {
	direct, err := fs.Open(name, vfs.Direct)
	if err != nil {
		return nil, err
	}
	if err := vfs.Probe(direct, buffered); err != nil {
		return nil, errors.Join(err, direct.Close())
	}
	return direct, nil
}

// checkRanges makes sure that every expert lies within its file.
func (s *Store) checkRanges() error {
	for i := range s.banks {
		bk := &s.banks[i]
		for p := range bk.Parts {
			for e := range int32(bk.Experts) {
				at := bk.Parts[p].at(e)
				if at.File < 0 || at.File >= len(s.files) {
					return fault.Bugf("tensor %s: file %d of %d", bk.Parts[p].Name, at.File, len(s.files))
				}
				src := &s.files[at.File]
				if size := src.buffered.Size(); at.Offset < 0 || at.Offset > size-bk.Parts[p].Bytes {
					return fault.Corruptf("%s: tensor %s: layer %d, expert %d at offset %d, %d bytes: file has %d bytes",
						src.name, bk.Parts[p].Name, bk.Layer, e, at.Offset, bk.Parts[p].Bytes, size)
				}
			}
		}
	}
	return nil
}

func (s *Store) closeFiles() error {
	var errs []error
	for _, f := range s.files {
		errs = append(errs, f.buffered.Close())
		if f.direct != nil {
			errs = append(errs, f.direct.Close())
		}
	}
	return errors.Join(errs...)
}
