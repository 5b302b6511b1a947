package registry

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/bigmoe/bigmoe/engine"
	"github.com/bigmoe/bigmoe/sdk/fault"
)

// Backend is an entry of [Registry.Backends].
type Backend struct {
	Name   string `json:"name"`
	Origin string `json:"origin"` // BuiltIn or the path of the program
	engine.Backend
}

// Backends returns the built-in backends by name. Others are found by their path only.
func (r *Registry) Backends() []Backend {
	var list []Backend
	for _, name := range slices.Sorted(maps.Keys(r.cfg.Backends)) {
		list = append(list, Backend{name, BuiltIn, r.cfg.Backends[name]})
	}
	return list
}

// FindBackend returns the backend that value means: a built-in one by its name, or the path of a program.
func (r *Registry) FindBackend(value string) (Backend, error) {
	if b, ok := r.cfg.Backends[value]; ok {
		return Backend{value, BuiltIn, b}, nil
	}
	if !IsPath(value) {
		names := slices.Sorted(maps.Keys(r.cfg.Backends))
		return Backend{}, fault.Userf("no backend %q; built in: %s; a program is given by its path, such as ./%s",
			value, strings.Join(names, ", "), value)
	}
	path, err := exec.LookPath(value)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Backend{}, fault.Userf("backend %s: no such file", value)
	case err != nil: // a folder, or not executable
		return Backend{}, fault.Userf("backend %s: %w", value, errors.Unwrap(err))
	}
	if path, err = filepath.Abs(path); err != nil {
		return Backend{}, err
	}
	if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() {
		return Backend{}, fault.Userf("backend %s: not a program", value)
	}
	return Backend{filepath.Base(path), path, engine.Backend{Path: path}}, nil
}
