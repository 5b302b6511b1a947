package main

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"github.com/rs/zerolog"

	"github.com/bigmoe/bigmoe/cmd/bigmoe/internal/demo"
	"github.com/bigmoe/bigmoe/engine"
	"github.com/bigmoe/bigmoe/engine/expert"
	"github.com/bigmoe/bigmoe/recipes"
	"github.com/bigmoe/bigmoe/registry"
	"github.com/bigmoe/bigmoe/registry/store"
	"github.com/bigmoe/bigmoe/sdk/compute"
)

// cacheDir is where bigmoe keeps what it can make again, or "" if the machine has no such place.
func cacheDir() string {
	dir, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	return filepath.Join(dir, "bigmoe")
}

// dataDir is where bigmoe keeps what it cannot make again, or "" if the machine has no such place.
func dataDir() string {
	base := os.Getenv("XDG_DATA_HOME") // must be absolute to count
	if !filepath.IsAbs(base) {
		var err error
		if base, err = userDataDir(); err != nil {
			return ""
		}
	}
	return filepath.Join(base, "bigmoe")
}

func userDataDir() (string, error) {
	switch runtime.GOOS {
	case "windows", "darwin", "ios":
		return os.UserConfigDir() // holds data too
	}
	home, err := os.UserHomeDir()
	return filepath.Join(home, ".local", "share"), err
}

// modelPath returns the model to open: the one given, or the demo. remove takes away what was made for it.
func modelPath(given string) (path string, isDemo bool, remove func(), err error) {
	if given != "" {
		return given, false, func() {}, nil
	}
	path, remove, err = demo.File(cacheDir())
	return path, true, remove, err
}

// registry returns where recipes and backends come from. name is that of the recipe asked for, "" if none was.
func (f *modelFlags) registry() (r *registry.Registry, name string, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, "", err
	}
	cfg := registry.Config{BuiltIn: recipes.Names(), Lookup: recipes.Lookup, Store: store.New(cmp.Or(f.store, dataDir())),
		Backends: map[string]engine.Backend{
			"cpu":       {Path: self, Args: []string{computeVerb}},
			"reference": {Path: self, Args: referenceArgs}, // what every other backend is compared with
		}}
	for _, dir := range filepath.SplitList(f.recipes) {
		if dir != "" {
			cfg.RecipeDirs = append(cfg.RecipeDirs, dir)
		}
	}
	r = registry.New(cfg)
	if !registry.IsPath(f.recipe) {
		return r, f.recipe, notAFolder(r, f.recipe)
	}
	module, _, err := recipeModule(f.recipe)
	if err != nil {
		return nil, "", fmt.Errorf("recipe %s: %w", f.recipe, err)
	}
	name, err = r.Add(module)
	return r, name, err
}

// notAFolder refuses a name that is no recipe's but a folder's.
func notAFolder(r *registry.Registry, name string) error {
	if info, err := os.Stat(name); name == "" || err != nil || !info.IsDir() {
		return nil
	}
	if _, err := r.Find(name); err != nil {
		return fmt.Errorf("%w; a folder is given by its path, such as .%c%s", err, filepath.Separator, name)
	}
	return nil
}

// config returns the engine's configuration for the model at path.
func (f *engineFlags) config(a *app, path string) (engine.Config, error) {
	r, recipe, err := f.registry()
	if err != nil {
		return engine.Config{}, err
	}
	b, err := r.FindBackend(f.backend)
	if err != nil {
		return engine.Config{}, err
	}
	policy := f.policy.value
	if policy == "frequency" {
		policy = "decayed"
	}
	prefetch := engine.Prefetch(f.prefetch.value)
	if prefetch == "auto" {
		prefetch = engine.PrefetchRouter
		if policy == "lru" { // the baseline: its hits are those of a replayed recording, to the byte
			prefetch = engine.PrefetchOff
		}
	}
	kv := compute.KVType_F16
	if f.kv.value == "f32" {
		kv = compute.KVType_F32
	}
	return engine.Config{
		Model: path, Recipe: recipe, Recipes: r, Backend: b.Backend,
		MemoryBytes: int64(f.memory), CacheBytes: int64(f.cache), Context: f.context, Batch: f.batch,
		Threads: f.threads, Readers: f.ioThreads, IO: expert.IOMode(f.io.value), Policy: policy, KV: kv, Prefetch: prefetch, DriveCache: cacheDir(),
		UsageDir: f.usageDir(""), ExpertsUsed: f.expertsUsed, Log: a.logger(f.verbose, f.quiet),
	}, nil
}

// usageDir returns the folder for usage profiles, auto if it is left to the verb.
func (f *engineFlags) usageDir(auto string) string {
	switch f.usage {
	case "off":
		return ""
	case "auto":
		if f.policy.value == "lru" { // its hits are those of a replayed recording
			return ""
		}
		return auto
	}
	return f.usage
}

// usageFolder is where run keeps usage profiles.
func usageFolder() string {
	if dir := cacheDir(); dir != "" {
		return filepath.Join(dir, "usage")
	}
	return ""
}

// limitDemo gives the demo less memory than it could have, unless a flag said how much, so that its experts are streamed.
func limitDemo(cfg *engine.Config) {
	cfg.CacheBytes = cmp.Or(cfg.CacheBytes, demo.CacheBytes)
	cfg.MemoryBytes = cmp.Or(cfg.MemoryBytes, demo.MemoryBytes)
}

// logger returns where engine and backend write to: warnings by default, everything if asked.
func (a *app) logger(verbose, quiet bool) zerolog.Logger {
	w := zerolog.ConsoleWriter{Out: a.status, NoColor: true, TimeFormat: "15:04:05.000"} // a.status lets no escape sequence through
	level := zerolog.DebugLevel
	switch {
	case quiet:
		level = zerolog.ErrorLevel
	case !verbose:
		level = zerolog.WarnLevel
		w.PartsExclude = []string{zerolog.TimestampFieldName}
	}
	return zerolog.New(w).Level(level).With().Timestamp().Logger()
}
