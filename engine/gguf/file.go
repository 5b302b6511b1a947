package gguf

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/edsrzf/mmap-go"

	"github.com/bigmoe/bigmoe/sdk/dtype"
	"github.com/bigmoe/bigmoe/sdk/fault"
)

// maxShards bounds the files that one model may consist of. The largest sets in use have below 100.
const maxShards = 1024

// File is an open model: its metadata and where its tensors lie, over all shards.
type File struct {
	path     string
	head     *header // of the first shard, which carries the metadata
	shards   []Shard
	tensors  []Tensor
	index    map[string]int
	warnings []string
}

// Shard is one of the files of a model.
type Shard struct {
	Path string // as found: beside the path given to [Open], or beside what that links to
	Size int64  // bytes, when it was opened
	file *os.File
}

// ReadAt reads from the shard as io.ReaderAt says, through the page cache. It may be called concurrently.
func (s Shard) ReadAt(p []byte, offsetBytes int64) (int, error) { return s.file.ReadAt(p, offsetBytes) }

// Tensor says what one tensor is and where its bytes are.
type Tensor struct {
	Name   string
	Type   dtype.Type
	Dims   []uint64 // 1 to 4 sizes, at least 1 each; Dims[0] varies fastest: it is the row length
	Shard  int      // index into [File.Shards]
	Offset int64    // of the first byte, counted from the start of the shard
	Bytes  int64    // size; the rows follow each other without padding
}

// Dim returns the size of dimension i, 1 beyond those that the file states.
func (t Tensor) Dim(i int) uint64 {
	if i < len(t.Dims) {
		return t.Dims[i]
	}
	return 1
}

// Path returns the path that was given to [Open].
func (f *File) Path() string { return f.path }

// Version returns the format version of the first shard, 2 or 3.
func (f *File) Version() int { return int(f.head.version) }

// Shards returns the files of the model in their order, to be read only.
func (f *File) Shards() []Shard { return f.shards }

// Tensors returns all tensors, by shard and then in file order, to be read only.
func (f *File) Tensors() []Tensor { return f.tensors }

// Tensor returns the tensor called name.
func (f *File) Tensor(name string) (Tensor, bool) {
	i, ok := f.index[name]
	if !ok {
		return Tensor{}, false
	}
	return f.tensors[i], true
}

// Get returns the metadata value of key and whether the file has it. The getters of a value that is missing fail with
// [ErrMissing] and name the key, so a required key needs no test of the second result.
func (f *File) Get(key string) (Value, bool) {
	v, ok := f.head.get(key)
	v.path = f.path
	return v, ok
}

// Keys returns the metadata keys in file order.
func (f *File) Keys() []string {
	keys := make([]string, len(f.head.values))
	for i, v := range f.head.values {
		keys[i] = v.key
	}
	return keys
}

// Warnings returns what is odd about the file and yet no reason to refuse it, one sentence each.
func (f *File) Warnings() []string { return f.warnings }

// Close closes all shards. Reads fail afterwards, those of long arrays of metadata too; the rest of the metadata and the
// tensor table stay valid.
func (f *File) Close() error {
	var errs []error
	for _, s := range f.shards {
		if s.file != nil { // nil when Open fails halfway
			errs = append(errs, s.file.Close())
		}
	}
	return errors.Join(errs...)
}

// Open opens the model that path belongs to: a file of its own, or any shard of a split model, whose other shards are
// looked for beside path and, where path is a symbolic link, beside the file it leads to. No file name is ever taken
// from a file's contents.
//
// Errors start with path, name the shard if it is another one, and are classified: fault.Corrupt for what contradicts
// the format, fault.Unsupported for versions and tensor types that are not supported, fault.User for files that are
// not there.
func Open(path string) (*File, error) {
	f := &File{path: path}
	if err := f.open(); err != nil {
		f.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return f, nil
}

func (f *File) open() error {
	mem := budget(decodedBytes)
	given, head, err := openShard(f.path, &mem)
	if err != nil {
		return err
	}
	f.shards = []Shard{given}
	number, count, err := head.split()
	if err != nil {
		return err
	}
	names, err := nameShards(f.path, number, count)
	if err != nil {
		return err
	}
	heads := make([]*header, count)
	f.shards = make([]Shard, count)
	f.shards[number], heads[number] = given, head
	for i := range count {
		if i == number {
			continue
		}
		path, err := names.find(i)
		if err != nil {
			return err
		}
		if f.shards[i], heads[i], err = openShard(path, &mem); err == nil {
			err = heads[i].checkSplit(i, count)
		}
		if err != nil {
			return fmt.Errorf("shard %s: %w", path, err)
		}
	}
	f.head = heads[0]
	return f.assemble(heads)
}

// openShard opens one file and parses its header.
func openShard(path string, mem *budget) (Shard, *header, error) {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Shard{}, nil, fault.Userf("no such file")
	case err != nil:
		return Shard{}, nil, fault.As(fault.User, err)
	case !info.Mode().IsRegular(): // opening a pipe would wait for its other end
		return Shard{}, nil, fault.Userf("not a regular file")
	}
	file, err := os.Open(path)
	if err != nil {
		return Shard{}, nil, fault.As(fault.User, err)
	}
	h, err := readHeader(file, mem)
	if err != nil {
		file.Close()
		return Shard{}, nil, err
	}
	return Shard{Path: path, Size: int64(h.sizeBytes), file: file}, h, nil
}

// readHeader parses the start of file through a mapping that is gone on return. Only the pages of the header are
// touched, so a mapping of the whole file costs address space and nothing else.
func readHeader(file *os.File, mem *budget) (h *header, err error) {
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	switch size := info.Size(); {
	case size == 0: // cannot be mapped
		return parse(nil, file, mem)
	case size > math.MaxInt:
		return nil, fault.Unsupportedf("file of %d bytes is too large for the address space", size)
	}
	data, err := mmap.Map(file, mmap.RDONLY, 0)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes: %w", info.Size(), err)
	}
	defer func() { err = errors.Join(err, data.Unmap()) }()
	err = guardFaults(func() error {
		h, err = parse(data, file, mem)
		return err
	})
	return h, err
}

// guardFaults turns the fault of touching a mapping whose file became shorter meanwhile, or whose disk fails, from a
// signal that kills the process into an error.
func guardFaults(touch func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		r := recover()
		if r == nil {
			return
		}
		fail, ok := r.(runtime.Error)
		if _, isFault := r.(interface{ Addr() uintptr }); !ok || !isFault {
			panic(r)
		}
		err = fault.Corruptf("file became shorter, or cannot be read, while its header was being parsed: %w", fail)
	}()
	return touch()
}

// split returns the index of the file in its model and the number of files (specs/gguf.md 3.2).
func (h *header) split() (number, count int, err error) {
	v, ok := h.get("split.count")
	if !ok {
		return 0, 1, nil
	}
	n, err := v.Uint()
	if err != nil {
		return 0, 0, err
	}
	if n <= 1 {
		return 0, 1, nil
	}
	if n > maxShards {
		return 0, 0, fault.Unsupportedf("split.count is %d: at most %d shards are supported", n, maxShards)
	}
	v, _ = h.get("split.no")
	i, err := v.Uint()
	if err != nil {
		return 0, 0, err
	}
	if i >= n {
		return 0, 0, fault.Corruptf("split.no is %d, expected below split.count %d", i, n)
	}
	return int(i), int(n), nil
}

// checkSplit makes sure that the file is the shard it was opened as.
func (h *header) checkSplit(number, count int) error {
	i, n, err := h.split()
	switch {
	case err != nil:
		return err
	case n != count:
		return fault.Corruptf("it belongs to another set: split.count is %d, expected %d", n, count)
	case i != number:
		return fault.Corruptf("it is another shard: split.no is %d, expected %d", i, number)
	}
	return nil
}

var shardName = regexp.MustCompile(`^(.*)-(\d{5,})-of-(\d{5,})\.gguf$`)

// naming finds the files of a split model: every entry is a directory and prefix to try.
type naming struct {
	prefixes []string
	count    int
}

// nameShards derives the names of all shards from path, which is that of shard number (specs/gguf.md 3.1, 3.3).
func nameShards(path string, number, count int) (naming, error) {
	names := naming{count: count}
	want := fmt.Sprintf("-%05d-of-%05d.gguf", number+1, count)
	if count == 1 {
		if m := shardName.FindStringSubmatch(filepath.Base(path)); m != nil && m[3] != "00001" {
			return names, fault.Corruptf("its name says shard %s of %s, but split.count says that it is not split", m[2], m[3])
		}
		return names, nil
	}
	paths := []string{path}
	if resolved, err := filepath.EvalSymlinks(path); err == nil && resolved != path {
		paths = append(paths, resolved)
	}
	for _, p := range paths {
		if m := shardName.FindStringSubmatch(filepath.Base(p)); m != nil && strings.HasSuffix(p, want) {
			names.prefixes = append(names.prefixes, filepath.Join(filepath.Dir(p), m[1]))
		}
	}
	if len(names.prefixes) == 0 {
		return names, fault.Corruptf("it is shard %d of %d (split.no %d, split.count %d), so its name must end in %s: shards must be neither renamed nor joined", number+1, count, number, count, want)
	}
	return names, nil
}

// find returns the path of shard number.
func (n naming) find(number int) (string, error) {
	suffix := fmt.Sprintf("-%05d-of-%05d.gguf", number+1, n.count)
	for _, prefix := range n.prefixes {
		if _, err := os.Stat(prefix + suffix); err == nil {
			return prefix + suffix, nil
		}
	}
	return "", fault.Userf("shard %d of %d is missing: %s", number+1, n.count, n.prefixes[0]+suffix)
}

// assemble joins the headers of all shards into one table of tensors.
func (f *File) assemble(heads []*header) error {
	total := 0
	for _, h := range heads {
		total += len(h.tensors)
	}
	first, err := heads[0].alignment(defaultAlignment)
	if err != nil {
		return err
	}
	f.tensors = make([]Tensor, 0, total)
	f.index = make(map[string]int, total)
	for i, h := range heads {
		err := f.add(i, h, first)
		if err != nil && f.shards[i].Path != f.path {
			err = fmt.Errorf("shard %s: %w", f.shards[i].Path, err)
		}
		if err != nil {
			return err
		}
	}
	if v, ok := f.head.get("split.tensors.count"); ok && len(heads) > 1 {
		want, err := v.Uint()
		if err != nil {
			return err
		}
		if want != uint64(total) {
			return fault.Corruptf("split.tensors.count is %d, but the %d shards hold %d tensors", want, len(heads), total)
		}
	}
	if v, ok := f.head.get("general.quantization_version"); ok {
		if n, err := v.Uint(); err == nil && n != 2 {
			f.warnings = append(f.warnings, fmt.Sprintf("general.quantization_version is %d: block layouts of version 2 are assumed", n))
		}
	}
	return nil
}

// place decides where the data of a shard starts and ends, and looks at what follows (checks 10, 17, 18, 20, 21).
func (f *File) place(shard Shard, h *header, firstAlignment uint64) (start uint64, err error) {
	alignment, err := h.alignment(defaultAlignment)
	if err != nil {
		return 0, err
	}
	start, end, err := h.layout(alignment)
	if _, own := h.get("general.alignment"); !own && firstAlignment != alignment && (err != nil || end != h.sizeBytes) {
		// Later shards do not repeat the key, and some writers apply it all the same. Most such files are also legal
		// with the default, but with the data in the wrong place: what tells is whether bytes are left over.
		if start2, end2, err2 := h.layout(firstAlignment); err2 == nil && end2 == h.sizeBytes {
			alignment, start, end, err = firstAlignment, start2, end2, nil
		}
	}
	if err != nil {
		return 0, err
	}
	// Without tensors nothing says whether the header was padded.
	for _, at := range []uint64{end, roundUp(end, alignment)} {
		magic := make([]byte, 4)
		if n, _ := shard.ReadAt(magic, int64(at)); bytes.Equal(magic[:n], []byte("GGUF")) {
			return 0, fault.Corruptf("a second header starts at offset %d, after the last tensor: shards must not be concatenated", at)
		}
	}
	if extra := h.sizeBytes - end; extra > alignment {
		f.warnings = append(f.warnings, fmt.Sprintf("%s: %d unknown bytes follow the last tensor", shard.Path, extra))
	}
	return start, nil
}

// add appends the tensors of shard i to the table (check 19).
func (f *File) add(i int, h *header, firstAlignment uint64) error {
	start, err := f.place(f.shards[i], h, firstAlignment)
	if err != nil {
		return err
	}
	for _, t := range h.tensors {
		t.Shard = i
		t.Offset += int64(start)
		if k, dup := f.index[t.Name]; dup {
			other := f.tensors[k].Shard
			if other == i {
				return fault.Corruptf("duplicate tensor %s", quote(t.Name))
			}
			return fault.Corruptf("duplicate tensor %s: shard %s has it too", quote(t.Name), f.shards[other].Path)
		}
		f.index[t.Name] = len(f.tensors)
		f.tensors = append(f.tensors, t)
	}
	h.tensors = nil
	return nil
}
