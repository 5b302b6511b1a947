package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"github.com/bigmoe/bigmoe/engine/expert"
	"github.com/bigmoe/bigmoe/engine/model"
	"github.com/bigmoe/bigmoe/engine/vfs"
	"github.com/bigmoe/bigmoe/sdk/fault"
)

const (
	loadChunkBytes = 4 << 20 // one read of dense weights
	loadReaders    = 3       // each holds a chunk; more do not make a drive faster at this size
	loadRetries    = 4
)

// loadDense copies the resident weights into the region: offsets[i] is where weight i goes. Reads are direct where
// that works, so that a model does not push everything else out of the page cache on its way in.
func loadDense(ctx context.Context, cfg *Config, m *model.Model, region []byte, offsets []uint64, progress func(done, total int64)) error {
	type job struct {
		rng    model.Range
		from   int64 // within the range
		target []byte
	}
	var jobs []job
	var total int64
	for i := range m.Weights {
		w := &m.Weights[i]
		if !w.Resident() {
			continue
		}
		at := offsets[i]
		for _, rng := range w.Ranges {
			for from := int64(0); from < rng.Bytes; from += loadChunkBytes {
				n := min(loadChunkBytes, rng.Bytes-from)
				jobs = append(jobs, job{rng, from, region[at : at+uint64(n)]})
				at += uint64(n)
				total += n
			}
		}
	}
	files, err := openShards(cfg.FS, m, cfg.IO)
	if err != nil {
		return err
	}
	defer files.close()

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next, done atomic.Int64
	var wg sync.WaitGroup
	landed := make(chan struct{}, 1)
	for range loadReaders {
		wg.Go(func() {
			buf := vfs.AlignedBuffer(loadChunkBytes + 2*vfs.Align)
			for ctx.Err() == nil {
				i := next.Add(1) - 1
				if i >= int64(len(jobs)) {
					return
				}
				j := &jobs[i]
				if err := files.read(j.rng.Shard, j.rng.Offset+j.from, j.target, buf); err != nil {
					cancel(fmt.Errorf("tensor %q: %w", j.rng.Tensor, err))
					return
				}
				done.Add(int64(len(j.target)))
				select {
				case landed <- struct{}{}:
				default:
				}
			}
		})
	}
	finished := make(chan struct{})
	go func() { wg.Wait(); close(finished) }()
	for {
		select {
		case <-landed:
			progress(done.Load(), total)
		case <-finished:
			if err := context.Cause(ctx); err != nil {
				return err
			}
			progress(total, total)
			return nil
		}
	}
}

// shards are the files of a model, open for reading weights.
type shards struct {
	paths []string
	files []vfs.File
}

func openShards(fs vfs.FS, m *model.Model, mode expert.IOMode) (*shards, error) {
	s := &shards{}
	for _, path := range m.Files() {
		buffered, err := fs.Open(path, vfs.Buffered)
		if err != nil {
			s.close()
			return nil, err
		}
		f := buffered
		if mode != expert.BufferedOnly {
			if direct, err := fs.Open(path, vfs.Direct); err == nil {
				if vfs.Probe(direct, buffered) == nil {
					f = direct
					buffered.Close()
				} else {
					direct.Close()
				}
			}
		}
		s.paths, s.files = append(s.paths, path), append(s.files, f)
	}
	return s, nil
}

func (s *shards) close() {
	for _, f := range s.files {
		f.Close()
	}
}

// read fills dst from offset off of a shard. buf is room for the aligned window around it.
func (s *shards) read(shard int, off int64, dst, buf []byte) error {
	f := s.files[shard]
	if f.Mode() == vfs.Buffered {
		return s.fill(shard, off, dst, len(dst))
	}
	from := off &^ (vfs.Align - 1)
	skip := int(off - from)
	window := (skip + len(dst) + vfs.Align - 1) &^ (vfs.Align - 1)
	if err := s.fill(shard, from, buf[:window], skip+len(dst)); err != nil {
		return err
	}
	copy(dst, buf[skip:])
	return nil
}

// fill reads until the first want bytes of p are there. The rest of a direct window may lie past the end of the file.
func (s *shards) fill(shard int, off int64, p []byte, want int) error {
	f := s.files[shard]
	step := 1
	if f.Mode() == vfs.Direct {
		step = vfs.Align // a short direct read goes on at the block it stopped in
	}
	got, failures := 0, 0
	for got < want {
		n, err := f.Pread(p[got:], off+int64(got))
		if n > 0 {
			got += n
			if got < want {
				got -= got % step
			}
		}
		switch {
		case got >= want:
		case errors.Is(err, io.EOF) || (err == nil && n == 0):
			return fault.Corruptf("%s: ends at %d, expected %d bytes at %d: the file has changed", s.paths[shard], off+int64(got), want, off)
		case err != nil && vfs.Interrupted(err):
		case err != nil:
			if failures++; failures > loadRetries {
				return fmt.Errorf("%s: read %d bytes at %d: %w", s.paths[shard], want, off, err)
			}
		}
	}
	return nil
}

// readRows reads the rows of every by-row weight for a batch of tokens, for [compute.Batch.Rows].
func (e *Engine) readRows(tokens []int32) ([][]byte, error) {
	e.rows = e.rows[:0]
	n := 0
	for i := range e.Model.Weights {
		w := &e.Model.Weights[i]
		if w.Resident() {
			continue
		}
		if len(e.rowBytes) <= n {
			e.rowBytes = append(e.rowBytes, nil)
		}
		size := len(tokens) * int(w.RowBytes)
		if cap(e.rowBytes[n]) < size {
			e.rowBytes[n] = make([]byte, size)
		}
		buf := e.rowBytes[n][:size]
		rng := w.Ranges[0]
		for t, id := range tokens {
			if int64(id) >= w.Rows {
				return nil, fault.Userf("token id %d: tensor %q has %d rows", id, rng.Tensor, w.Rows)
			}
			row := buf[int64(t)*w.RowBytes : int64(t+1)*w.RowBytes]
			if err := e.rowFiles.fill(rng.Shard, rng.Offset+int64(id)*w.RowBytes, row, len(row)); err != nil {
				return nil, fmt.Errorf("tensor %q: row %d: %w", rng.Tensor, id, err)
			}
		}
		e.rows = append(e.rows, buf)
		n++
	}
	return e.rows, nil
}
