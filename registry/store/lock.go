package store

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/opencontainers/go-digest"

	"github.com/bigmoe/bigmoe/registry/artifact"
	"github.com/bigmoe/bigmoe/registry/cosign"
	"github.com/bigmoe/bigmoe/sdk/fault"
)

// LockFile is the name of the lock file in the folder of a store.
const LockFile = "lock.json"

const (
	lockVersion  = 1
	maxLockBytes = 4 << 20
)

// Entry is what the lock file says of a recipe or backend.
type Entry struct {
	Source    string            `json:"source"` // where it came from, for people and for updates
	Digest    digest.Digest     `json:"digest"` // of the artifact: a manifest or index
	Key       *cosign.Key       `json:"key,omitempty"`
	Signature *cosign.Signature `json:"signature,omitempty"` // by the key, of the digest
}

// check refuses an entry that must not be used.
func (e Entry) check() error {
	switch {
	case e.Key == nil && e.Signature == nil:
		return nil
	case e.Key == nil || e.Signature == nil:
		return fault.Corruptf("a key without a signature, or a signature without a key")
	}
	return e.Key.Verify(e.Digest.String(), *e.Signature)
}

// lock is the content of the lock file.
type lock struct {
	Version  int              `json:"version"`
	Recipes  map[string]Entry `json:"recipes"`
	Backends map[string]Entry `json:"backends"`
}

func (l *lock) entries(kind artifact.Kind) map[string]Entry {
	if kind == artifact.Backend {
		return l.Backends
	}
	return l.Recipes
}

// readLock reads the lock file of a folder; none is an empty one.
func readLock(dir string) (*lock, error) {
	path := filepath.Join(dir, LockFile)
	text, err := readLockText(path)
	if errors.Is(err, fs.ErrNotExist) || dir == "" {
		return &lock{lockVersion, map[string]Entry{}, map[string]Entry{}}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("lock file: %w", fault.As(fault.User, err))
	}
	l, err := parseLock(text)
	if err != nil {
		return nil, fmt.Errorf("lock file %s: %w", path, err)
	}
	return l, nil
}

func readLockText(path string) ([]byte, error) {
	if dir, err := os.Stat(filepath.Dir(path)); err == nil && !dir.IsDir() {
		return nil, fault.Userf("%s is not a folder", filepath.Dir(path))
	}
	info, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxLockBytes {
		return nil, fault.Corruptf("%s: %v of %d bytes, expected a regular file of at most %d", path, info.Mode(), info.Size(), maxLockBytes)
	}
	return os.ReadFile(path)
}

func parseLock(text []byte) (*lock, error) {
	var version struct{ Version int }
	if err := json.Unmarshal(text, &version); err != nil {
		return nil, fault.Corruptf("%w", err)
	}
	if version.Version > lockVersion {
		return nil, fault.Unsupportedf("version %d: this program knows version %d; a newer one wrote it", version.Version, lockVersion)
	}
	if version.Version != lockVersion {
		return nil, fault.Corruptf("version %d, expected %d", version.Version, lockVersion)
	}
	l := &lock{}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(l); err != nil {
		return nil, fault.Corruptf("%w", err) // of whatever kind: nobody asked for the key in it
	}
	if l.Recipes == nil {
		l.Recipes = map[string]Entry{}
	}
	if l.Backends == nil {
		l.Backends = map[string]Entry{}
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, fault.Corruptf("text after the end")
	}
	for _, entries := range []map[string]Entry{l.Recipes, l.Backends} {
		for _, name := range slices.Sorted(maps.Keys(entries)) {
			if !artifact.ValidName(name) {
				return nil, fault.Corruptf("%q cannot be a name", name)
			}
			if err := artifact.CheckDigest(entries[name].Digest); err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	return l, nil
}

// text is the same for the same content: names are sorted.
func (l *lock) text() ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	err := enc.Encode(l)
	return b.Bytes(), err
}
