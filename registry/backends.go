package registry

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/bigmoe/bigmoe/engine"
	"github.com/bigmoe/bigmoe/registry/artifact"
	"github.com/bigmoe/bigmoe/sdk/fault"
)

// Backend is an entry of [Registry.Backends].
type Backend struct {
	Name   string `json:"name"`
	Origin string `json:"origin"` // BuiltIn, the path of the program, or the reference it was installed from
	engine.Backend
	Err error `json:"-"` // why it cannot be started, when that is known beforehand
}

// Backends returns the built-in backends and those of the store, by name, also those that cannot be used: their Err says why.
func (r *Registry) Backends() ([]Backend, error) {
	names, err := r.backendNames()
	if err != nil {
		return nil, err
	}
	list := make([]Backend, 0, len(names))
	for _, name := range names {
		b, err := r.FindBackend(name)
		b.Name, b.Err = name, err
		list = append(list, b)
	}
	return list, nil
}

func (r *Registry) backendNames() ([]string, error) {
	stored, err := r.cfg.Store.Entries(artifact.Backend)
	if err != nil {
		return nil, err
	}
	names := slices.AppendSeq(slices.Collect(maps.Keys(r.cfg.Backends)), maps.Keys(stored))
	slices.Sort(names)
	return slices.Compact(names), nil
}

// FindBackend returns the backend that value means: by its name one that is built in, else one of the store, whose program
// is then checked at each start; or the path of a program.
func (r *Registry) FindBackend(value string) (Backend, error) {
	if b, ok := r.cfg.Backends[value]; ok {
		return Backend{Name: value, Origin: BuiltIn, Backend: b}, nil
	}
	path, sum, entry, err := r.cfg.Store.Program(value)
	switch {
	case err == nil:
		return Backend{Name: value, Origin: entry.Source, Backend: engine.Backend{Path: path, SHA256: sum}}, nil
	case !errors.Is(err, fs.ErrNotExist):
		return Backend{}, fmt.Errorf("backend %s: %w", value, err)
	}
	return r.program(value)
}

// program returns the backend whose program is at a path.
func (r *Registry) program(value string) (Backend, error) {
	if !IsPath(value) {
		names, err := r.backendNames()
		if err != nil {
			return Backend{}, err
		}
		return Backend{}, fault.Userf("no backend %q; there are: %s; a program is given by its path, such as ./%s",
			value, strings.Join(names, ", "), value)
	}
	path, err := filepath.Abs(value)
	if err != nil {
		return Backend{}, err
	}
	switch path, err = exec.LookPath(path); {
	case errors.Is(err, fs.ErrNotExist):
		return Backend{}, fault.Userf("backend %s: no such file", value)
	case err != nil: // a folder, or not executable
		return Backend{}, fault.Userf("backend %s: %w", value, errors.Unwrap(err))
	}
	if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() {
		return Backend{}, fault.Userf("backend %s: not a program", value)
	}
	return Backend{Name: filepath.Base(path), Origin: path, Backend: engine.Backend{Path: path}}, nil
}
