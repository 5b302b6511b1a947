package store

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"time"

	"github.com/gofrs/flock"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/bigmoe/bigmoe/registry/artifact"
	"github.com/bigmoe/bigmoe/sdk/fault"
)

// Store is a folder of recipes and backends.
type Store struct{ dir string }

// New returns the store in a folder. Nothing is read yet, and nothing made. Without a folder, "", the store is empty.
func New(dir string) *Store { return &Store{dir} }

// Platform is what programs are chosen by on this machine.
const Platform = runtime.GOOS + "/" + runtime.GOARCH

// Entries returns what the lock file says, by name.
func (s *Store) Entries(kind artifact.Kind) (map[string]Entry, error) {
	l, err := readLock(s.dir)
	if err != nil {
		return nil, err
	}
	return l.entries(kind), nil
}

// Module returns the module of a recipe, or an error that is [fs.ErrNotExist] if the lock file does not have the name.
func (s *Store) Module(name string) ([]byte, Entry, error) {
	e, err := s.entry(artifact.Recipe, name)
	if err != nil {
		return nil, e, err
	}
	var module []byte
	err = s.within(func(f artifact.Folder) error {
		a, err := open(f, artifact.Recipe, e)
		if err == nil {
			module, err = readFile(f, artifact.Recipe, name, a)
		}
		return err
	})
	return module, e, damaged(err)
}

// Program returns the path of a backend's program, which has the right content now, and the SHA-256 that it must have
// whenever it is started. The error is [fs.ErrNotExist] if the lock file does not have the name.
func (s *Store) Program(name string) (file string, sum []byte, e Entry, err error) {
	if e, err = s.entry(artifact.Backend, name); err != nil {
		return "", nil, e, err
	}
	err = s.within(func(f artifact.Folder) error {
		a, err := open(f, artifact.Backend, e)
		if err != nil {
			return err
		}
		if _, err := readFile(f, artifact.Backend, name, a); err != nil {
			return err
		}
		file = filepath.Join(s.dir, filepath.FromSlash(location(artifact.Backend, name, a.File.Digest)))
		sum, err = hex.DecodeString(a.File.Digest.Encoded())
		return err
	})
	return file, sum, e, damaged(err)
}

func (s *Store) entry(kind artifact.Kind, name string) (Entry, error) {
	entries, err := s.Entries(kind)
	if err != nil {
		return Entry{}, err
	}
	e, ok := entries[name]
	if !ok {
		return e, fs.ErrNotExist
	}
	if err := e.check(); err != nil {
		return e, fmt.Errorf("lock file %s: %s: %w", filepath.Join(s.dir, LockFile), name, err)
	}
	return e, nil
}

// within opens the folder for as long as do takes.
func (s *Store) within(do func(artifact.Folder) error) error {
	root, err := os.OpenRoot(s.dir)
	if err != nil {
		return fault.As(fault.User, err)
	}
	defer root.Close()
	return do(artifact.Folder{Root: root})
}

// open reads the documents of an entry.
func open(f artifact.Folder, kind artifact.Kind, e Entry) (*artifact.Artifact, error) {
	root, err := f.Describe(e.Digest)
	if err != nil {
		return nil, err
	}
	return artifact.Open(context.Background(), f, root, kind, Platform)
}

// damaged is an error about content that the lock file promises. It does not wrap what is missing: the name is there.
func damaged(err error) error {
	switch {
	case err == nil:
		return nil
	case fault.KindOf(err) == fault.Unsupported:
		return fmt.Errorf("the store is damaged: %w; adding it again repairs that", err)
	}
	return fault.Corruptf("the store is damaged: %v; adding it again repairs that", err)
}

// readFile reads the module or program of an artifact.
func readFile(f artifact.Folder, kind artifact.Kind, name string, a *artifact.Artifact) ([]byte, error) {
	return artifact.Read(context.Background(), fileAt{f, location(kind, name, a.File.Digest)}, a.File, kind.MaxBytes())
}

// fileAt is a folder of one blob, wherever that is.
type fileAt struct {
	artifact.Folder
	name string
}

func (f fileAt) Fetch(context.Context, ocispec.Descriptor) (io.ReadCloser, error) {
	return f.Open(f.name)
}

// location returns where the module or program of an artifact is kept.
func location(kind artifact.Kind, name string, d digest.Digest) string {
	if kind != artifact.Backend {
		return artifact.BlobPath(d)
	}
	if runtime.GOOS == "windows" {
		name += ".exe"
	}
	return path.Join(programs, d.Encoded(), name)
}

const programs = "programs"

// Replace says whether next may take the place of e: with another digest only if update is set, and never without the
// key that e has.
func (e Entry) Replace(kind artifact.Kind, name string, next Entry, update bool) error {
	if e.Digest != next.Digest && !update {
		return fault.Userf("%s %s is pinned to %s, from %s; this is %s: --update takes it", kind, name, e.Digest, e.Source, next.Digest)
	}
	if e.Key != nil && (next.Key == nil || !e.Key.Equal(next.Key)) {
		return fault.Userf("%s %s is pinned to key %s: remove it first to take it without", kind, name, e.Key.Fingerprint())
	}
	return nil
}

// Put adds an entry with its documents and its file, or replaces one if update is set. Without that, an entry of the
// same name must have the same digest; its content is then written again if it was damaged.
func (s *Store) Put(ctx context.Context, kind artifact.Kind, name string, e Entry, a *artifact.Artifact, file []byte, update bool) error {
	if !artifact.ValidName(name) {
		return fault.Bugf("name %q", name)
	}
	if err := e.check(); err != nil {
		return err
	}
	return s.change(ctx, true, func(f files, l *lock) error {
		entries := l.entries(kind)
		if old, ok := entries[name]; ok {
			if err := old.Replace(kind, name, e, update); err != nil {
				return err
			}
		}
		for _, b := range a.Documents {
			if err := f.write(artifact.BlobPath(b.Descriptor.Digest), b.Bytes, 0o444); err != nil {
				return err
			}
		}
		mode := fs.FileMode(0o444)
		if kind == artifact.Backend {
			mode = 0o555
		}
		if err := f.write(location(kind, name, a.File.Digest), file, mode); err != nil {
			return err
		}
		entries[name] = e
		return nil
	})
}

// Remove removes an entry, and the content that no other one needs.
func (s *Store) Remove(ctx context.Context, kind artifact.Kind, name string) error {
	if _, err := s.entry(kind, name); errors.Is(err, fs.ErrNotExist) { // also when there is no folder
		return fault.Userf("no %s %q in the store %s", kind, name, s.dir)
	} else if err != nil {
		return err
	}
	return s.change(ctx, false, func(_ files, l *lock) error {
		delete(l.entries(kind), name)
		return nil
	})
}

// turnFile is locked by the process whose turn it is.
const turnFile = ".turn"

// create makes the folder. It does not take one that is about something else, in which it would sweep later.
func (s *Store) create() error {
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		return err
	}
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Name() == LockFile || e.Name() == turnFile { // the latter is the first thing in a store
			return nil
		}
	}
	if len(entries) > 0 {
		return fault.Userf("the folder %s has no %s and is not empty: it is not a store", s.dir, LockFile)
	}
	return nil
}

// change changes the lock file while no other process does, and then sweeps.
func (s *Store) change(ctx context.Context, create bool, do func(files, *lock) error) error {
	if s.dir == "" {
		return fault.Userf("there is no folder for the store: say which")
	}
	if create {
		if err := s.create(); err != nil {
			return fault.As(fault.User, fmt.Errorf("store: %w", err))
		}
	}
	turn := flock.New(filepath.Join(s.dir, turnFile))
	defer turn.Close()
	if _, err := turn.TryLockContext(ctx, 20*time.Millisecond); err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("waiting for another process that changes the store %s: %w", s.dir, context.Cause(ctx))
		}
		return fault.As(fault.User, fmt.Errorf("store: %w", err))
	}
	l, err := readLock(s.dir)
	if err != nil {
		return err
	}
	return s.within(func(folder artifact.Folder) error {
		f := files{folder}
		if err := do(f, l); err != nil {
			return err
		}
		text, err := l.text()
		if err != nil {
			return err
		}
		if err := f.write(LockFile, text, 0o644); err != nil {
			return err
		}
		return f.sweep(l)
	})
}
