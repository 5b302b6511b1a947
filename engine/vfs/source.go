package vfs

import (
	"errors"
	"time"
)

// Limits of patience. Each bounds a loop that a broken disk or file system could otherwise keep going for ever.
const (
	diskTries    = 3 // reads that fail with a disk error, before giving up
	barrenTries  = 4 // reads in a row that bring nothing new: short ones that end where the last one did
	firstBackoff = time.Millisecond

	// SignalTries is how many reads in a row a signal may interrupt before that counts as a failure.
	SignalTries = 256
)

var errBarren = errors.New("reads bring nothing new")

// Source is a file open for reading ranges: directly where that works, through the page cache elsewhere. Safe for
// concurrent use.
type Source struct {
	name     string
	direct   File // nil: read buffered
	buffered File // also the way out when a direct read is refused
}

// OpenSource opens a file, and tries direct reads if they are wanted. When they are not to be had, refusal says why, and
// the source reads buffered.
func OpenSource(fs FS, name string, direct bool) (s *Source, refusal, err error) {
	s = &Source{name: name}
	if s.buffered, err = fs.Open(name, Buffered); err != nil {
		return nil, nil, err
	}
	if direct {
		s.direct, refusal = openDirect(fs, name, s.buffered)
	}
	return s, refusal, nil
}

// openDirect opens a file for direct reads and makes sure that they give what buffered reads give.
func openDirect(fs FS, name string, buffered File) (File, error) {
	direct, err := fs.Open(name, Direct)
	if err != nil {
		return nil, err
	}
	if err := Probe(direct, buffered); err != nil {
		return nil, errors.Join(err, direct.Close())
	}
	return direct, nil
}

// Name is the path the source was opened by.
func (s *Source) Name() string { return s.name }

// Mode is how the source reads.
func (s *Source) Mode() Mode {
	if s.direct != nil {
		return Direct
	}
	return Buffered
}

// Size is the length of the file when it was opened.
func (s *Source) Size() int64 { return s.buffered.Size() }

// Close releases the file, after the last Read has returned.
func (s *Source) Close() error {
	err := s.buffered.Close()
	if s.direct != nil {
		err = errors.Join(err, s.direct.Close())
	}
	return err
}

// RegionBytes is the memory that [Source.Read] needs for a range of that many bytes: its whole blocks, and one more because it
// may begin anywhere in a block.
func RegionBytes(bytes int64) int64 { return alignUp(bytes) + Align }

func alignUp(n int64) int64 { return (n + Align - 1) &^ (Align - 1) }

// Tally is what one Read took.
type Tally struct {
	Got      int64 // bytes of the range that are there; all of them unless it failed
	Calls    int64 // system calls
	Bytes    int64 // sum of what the calls returned, whole blocks and repeated ones included
	FellBack bool  // a direct read was refused and a buffered one gave the bytes
}

// Read reads the range of bytes at off into region, which has RegionBytes(bytes) bytes and begins at a multiple of [Align]. The range
// ends up at region[off % Align:], in either mode and without a copy. Interrupted and short reads go on, disk errors are tried
// again a few times; a file that has become too short gives io.EOF.
func (s *Source) Read(off, bytes int64, region []byte) (Tally, error) {
	r := read{src: s, direct: s.direct != nil, off: off, bytes: bytes, region: region, at: off % Align}
	err := r.run()
	r.tally.Got = r.payload()
	return r.tally, err
}

// read is the reading of one range into its place.
type read struct {
	src    *Source
	off    int64
	bytes  int64
	region []byte
	at     int64 // where in region the range begins; direct reads need off % Align

	direct bool
	got    int64 // bytes from the start of the window that are there
	tally  Tally
}

// window returns the file offset and the memory of what has to be read: the range itself, or the whole blocks around it.
// Either way the range ends up at the same address.
func (r *read) window() (off int64, mem []byte, need int64) {
	if !r.direct {
		return r.off, r.region[r.at:][:r.bytes], r.bytes
	}
	need = r.at + r.bytes
	return r.off - r.at, r.region[:alignUp(need)], need
}

// payload is the number of bytes of the range that are there.
func (r *read) payload() int64 {
	got := r.got
	if r.direct {
		got -= r.at
	}
	return min(max(got, 0), r.bytes)
}

// run reads until the range is complete. A window may end beyond the file: what counts is the range.
func (r *read) run() error {
	file := r.src.buffered
	if r.direct {
		file = r.src.direct
	}
	backoff := firstBackoff
	var disk, barren, signals int
	for {
		off, mem, need := r.window()
		if r.got >= need {
			return nil
		}
		from := r.got
		if r.direct {
			from &^= Align - 1 // a direct read cannot start within a block
		}
		n, err := file.Pread(mem[from:], off+from)
		r.tally.Calls++
		r.tally.Bytes += int64(n)
		if from+int64(n) > r.got {
			r.got = from + int64(n)
			barren, signals = 0, 0
			if err == nil || r.got >= need {
				continue
			}
		}
		switch {
		case err == nil:
			// A direct read that ends within a block starts at that block again. If it keeps ending there (the file has
			// become shorter, or its system is odd), a buffered read can tell.
			if barren++; barren < barrenTries {
				continue
			}
			if !r.direct {
				return errBarren
			}
			barren = 0
			file = r.fallBack()
		case Interrupted(err):
			if signals++; signals == SignalTries {
				return err
			}
		case DiskError(err):
			if disk++; disk == diskTries {
				return err
			}
			time.Sleep(backoff)
			backoff *= 10
		case r.direct && Refused(err):
			file = r.fallBack()
		default:
			return err
		}
	}
}

// fallBack goes on with buffered reads, keeping what is there.
func (r *read) fallBack() File {
	r.got = r.payload()
	r.direct, r.tally.FellBack = false, true
	return r.src.buffered
}

// ReadBuffered fills p from offset off through the page cache, with the patience of Read: for ranges much smaller than a block.
func (s *Source) ReadBuffered(p []byte, off int64) error {
	r := read{src: s, off: off, bytes: int64(len(p)), region: p}
	return r.run()
}
