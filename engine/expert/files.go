package expert

import (
	"errors"
	"fmt"

	"github.com/bigmoe/bigmoe/engine/vfs"
	"github.com/bigmoe/bigmoe/sdk/fault"
)

// openFiles opens every file, and finds out which mode each of them achieves.
func (s *Store) openFiles() error {
	directs := 0
	for _, name := range s.cfg.Files {
		src, refusal, err := vfs.OpenSource(s.cfg.FS, name, s.cfg.Mode != BufferedOnly)
		if err != nil {
			return fmt.Errorf("expert store: %w", err)
		}
		s.files = append(s.files, src)
		switch {
		case s.cfg.Mode == BufferedOnly:
			s.modeReason = "buffered reads were asked for"
		case refusal == nil:
			directs++
		case s.cfg.Mode == DirectOnly:
			return fault.Unsupportedf("%s cannot be read around the page cache: %w", name, refusal)
		default:
			s.modeReason = fmt.Sprintf("%s: %v", name, refusal)
		}
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
				src := s.files[at.File]
				if size := src.Size(); at.Offset < 0 || at.Offset > size-bk.Parts[p].Bytes {
					return fault.Corruptf("%s: tensor %s: layer %d, expert %d at offset %d, %d bytes: file has %d bytes",
						src.Name(), bk.Parts[p].Name, bk.Layer, e, at.Offset, bk.Parts[p].Bytes, size)
				}
			}
		}
	}
	return nil
}

func (s *Store) closeFiles() error {
	var errs []error
	for _, f := range s.files {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}
