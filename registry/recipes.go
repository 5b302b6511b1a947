package registry

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/bigmoe/bigmoe/engine"
	"github.com/bigmoe/bigmoe/sdk/fault"
)

// maxModuleBytes bounds what is read as a recipe. Those in Go have 2 MiB.
const maxModuleBytes = 64 << 20

// BuiltIn is the origin of what is part of the program.
const BuiltIn = "built in"

// Config says where to look.
type Config struct {
	RecipeDirs []string // folders, the first has precedence

	BuiltIn []string                                   // names of the built-in recipes
	Lookup  func(name string) (module []byte, ok bool) // the module of a built-in recipe; nil = none

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
func New(cfg Config) *Registry { return &Registry{cfg: cfg, added: map[string]string{}} }

// Recipe is an entry of [Registry.Recipes].
type Recipe struct {
	Name   string `json:"name"`
	Origin string `json:"origin"` // BuiltIn or the path of the module
	Bytes  int    `json:"bytes"`
	SHA256 string `json:"sha256"`
}

// nameRule is what a recipe may be called: it is also what keeps a name from a model file away from the file system.
var nameRule = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$`)

// IsPath reports whether a value given for a recipe or backend means a file and not a name.
func IsPath(value string) bool {
	return strings.ContainsRune(value, filepath.Separator) || strings.HasSuffix(value, ".wasm")
}

// Add takes in the module at path, before all others, and returns the name that finds it: the file name without
// .wasm.
func (r *Registry) Add(path string) (name string, err error) {
	name = strings.TrimSuffix(filepath.Base(path), ".wasm")
	if !nameRule.MatchString(name) {
		return "", fault.Userf("recipe %s: %q cannot be the name of a recipe", path, name)
	}
	if _, err := readModule(os.Open(path)); err != nil {
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
		return engine.Recipe{}, fault.Unsupportedf("no recipe %s; %s", shorten(name), there)
	}
	if err != nil {
		return engine.Recipe{}, fmt.Errorf("recipe %q: %w", name, err)
	}
	return engine.Recipe{Name: name, Module: module}, nil
}

// Recipes returns what [Registry.Find] can find, by name.
func (r *Registry) Recipes() ([]Recipe, error) {
	names, err := r.names()
	if err != nil {
		return nil, err
	}
	list := make([]Recipe, 0, len(names))
	for _, name := range names {
		module, origin, err := r.read(name)
		if err != nil {
			return nil, fmt.Errorf("recipe %q: %w", name, err)
		}
		sum := sha256.Sum256(module)
		list = append(list, Recipe{Name: name, Origin: origin, Bytes: len(module), SHA256: hex.EncodeToString(sum[:])})
	}
	return list, nil
}

// read returns the module called name from the first place that has it, or an error that is fs.ErrNotExist.
func (r *Registry) read(name string) (module []byte, origin string, err error) {
	if path, ok := r.added[name]; ok {
		module, err := readModule(os.Open(path))
		return module, path, err
	}
	if !nameRule.MatchString(name) {
		return nil, "", fs.ErrNotExist
	}
	for _, dir := range r.cfg.RecipeDirs {
		path := filepath.Join(dir, name, name+".wasm")
		if f, err := os.Open(path); !errors.Is(err, fs.ErrNotExist) {
			module, err := readModule(f, err)
			return module, path, err
		}
	}
	if r.cfg.Lookup != nil {
		if module, ok := r.cfg.Lookup(name); ok {
			return module, BuiltIn, nil
		}
	}
	return nil, "", fs.ErrNotExist
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
		if !nameRule.MatchString(name) {
			continue
		}
		if info, err := os.Stat(filepath.Join(dir, name, name+".wasm")); err == nil && info.Mode().IsRegular() {
			names = append(names, name)
		}
	}
	return names, nil
}

// readModule reads and closes what an Open returned.
func readModule(f *os.File, err error) ([]byte, error) {
	if err != nil {
		return nil, fault.As(fault.User, err)
	}
	defer f.Close()
	switch info, err := f.Stat(); {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fault.Userf("not a regular file")
	case info.Size() > maxModuleBytes:
		return nil, fault.Userf("%d bytes, expected at most %d", info.Size(), maxModuleBytes)
	}
	module, err := io.ReadAll(io.LimitReader(f, maxModuleBytes))
	if err != nil {
		return nil, err
	}
	if !strings.HasPrefix(string(module), "\x00asm") {
		return nil, fault.Corruptf("not a WebAssembly module")
	}
	return module, nil
}

// shorten quotes a name that may come from a model file.
func shorten(name string) string {
	const most = 64
	if len(name) > most {
		return fmt.Sprintf("%q…", name[:most])
	}
	return fmt.Sprintf("%q", name)
}
