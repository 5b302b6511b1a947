package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/bigmoe/bigmoe/engine/expert"
	"github.com/bigmoe/bigmoe/engine/model"
	"github.com/bigmoe/bigmoe/engine/vfs"
	"github.com/bigmoe/bigmoe/sdk/compute/memory"
	"github.com/bigmoe/bigmoe/sdk/fault"
)

const (
	loadChunkBytes = 1 << 20 // one read of dense weights: about a part of an expert
	// trialBytes is what is read with each depth that is tried, a few tenths of a second; trialGain is how much faster a deeper queue
	// must be to be worth it: what is in flight delays what is wanted next.
	trialBytes = 128 << 20
	trialGain  = 1.05

	maxLoadReaders = 2 * DefaultReaders // each holds a chunk
)

// trialDepths are the numbers of reads in flight that are tried. Fewer were never faster (docs/experiments/queue-depth.md).
var trialDepths = []int{DefaultReaders, maxLoadReaders}

// loader copies the resident weights into the region. Reads are direct where that works, so that a model does not push everything
// else out of the page cache on its way in.
type loader struct {
	files    sources
	memory   *memory.Memory
	jobs     []loadJob
	progress func(done, total int64)
	trial    int64 // bytes read with each depth that is tried

	done, total int64
}

type loadJob struct {
	rng   model.Range
	from  int64 // within the range
	at    uint64
	bytes int64
}

// newLoader prepares to load the weights of m: offsets[i] is where in mem weight i goes.
func newLoader(cfg *Config, m *model.Model, mem *memory.Memory, offsets []uint64, progress func(done, total int64)) (*loader, error) {
	l := &loader{memory: mem, progress: progress, trial: trialBytes}
	for i := range m.Weights {
		w := &m.Weights[i]
		if !w.Resident() {
			continue
		}
		at := offsets[i]
		for _, rng := range w.Ranges {
			for from := int64(0); from < rng.Bytes; from += loadChunkBytes {
				n := min(loadChunkBytes, rng.Bytes-from)
				l.jobs = append(l.jobs, loadJob{rng, from, at, n})
				at += uint64(n)
				l.total += n
			}
		}
	}
	slices.SortFunc(l.jobs, func(a, b loadJob) int { // one sweep over the file
		return cmp.Or(cmp.Compare(a.rng.Shard, b.rng.Shard), cmp.Compare(a.rng.Offset+a.from, b.rng.Offset+b.from))
	})
	var err error
	l.files, err = openSources(cfg.FS, m, cfg.IO != expert.BufferedOnly)
	return l, err
}

// load loads everything with the given number of reads in flight. If that is 0, it finds out which number suits the drive, and
// returns it, or 0 when there is too little to read to tell.
func (l *loader) load(ctx context.Context, readers int) (depth int, err error) {
	defer l.files.close()
	if readers == 0 && l.total >= int64(len(trialDepths)+1)*l.trial {
		if depth, err = l.try(ctx); err != nil {
			return 0, err
		}
	}
	return depth, l.run(ctx, cmp.Or(readers, depth, DefaultReaders), l.total)
}

// try reads a stretch with each of the trial depths and returns the one to use.
func (l *loader) try(ctx context.Context) (depth int, err error) {
	var best float64
	for _, d := range trialDepths {
		start, was := time.Now(), l.done
		if err := l.run(ctx, d, was+l.trial); err != nil {
			return 0, err
		}
		if rate := float64(l.done-was) / time.Since(start).Seconds(); rate > trialGain*best {
			depth, best = d, rate
		}
	}
	return depth, nil
}

// run goes on loading, with the given number of reads in flight, until about upTo bytes are there.
func (l *loader) run(ctx context.Context, readers int, upTo int64) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	left := upTo - l.done // of what the readers may claim
	var mu sync.Mutex
	claim := func() *loadJob {
		mu.Lock()
		defer mu.Unlock()
		if left <= 0 || len(l.jobs) == 0 || ctx.Err() != nil {
			return nil
		}
		j := &l.jobs[0]
		l.jobs = l.jobs[1:]
		left -= j.bytes
		return j
	}
	var wg sync.WaitGroup
	landed := make(chan int64, maxLoadReaders)
	for range min(readers, maxLoadReaders) {
		wg.Go(func() {
			buf := vfs.AlignedBuffer(int(vfs.RegionBytes(loadChunkBytes)))
			for j := claim(); j != nil; j = claim() {
				if err := l.read(j, buf); err != nil {
					cancel(err)
					return
				}
				landed <- j.bytes
			}
		})
	}
	go func() { wg.Wait(); close(landed) }()
	for n := range landed {
		l.done += n
		l.progress(l.done, l.total)
	}
	return context.Cause(ctx)
}

func (l *loader) read(j *loadJob, buf []byte) error {
	src, off := l.files[j.rng.Shard], j.rng.Offset+j.from
	if _, err := src.Read(off, j.bytes, buf); err != nil {
		return readError(j.rng, src, off, err)
	}
	l.memory.Back(j.at, uint64(j.bytes))
	copy(l.memory.Bytes()[j.at:][:j.bytes], buf[off%vfs.Align:])
	return nil
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

// readRows reads the rows of every by-row weight for a batch of tokens, for [compute.Batch.Rows]. They are valid until the next call.
func (e *Engine) readRows(ctx context.Context, tokens []int32) ([][]byte, error) {
	r := e.rows
	r.tokens = append(r.tokens[:0], tokens...)
	r.ask <- struct{}{}
	err, ok := await(ctx, r.done)
	if !ok {
		close(r.ask)
		e.startRowReader()
		return nil, ctx.Err()
	}
	return r.rows, err
}

func (e *Engine) startRowReader() {
	r := &rowReader{model: e.Model, files: e.rowFiles, ask: make(chan struct{}), done: make(chan error, 1)}
	e.rows = r
	e.readers.Go(func() {
		for range r.ask {
			r.done <- r.read()
		}
	})
}

// rowReader reads rows of by-row weights in a goroutine of its own: a read can hang, and is left alone then with all that it uses.
type rowReader struct {
	model *model.Model
	files sources
	ask   chan struct{} // closed when nobody asks any more
	done  chan error    // has room, so that nobody need wait

	// The goroutine's between ask and done.
	tokens []int32
	rows   [][]byte
	bytes  [][]byte // what rows are parts of
}

// read fills rows for tokens.
func (r *rowReader) read() error {
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
		size := len(r.tokens) * int(w.RowBytes)
		if cap(r.bytes[n]) < size {
			r.bytes[n] = make([]byte, size)
		}
		buf := r.bytes[n][:size]
		rng := w.Ranges[0]
		for t, id := range r.tokens {
			if int64(id) >= w.Rows {
				return fault.Userf("token id %d: tensor %q has %d rows", id, rng.Tensor, w.Rows)
			}
			row := buf[int64(t)*w.RowBytes : int64(t+1)*w.RowBytes]
			src, off := r.files[rng.Shard], rng.Offset+int64(id)*w.RowBytes
			if err := src.ReadBuffered(row, off); err != nil {
				return readError(rng, src, off, err)
			}
		}
		r.rows = append(r.rows, buf)
		n++
	}
	return nil
}
