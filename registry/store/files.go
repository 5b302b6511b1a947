package store

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/bigmoe/bigmoe/registry/artifact"
	"github.com/bigmoe/bigmoe/sdk/fault"
)

// files is the folder of a store whose turn it is to change. Paths that links lead out of the folder are refused by
// os.Root.
type files struct{ artifact.Folder }

// temporary is the beginning of names of files that are being written.
const temporary = ".new-"

// write replaces a file by one with the given content, at once.
func (f files) write(name string, content []byte, mode fs.FileMode) error {
	if err := f.replace(name, content, mode); err != nil {
		return fault.As(fault.User, fmt.Errorf("store %s: %w", f.Root.Name(), err))
	}
	return nil
}

func (f files) replace(name string, content []byte, mode fs.FileMode) error {
	if err := f.Root.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}
	next := path.Join(path.Dir(name), temporary+rand.Text())
	file, err := f.Root.OpenFile(next, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	if err == nil {
		err = file.Sync()
	}
	err = errors.Join(err, file.Close())
	if err == nil {
		err = f.Root.Rename(next, name)
	}
	if err != nil {
		_ = f.Root.Remove(next)
	}
	return err
}

// sweep removes what no entry needs. Nobody else writes, so temporary files are what an interrupted process left.
func (f files) sweep(l *lock) error {
	needed, err := f.needed(l)
	if err != nil {
		return nil // what a damaged entry needs is not known: better to keep too much
	}
	return f.each(func(name string) error {
		if needed[name] {
			return nil
		}
		if err := f.Root.RemoveAll(name); err != nil {
			return err
		}
		_ = f.Root.Remove(path.Dir(name)) // if nothing else is in it
		return nil
	})
}

// needed returns the paths of all content that entries refer to.
func (f files) needed(l *lock) (map[string]bool, error) {
	paths := map[string]bool{}
	for _, kind := range []artifact.Kind{artifact.Recipe, artifact.Backend} {
		for name, e := range l.entries(kind) {
			a, err := open(f.Folder, kind, e)
			if err != nil {
				return nil, err
			}
			for _, b := range a.Documents {
				paths[artifact.BlobPath(b.Descriptor.Digest)] = true
			}
			paths[location(kind, name, a.File.Digest)] = true
		}
	}
	return paths, nil
}

// each calls do for everything that is kept as content, whatever it is.
func (f files) each(do func(name string) error) error {
	dirs := []string{path.Join(ocispec.ImageBlobsDir, string(digest.SHA256))}
	tops, err := f.list(programs)
	if err != nil {
		return err
	}
	for _, top := range tops {
		if top.IsDir() {
			dirs = append(dirs, path.Join(programs, top.Name()))
		} else if err := do(path.Join(programs, top.Name())); err != nil {
			return err
		}
	}
	for _, dir := range dirs {
		entries, err := f.list(dir)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if err := do(path.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// list returns what is in a folder, nothing if there is none.
func (f files) list(dir string) ([]fs.DirEntry, error) {
	entries, err := fs.ReadDir(f.Root.FS(), dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return entries, err
}
