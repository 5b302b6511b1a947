// Package errfs makes a file system fail on purpose.
//
//	fs := errfs.Wrap(vfs.OS())
//	fs.Set(errfs.Times(1, errfs.Fail(unix.EIO))) // the next read fails, the one after works
//
// A [Hook] sees every read before it happens and answers with the [Fault] it should suffer; the zero Fault is none.
// Hooks combine: [Times], [DirectOnly], [Each]. The package is safe for concurrent use; a hook that keeps state has to
// be, too (those here are).
package errfs

import (
	"io"
	"sync/atomic"
	"time"

	"github.com/bigmoe/bigmoe/engine/vfs"
)

// Read describes one read that is about to happen.
type Read struct {
	Name   string
	Off    int64
	Len    int
	Direct bool
	Seq    int64 // number of this read over the whole file system, from 0
}

// Fault is what happens to a read.
type Fault struct {
	Delay time.Duration // sleep first
	Block <-chan struct{}
	Err   error // return this and read nothing
	Max   int   // if not 0: read at most so many bytes
}

// Hook chooses the fault of a read.
type Hook func(Read) Fault

// FS injects faults into the reads of another file system.
type FS struct {
	base  vfs.FS
	hook  atomic.Pointer[Hook]
	open  atomic.Pointer[func(name string, mode vfs.Mode) error]
	reads atomic.Int64
	bytes atomic.Int64
	files atomic.Int64
}

var _ vfs.FS = (*FS)(nil)

// Wrap returns base without any fault yet.
func Wrap(base vfs.FS) *FS { return &FS{base: base} }

// Set replaces the hook; nil stops all faults.
func (f *FS) Set(h Hook) {
	if h == nil {
		f.hook.Store(nil)
		return
	}
	f.hook.Store(&h)
}

// SetOpen makes every later Open fail for which fail returns an error; nil stops that.
func (f *FS) SetOpen(fail func(name string, mode vfs.Mode) error) {
	if fail == nil {
		f.open.Store(nil)
		return
	}
	f.open.Store(&fail)
}

// Reads is the number of reads so far, failed ones included.
func (f *FS) Reads() int64 { return f.reads.Load() }

// Bytes is the number of bytes returned so far.
func (f *FS) Bytes() int64 { return f.bytes.Load() }

// OpenFiles is the number of files open now.
func (f *FS) OpenFiles() int64 { return f.files.Load() }

// Open opens a file of the wrapped file system.
func (f *FS) Open(name string, mode vfs.Mode) (vfs.File, error) {
	if fail := f.open.Load(); fail != nil {
		if err := (*fail)(name, mode); err != nil {
			return nil, err
		}
	}
	base, err := f.base.Open(name, mode)
	if err != nil {
		return nil, err
	}
	f.files.Add(1)
	return &file{File: base, fs: f, name: name}, nil
}

type file struct {
	vfs.File
	fs   *FS
	name string
}

func (f *file) Close() error {
	f.fs.files.Add(-1)
	return f.File.Close()
}

func (f *file) Pread(p []byte, off int64) (int, error) {
	seq := f.fs.reads.Add(1) - 1
	if h := f.fs.hook.Load(); h != nil {
		ft := (*h)(Read{Name: f.name, Off: off, Len: len(p), Direct: f.Mode() == vfs.Direct, Seq: seq})
		if ft.Delay > 0 {
			time.Sleep(ft.Delay)
		}
		if ft.Block != nil {
			<-ft.Block
		}
		if ft.Err != nil {
			return 0, ft.Err
		}
		if ft.Max > 0 && ft.Max < len(p) {
			n, err := f.short(p, off, ft.Max)
			f.fs.bytes.Add(int64(n))
			return n, err
		}
	}
	n, err := f.File.Pread(p, off)
	f.fs.bytes.Add(int64(n))
	return n, err
}

// short reads as the wrapped file can (whole blocks) but hands out only n bytes; the rest of p keeps its content.
func (f *file) short(p []byte, off int64, n int) (int, error) {
	buf := vfs.AlignedBuffer((n + vfs.Align - 1) &^ (vfs.Align - 1))
	got, err := f.File.Pread(buf, off)
	return copy(p, buf[:min(n, got)]), err
}

// Fail fails every read with err.
func Fail(err error) Hook { return func(Read) Fault { return Fault{Err: err} } }

// Short cuts every read to n bytes.
func Short(n int) Hook { return func(Read) Fault { return Fault{Max: n} } }

// Delay makes every read take d longer.
func Delay(d time.Duration) Hook { return func(Read) Fault { return Fault{Delay: d} } }

// Block makes every read wait until gate is closed.
func Block(gate <-chan struct{}) Hook { return func(Read) Fault { return Fault{Block: gate} } }

// Truncate makes files look as if they ended at size, as when another program cut them while we were reading.
func Truncate(size int64) Hook {
	return func(r Read) Fault {
		if r.Off >= size {
			return Fault{Err: io.EOF}
		}
		return Fault{Max: int(min(int64(r.Len), size-r.Off))}
	}
}

// Times applies h to the next n reads only.
func Times(n int64, h Hook) Hook {
	var used atomic.Int64
	return func(r Read) Fault {
		if used.Add(1) > n {
			return Fault{}
		}
		return h(r)
	}
}

// Each applies h to one read in n.
func Each(n int64, h Hook) Hook {
	return func(r Read) Fault {
		if r.Seq%n != 0 {
			return Fault{}
		}
		return h(r)
	}
}

// DirectOnly applies h to direct reads only.
func DirectOnly(h Hook) Hook {
	return func(r Read) Fault {
		if !r.Direct {
			return Fault{}
		}
		return h(r)
	}
}
