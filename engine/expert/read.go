package expert

import (
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/bigmoe/bigmoe/engine/vfs"
	"github.com/bigmoe/bigmoe/sdk/fault"
)

// none ends a queue.
const none = -1

// queue is a list of slots with parts to start, linked through the slots, so that taking one out costs nothing.
type queue struct{ head, tail int32 }

func (s *Store) enqueue(n int32) {
	sl := &s.slots[n]
	q := &s.queues[sl.prio]
	sl.queued, sl.prev, sl.next = true, q.tail, none
	if q.tail == none {
		q.head = n
	} else {
		s.slots[q.tail].next = n
	}
	q.tail = n
}

func (s *Store) unqueue(n int32) {
	sl := &s.slots[n]
	q := &s.queues[sl.prio]
	if sl.prev == none {
		q.head = sl.next
	} else {
		s.slots[sl.prev].next = sl.next
	}
	if sl.next == none {
		q.tail = sl.prev
	} else {
		s.slots[sl.next].prev = sl.prev
	}
	sl.queued = false
}

// wakeReaders wakes as many readers as there may be new parts for.
func (s *Store) wakeReaders(parts int) {
	for range min(parts, s.cfg.Readers) {
		s.work.Signal()
	}
}

// reader reads parts until the store closes.
func (s *Store) reader() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		n := s.next()
		if n == none {
			if s.closed {
				return
			}
			s.work.Wait()
			continue
		}
		s.readNext(n)
	}
}

// next returns the slot whose part is to be read next.
func (s *Store) next() int32 {
	for p := len(s.queues) - 1; p >= 0; p-- {
		if n := s.queues[p].head; n != none {
			return n
		}
	}
	return none
}

// readNext reads the next part of slot n. It is called with mu, and lets go of it while it reads.
func (s *Store) readNext(n int32) {
	sl := &s.slots[n]
	bk := &s.banks[sl.bank]
	part := int(sl.started)
	sl.started++
	if sl.started == s.parts(n) {
		s.unqueue(n)
	}
	sl.running++
	s.running++
	s.stats.InFlightPeak = max(s.stats.InFlightPeak, s.running)
	prio, expert := sl.prio, sl.expert
	s.ledger.Hold(sl.key)
	base, _ := s.slotRange(n)
	s.mu.Unlock()

	r := read{
		src:    &s.files[bk.Parts[part].at(expert).File],
		off:    bk.Parts[part].at(expert).Offset,
		bytes:  bk.Parts[part].Bytes,
		region: s.cfg.Arena[base+bk.partOff[part]:][:regionBytes(bk.Parts[part].Bytes)],
	}
	start := time.Now()
	err := r.run()
	took := time.Since(start)
	word := &s.cfg.Ready[n]
	if err == nil {
		// Before the lock, so that whoever waits goes on at once. The hold keeps the slot ours.
		atomic.OrUint32(word, 1<<part)
		s.wake(word)
	} else {
		err = readError(bk, part, expert, &r, err)
	}

	s.mu.Lock()
	s.running--
	sl.running--
	s.stats.Reads++
	s.stats.ReadTime += took
	s.stats.SyscallBytes += r.gotBytes
	s.stats.Retries += r.calls - 1
	if r.fellBack {
		s.stats.Fallbacks++
	}
	if err == nil {
		sl.landed++
		s.stats.ReadBytes[prio] += r.bytes
	} else {
		s.fail(n, err)
	}
	s.unhold(n)
	s.landed.Broadcast()
	if err != nil {
		s.mu.Unlock()
		s.wake(word)
		s.mu.Lock()
	}
}

func readError(bk *bank, part int, expert int32, r *read, err error) error {
	const text = "layer %d: expert %d, part %d (tensor %s): read %s at offset %d: got %d of %d bytes: %w"
	name := bk.Parts[part].Name
	if errors.Is(err, io.EOF) {
		return fault.Corruptf(text, bk.Layer, expert, part, name, r.src.name, r.off, r.payload(), r.bytes,
			fmt.Errorf("file has become shorter since it was opened: %w", io.ErrUnexpectedEOF))
	}
	return fmt.Errorf(text, bk.Layer, expert, part, name, r.src.name, r.off, r.payload(), r.bytes, err)
}

// Limits of patience. Each bounds a loop that a broken disk or file system could otherwise keep going for ever.
const (
	diskTries    = 3   // reads that fail with a disk error, before giving up
	barrenTries  = 4   // reads in a row that bring nothing new: short ones that end where the last one did
	signalTries  = 256 // reads in a row that a signal interrupts
	firstBackoff = time.Millisecond
)

var errBarren = errors.New("reads bring nothing new")

// read is the reading of one part into its place.
type read struct {
	src    *source
	off    int64 // of the payload in the file
	bytes  int64 // of payload
	region []byte

	direct   bool
	got      int64 // bytes from the start of the window that are there
	calls    int64
	gotBytes int64 // sum of what the calls returned
	fellBack bool
}

// window returns the file offset and the memory of what has to be read: the payload itself, or the whole blocks
// around it. Either way the payload ends up at the same address.
func (r *read) window() (off int64, mem []byte, need int64) {
	remainder := r.off % vfs.Align
	if !r.direct {
		return r.off, r.region[remainder:][:r.bytes], r.bytes
	}
	need = remainder + r.bytes
	return r.off - remainder, r.region[:alignUp(need)], need
}

// payload is the number of payload bytes that are there.
func (r *read) payload() int64 {
	if r.direct {
		return max(0, r.got-r.off%vfs.Align)
	}
	return r.got
}

// run reads until the payload is complete. A window may end beyond the file: what counts is the payload.
func (r *read) run() error {
	file := r.src.direct
	if r.direct = file != nil; !r.direct {
		file = r.src.buffered
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
			from &^= vfs.Align - 1 // a direct read cannot start within a block
		}
		n, err := file.Pread(mem[from:], off+from)
		r.calls++
		r.gotBytes += int64(n)
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
		case vfs.Interrupted(err):
			if signals++; signals == signalTries {
				return err
			}
		case vfs.DiskError(err):
			if disk++; disk == diskTries {
				return err
			}
			time.Sleep(backoff)
			backoff *= 10
		case r.direct && vfs.Refused(err):
			file = r.fallBack()
		default:
			return err
		}
	}
}

// fallBack goes on with buffered reads, keeping what is there.
func (r *read) fallBack() vfs.File {
	r.got = r.payload()
	r.direct, r.fellBack = false, true
	return r.src.buffered
}
