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
	"github.com/bigmoe/bigmoe/sdk/compute/memory"
	"github.com/bigmoe/bigmoe/sdk/fault"
)

const (
	loadChunkBytes = 4 << 20 // one read of dense weights
	loadReaders    = 3       // each holds a chunk; more do not make a drive faster at this size
)

// loadDense copies the resident weights into the region: offsets[i] is where weight i goes. Reads are direct where
// that works, so that a model does not push everything else out of the page cache on its way in.
func loadDense(ctx context.Context, cfg *Config, m *model.Model, mem *memory.Memory, offsets []uint64, progress func(done, total int64)) error {
	type job struct {
		rng   model.Range
		from  int64  // within the range
		at    uint64 // where in the region it goes
		bytes int64
	}
	region := mem.Bytes()
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
				jobs = append(jobs, job{rng, from, at, n})
				at += uint64(n)
				total += n
			}
		}
	}
	files, err := openSources(cfg.FS, m, cfg.IO != expert.BufferedOnly)
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
			buf := vfs.AlignedBuffer(int(vfs.RegionBytes(loadChunkBytes)))
			for ctx.Err() == nil {
				i := next.Add(1) - 1
				if i >= int64(len(jobs)) {
					return
				}
				j := &jobs[i]
				src, off := files[j.rng.Shard], j.rng.Offset+j.from
				if _, err := src.Read(off, j.bytes, buf); err != nil {
					cancel(readError(j.rng, src, off, err))
					return
				}
				mem.Back(j.at, uint64(j.bytes))
				copy(region[j.at:][:j.bytes], buf[off%vfs.Align:])
				done.Add(j.bytes)
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

// openSources opens the shards of a model, in their order.
func openSources(fs vfs.FS, m *model.Model, direct bool) (sources, error) {
	var all sources
	for _, path := range m.Files() {
		src, _, err := vfs.OpenSource(fs, path, direct)
		if err != nil {
			all.close()
			return nil, err
		}
		all = append(all, src)
	}
	return all, nil
}

type sources []*vfs.Source

func (s sources) close() {
	for _, src := range s {
		src.Close()
	}
}

// readError names a range that could not be read.
func readError(rng model.Range, src *vfs.Source, off int64, err error) error {
	if errors.Is(err, io.EOF) {
		return fault.Corruptf("%s: tensor %q at offset %d: file has become shorter since it was opened", src.Name(), rng.Tensor, off)
	}
	return fmt.Errorf("%s: tensor %q at offset %d: %w", src.Name(), rng.Tensor, off, err)
}

// readRows reads the rows of every by-row weight for a batch of tokens, for [compute.Batch.Rows].
func (e *Engine) readRows(ctx context.Context, tokens []int32) ([][]byte, error) {
	r := e.rows
	rows, err := try(ctx, &e.strays, func() ([][]byte, error) { return r.read(tokens) }, func([][]byte, error) {})
	if err != nil && ctx.Err() != nil {
		e.rows = &rowReader{model: r.model, files: r.files} // the buffers are no longer ours
	}
	return rows, err
}

// rowReader reads rows of by-row weights into buffers that it keeps.
type rowReader struct {
	model *model.Model
	files sources
	rows  [][]byte
	bytes [][]byte // what rows are parts of
}

func (r *rowReader) read(tokens []int32) ([][]byte, error) {
	r.rows = r.rows[:0]
	n := 0
	for i := range r.model.Weights {
		w := &r.model.Weights[i]
		if w.Resident() {
			continue
		}
		if len(r.bytes) <= n {
			r.bytes = append(r.bytes, nil)
		}
		size := len(tokens) * int(w.RowBytes)
		if cap(r.bytes[n]) < size {
			r.bytes[n] = make([]byte, size)
		}
		buf := r.bytes[n][:size]
		rng := w.Ranges[0]
		for t, id := range tokens {
			if int64(id) >= w.Rows {
				return nil, fault.Userf("token id %d: tensor %q has %d rows", id, rng.Tensor, w.Rows)
			}
			row := buf[int64(t)*w.RowBytes : int64(t+1)*w.RowBytes]
			src, off := r.files[rng.Shard], rng.Offset+int64(id)*w.RowBytes
			if err := src.ReadBuffered(row, off); err != nil {
				return nil, readError(rng, src, off, err)
			}
		}
		r.rows = append(r.rows, buf)
		n++
	}
	return r.rows, nil
}
