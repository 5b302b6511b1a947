package registry

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/bigmoe/bigmoe/engine"
	"github.com/bigmoe/bigmoe/registry/artifact"
	"github.com/bigmoe/bigmoe/registry/store"
	"github.com/bigmoe/bigmoe/sdk/fault"
)

// BuiltIn is the origin of what is part of the program.
const BuiltIn = "built in"

// Config says where to look.
type Config struct {
	RecipeDirs []string // folders, the first has precedence

	BuiltIn []string                                   // names of the built-in recipes
	Lookup  func(name string) (module []byte, ok bool) // the module of a built-in recipe; nil = none

	Store *store.Store // what was installed; nil = nothing

	// Backends are the built-in backends by name.
	Backends map[string]engine.Backend
}

// Registry is a set of places where recipes and backends come from.
type Registry struct {
	cfg   Config
	added map[string]string // by name: the path of a module that was named itself
}

var _ engine.Recipes = (*Registry)(nil)

// New returns a registry. Nothing is read yet.
func New(cfg Config) *Registry {
	if cfg.Store == nil {
		cfg.Store = store.New("")
	}
	return &Registry{cfg: cfg, added: map[string]string{}}
}

// Recipe is an entry of [Registry.Recipes].
type Recipe struct {
	Name   string `json:"name"`
	Origin string `json:"origin"` // BuiltIn, the path of the module, or the reference it was installed from
	Bytes  int    `json:"bytes"`
	SHA256 string `json:"sha256"`
	Err    error  `json:"-"` // why it cannot be used
}

// IsPath reports whether a value given for a recipe or backend means a file and not a name.
func IsPath(value string) bool {
	return strings.ContainsRune(value, filepath.Separator) || strings.HasPrefix(value, ".") || strings.HasSuffix(value, ".wasm")
}

// Add takes in the module at path, before all others, and returns the name that finds it: the file name without
// .wasm.
func (r *Registry) Add(path string) (name string, err error) {
	name = strings.TrimSuffix(filepath.Base(path), ".wasm")
	if !artifact.ValidName(name) {
		return "", fault.Userf("recipe %s: %q cannot be the name of a recipe", path, name)
	}
	if _, err := artifact.ReadFile(artifact.Recipe, path); err != nil {
		return "", fmt.Errorf("recipe %s: %w", path, err)
	}
	r.added[name] = path
	return name, nil
}

// Find returns the recipe called name. When there is none, the error ([fault.Unsupported]) says which exist.
func (r *Registry) Find(name string) (engine.Recipe, error) {
	module, _, err := r.read(name)
	if errors.Is(err, fs.ErrNotExist) {
		names, err := r.names()
		if err != nil {
			return engine.Recipe{}, err
		}
		there := "there are none"
		if len(names) > 0 {
			there = "there are: " + strings.Join(names, ", ")
		}
		return engine.Recipe{}, fault.Unsupportedf("no recipe %s; %s; others are added (bigmoe recipe add) or written (bigmoe recipe new)", shorten(name), there)
	}
	if err != nil {
		return engine.Recipe{}, fmt.Errorf("recipe %q: %w", name, err)
	}
	return engine.Recipe{Name: name, Module: module}, nil
}

// Recipes returns what [Registry.Find] can find, by name, also what cannot be used: its Err says why.
func (r *Registry) Recipes() ([]Recipe, error) {
	names, err := r.names()
	if err != nil {
		return nil, err
	}
	list := make([]Recipe, 0, len(names))
	for _, name := range names {
		module, origin, err := r.read(name)
		switch {
		case errors.Is(err, fs.ErrNotExist): // removed meanwhile
		case err != nil:
			list = append(list, Recipe{Name: name, Origin: origin, Err: err})
		default:
			sum := sha256.Sum256(module)
			list = append(list, Recipe{Name: name, Origin: origin, Bytes: len(module), SHA256: hex.EncodeToString(sum[:])})
		}
	}
	return list, nil
}

// read returns the module called name from the first place that has it, or an error that is fs.ErrNotExist.
func (r *Registry) read(name string) (module []byte, origin string, err error) {
	if path, ok := r.added[name]; ok {
		module, err := artifact.ReadFile(artifact.Recipe, path)
		return module, path, err
	}
	if !artifact.ValidName(name) {
		return nil, "", fs.ErrNotExist
	}
	for _, dir := range r.cfg.RecipeDirs {
		path := filepath.Join(dir, name, name+".wasm")
		if module, err := artifact.ReadFile(artifact.Recipe, path); !errors.Is(err, fs.ErrNotExist) {
			return module, path, err
		}
	}
	if r.cfg.Lookup != nil {
		if module, ok := r.cfg.Lookup(name); ok {
			return module, BuiltIn, nil
		}
	}
	module, entry, err := r.cfg.Store.Module(name)
	return module, entry.Source, err
}

// names returns the names in all places, sorted.
func (r *Registry) names() ([]string, error) {
	names := slices.AppendSeq(slices.Clone(r.cfg.BuiltIn), maps.Keys(r.added))
	for _, dir := range r.cfg.RecipeDirs {
		found, err := namesIn(dir)
		if err != nil {
			return nil, fault.As(fault.User, fmt.Errorf("recipe folder %s: %w", dir, err))
		}
		names = append(names, found...)
	}
	stored, err := r.cfg.Store.Entries(artifact.Recipe)
	if err != nil {
		return nil, err
	}
	names = slices.AppendSeq(names, maps.Keys(stored))
	slices.Sort(names)
	return slices.Compact(names), nil
}

func namesIn(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		name := e.Name()
		if !artifact.ValidName(name) {
			continue
		}
		if info, err := os.Stat(filepath.Join(dir, name, name+".wasm")); err == nil && info.Mode().IsRegular() {
			names = append(names, name)
		}
	}
	return names, nil
}

// shorten quotes a name that may come from a model file.
func shorten(name string) string {
	const most = 64
	if len(name) > most {
		return fmt.Sprintf("%q…", name[:most])
	}
	return fmt.Sprintf("%q", name)
}
