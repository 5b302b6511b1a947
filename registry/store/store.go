package store

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/bigmoe/bigmoe/registry/artifact"
	"github.com/bigmoe/bigmoe/registry/cosign"
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
func (s *Store) Module(name string) (module []byte, e Entry, err error) {
	e, err = s.read(artifact.Recipe, name, func(_ *artifact.Artifact, file []byte) error {
		module = file
		return nil
	})
	return module, e, err
}

// Program returns the path of a backend's program, which has the right content now, and the SHA-256 that it must have
// whenever it is started. The error is [fs.ErrNotExist] if the lock file does not have the name.
func (s *Store) Program(name string) (file string, sum []byte, e Entry, err error) {
	e, err = s.read(artifact.Backend, name, func(a *artifact.Artifact, _ []byte) error {
		file = filepath.Join(s.dir, filepath.FromSlash(location(artifact.Backend, name, a.File.Digest)))
		sum, err = hex.DecodeString(a.File.Digest.Encoded())
		return err
	})
	return file, sum, e, err
}

// read reads all that an entry refers to and passes it to got. Another process may replace the entry meanwhile, and sweep
// away what the old one needed: content is damaged only if it does not fit a lock file that stayed the same.
func (s *Store) read(kind artifact.Kind, name string, got func(a *artifact.Artifact, file []byte) error) (Entry, error) {
	for {
		before, _ := os.Lstat(filepath.Join(s.dir, LockFile))
		e, err := s.entry(kind, name)
		if err != nil {
			return e, err
		}
		err = s.within(func(f artifact.Folder) error {
			a, err := open(f, kind, e)
			if err != nil {
				return err
			}
			file, err := readFile(f, kind, name, a)
			if err != nil {
				return err
			}
			return got(a, file)
		})
		now, _ := os.Lstat(filepath.Join(s.dir, LockFile))
		if err == nil || before != nil && now != nil && os.SameFile(before, now) && before.ModTime().Equal(now.ModTime()) {
			return e, damaged(err)
		}
	}
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

// Replace says whether next may become the entry called name. A name and a source stand for one digest until update is
// set: a tag that moved is refused also if what it stands for now has another name. A key that was asked for goes on to
// be asked for.
func Replace(entries map[string]Entry, kind artifact.Kind, name string, next Entry, update bool) error {
	update = update || entries[name].Digest == next.Digest
	for _, old := range rivals(entries, name, next.Source) {
		e := entries[old]
		if e.Digest != next.Digest && !update {
			return fault.Userf("%s %s is pinned to %s, from %s; this is %s%s: --update takes it", kind, old, e.Digest, e.Source, next.Digest, called(old, name))
		}
		if e.Key != nil && (next.Key == nil || !e.Key.Equal(next.Key)) {
			return fault.Userf("%s %s is pinned to key %s: remove it first to take it without", kind, old, e.Key.Fingerprint())
		}
	}
	return nil
}

// Key returns the key that an entry called name and from source is asked for, nil if for none.
func Key(entries map[string]Entry, name, source string) *cosign.Key {
	for _, old := range rivals(entries, name, source) {
		if key := entries[old].Key; key != nil {
			return key
		}
	}
	return nil
}

// rivals returns the names of the entries that an entry called name and from source must agree with: itself first.
func rivals(entries map[string]Entry, name, source string) (names []string) {
	if _, ok := entries[name]; ok {
		names = append(names, name)
	}
	for _, other := range slices.Sorted(maps.Keys(entries)) {
		if other != name && entries[other].Source == source {
			names = append(names, other)
		}
	}
	return names
}

func called(old, name string) string {
	if old == name {
		return ""
	}
	return ", called " + name
}

// Put adds an entry with its documents and its file, or replaces one, as [Replace] allows. The content of one that is
// there already is written again, which repairs it.
func (s *Store) Put(ctx context.Context, kind artifact.Kind, name string, e Entry, a *artifact.Artifact, file []byte, update bool) error {
	if !artifact.ValidName(name) {
		return fault.Bugf("name %q", name)
	}
	if err := e.check(); err != nil {
		return err
	}
	return s.change(ctx, true, func(f files, l *lock) error {
		entries := l.entries(kind)
		if err := Replace(entries, kind, name, e, update); err != nil {
			return err
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

// Remove removes an entry, also one that must not be used, and the content that no other one needs.
func (s *Store) Remove(ctx context.Context, kind artifact.Kind, name string) error {
	entries, err := s.Entries(kind)
	if err != nil {
		return err
	}
	if _, ok := entries[name]; !ok { // also when there is no folder
		return fault.Userf("no %s %q in the store %s", kind, name, s.dir)
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
		return fault.Userf("there is no folder for the store: --store says which")
	}
	if create {
		if err := s.create(); err != nil {
			return fault.As(fault.User, fmt.Errorf("store: %w", err))
		}
	}
	turn, err := artifact.Turn(ctx, filepath.Join(s.dir, turnFile))
	if err != nil {
		return fmt.Errorf("store: %w", err)
	}
	defer turn.Close()
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
