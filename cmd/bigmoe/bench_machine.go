package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bigmoe/bigmoe/cmd/bigmoe/internal/bench"
	"github.com/bigmoe/bigmoe/engine"
	"github.com/bigmoe/bigmoe/engine/budget"
	"github.com/bigmoe/bigmoe/engine/vfs"
)

// machine describes where we run.
func machine() bench.Machine {
	m := bench.Machine{CPU: cmp.Or(cpuModel(), runtime.GOARCH), Cores: runtime.NumCPU(), System: cmp.Or(kernelRelease(), runtime.GOOS)}
	if limit, err := budget.Machine(); err == nil {
		m.MemoryBytes = limit.Ceiling()
	}
	return m
}

// What probeMemory reads, far more than any cache of the processor has, and how often. The best round counts: others had company.
const (
	probeMemoryBytes  = 256 << 20
	probeMemoryRounds = 5
)

// probeMemory measures how fast threads read memory together, each its own part, one after the other.
func probeMemory(threads int) *bench.Memory {
	words := make([]uint64, probeMemoryBytes/8)
	for i := range words { // pages that nobody has written are all the same one
		words[i] = uint64(i)
	}
	m := &bench.Memory{Threads: threads}
	part := len(words) / threads
	sums := make([]uint64, threads)
	for range probeMemoryRounds {
		var readers sync.WaitGroup
		start := time.Now()
		for t := range threads {
			readers.Go(func() { sums[t] += sum(words[t*part : (t+1)*part]) })
		}
		readers.Wait()
		m.BytesPerSecond = max(m.BytesPerSecond, float64(part*threads*8)/time.Since(start).Seconds())
	}
	return m
}

// sum adds up words, eight at a time, so that loads and not additions are what takes time.
func sum(words []uint64) uint64 {
	var a, b, c, d uint64
	for ; len(words) >= 8; words = words[8:] {
		a += words[0] + words[4]
		b += words[1] + words[5]
		c += words[2] + words[6]
		d += words[3] + words[7]
	}
	for _, w := range words {
		a += w
	}
	return a + b + c + d
}

// A probe of the drive ends after probeTime or probeBytes, whichever is first: short, but thousands of blocks on a fast drive.
const (
	probeTime  = time.Second
	probeBytes = 4 << 30
)

// probeDrive measures how fast blocks of about blockBytes at random places of the files can be read with depth reads in
// flight, around the page cache where that works. No block is read twice.
func probeDrive(ctx context.Context, names []string, blockBytes int64, depth int) (_ *bench.Drive, err error) {
	type place struct {
		file   *vfs.Source
		offset int64
	}
	block := (blockBytes + vfs.Align - 1) &^ (vfs.Align - 1)
	d := &bench.Drive{BlockBytes: block, Depth: cmp.Or(depth, engine.DefaultReaders), IO: vfs.Direct.String()}
	var places []place
	for _, name := range names {
		if err := dropPageCache(name); err != nil {
			return nil, err
		}
		f, _, err := vfs.OpenSource(vfs.OS(), name, true)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, f.Close()) }()
		if f.Mode() != vfs.Direct {
			d.IO = f.Mode().String()
		}
		for off := int64(0); off+block <= f.Size(); off += block {
			places = append(places, place{f, off})
		}
	}
	rand.Shuffle(len(places), func(i, j int) { places[i], places[j] = places[j], places[i] })

	var next, bytes atomic.Int64
	var readers sync.WaitGroup
	errs := make([]error, d.Depth)
	start := time.Now()
	for r := range d.Depth {
		readers.Go(func() {
			region := vfs.AlignedBuffer(int(vfs.RegionBytes(block)))
			for bytes.Load() < probeBytes && time.Since(start) < probeTime && ctx.Err() == nil {
				i := next.Add(1) - 1
				if i >= int64(len(places)) {
					return
				}
				p := places[i]
				tally, err := p.file.Read(p.offset, block, region)
				if err != nil {
					errs[r] = fmt.Errorf("%s: probing the drive: read of %d bytes at %d: %w", p.file.Name(), block, p.offset, err)
					return
				}
				bytes.Add(tally.Got)
			}
		})
	}
	readers.Wait()
	d.BytesPerSecond = float64(bytes.Load()) / time.Since(start).Seconds()
	return d, errors.Join(append(errs, context.Cause(ctx))...)
}
