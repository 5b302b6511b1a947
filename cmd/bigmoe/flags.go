package main

import (
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/bigmoe/bigmoe/engine/budget"
	"github.com/bigmoe/bigmoe/sdk/fault"
)

// modelFlags say which model, and by which recipe it is understood.
type modelFlags struct {
	model   string
	recipe  string
	recipes string
	storeFlags
}

// storeFlags say where what was added is.
type storeFlags struct{ store string }

func (f *storeFlags) add(fs *pflag.FlagSet) {
	fs.StringVar(&f.store, "store", "", "`FOLDER` of recipes and backends that were added; default: bigmoe in the user's data folder")
}

func (f *modelFlags) add(fs *pflag.FlagSet) {
	fs.StringVarP(&f.model, "model", "m", "", "GGUF `FILE`, or any shard of a set; without it the built-in demo model")
	f.addRecipe(fs)
}

func (f *modelFlags) addRecipe(fs *pflag.FlagSet) {
	fs.StringVar(&f.recipe, "recipe", "", "`NAME` of a recipe, or path of a .wasm file or of the folder of one; default: the one for the model's architecture")
	f.addFolders(fs)
}

func (f *modelFlags) addFolders(fs *pflag.FlagSet) {
	fs.StringVar(&f.recipes, "recipes", "", "`FOLDERS` with more recipes (NAME/NAME.wasm), separated by "+string(filepath.ListSeparator))
	f.storeFlags.add(fs)
}

// engineFlags say how to run it.
type engineFlags struct {
	modelFlags
	backend     string
	memory      size
	cache       size
	context     int
	batch       int
	threads     int
	ioThreads   int
	io          choice
	policy      choice
	prefetch    choice
	usage       string
	kv          choice
	expertsUsed int
	verbose     bool
	quiet       bool
}

func (f *engineFlags) add(fs *pflag.FlagSet, kv string) {
	f.modelFlags.add(fs)
	f.io = choice{"auto", []string{"auto", "direct", "buffered"}}
	f.policy = choice{"forecast", []string{"forecast", "frequency", "lru"}}
	f.prefetch = choice{"auto", []string{"auto", "router", "off"}}
	f.kv = choice{kv, []string{"f16", "f32"}}
	fs.StringVar(&f.backend, "backend", "cpu", "compute backend: cpu, reference (the same in plain Go: slow), the `NAME` of an added one, or the path of a program")
	fs.Var(&f.memory, "mem", "memory for both processes, such as 6G; default: what the machine leaves")
	fs.Var(&f.cache, "cache", "expert cache within it, such as 4000M; default: what --mem leaves")
	fs.IntVar(&f.context, "ctx", 0, "`TOKENS` of context; default: 4096, or less if the model was trained for less")
	fs.IntVar(&f.batch, "batch", 0, "most `TOKENS` of a prompt evaluated at once; default: 512")
	fs.IntVar(&f.threads, "threads", 0, "compute threads; default: one per core")
	fs.IntVar(&f.ioThreads, "io-threads", 0, "reads in flight; default: what suits the drive, measured while loading")
	fs.Var(&f.io, "io", "how experts are read: auto (direct where that works), direct or buffered")
	fs.Var(&f.policy, "policy", "which experts stay in the cache: forecast (those expected soonest), frequency (decayed) or lru")
	fs.Var(&f.prefetch, "prefetch", "which experts are read before a layer picks them: router (what the next layer's router makes of this one's input), off, or auto (router, but off with --policy lru, so that it can be compared with a replay)")
	fs.StringVar(&f.usage, "usage", "auto", "`FOLDER` that remembers which experts a model uses, for the next start to read those first; off; or auto: run keeps it in the user's cache folder, but not with --policy lru, and nobody else does")
	fs.Var(&f.kv, "kv", "precision of the key-value cache: f16 or f32")
	fs.IntVar(&f.expertsUsed, "experts-used", 0, "experts per token and layer instead of the model's own `NUMBER`; lossy: changes the text")
	fs.BoolVarP(&f.verbose, "verbose", "v", false, "log what engine and backend do to standard error")
	fs.BoolVarP(&f.quiet, "quiet", "q", false, "no progress, warnings or summary on standard error")
}

// size is a flag with a number of bytes.
type size int64

var _ pflag.Value = (*size)(nil)

func (s *size) Set(text string) error {
	n, err := budget.ParseSize(text)
	if err == nil && n == 0 {
		err = fault.Userf("size %q: expected more than 0", text)
	}
	*s = size(n)
	return err
}

func (s *size) String() string {
	if *s == 0 {
		return ""
	}
	return budget.Size(int64(*s))
}

func (s *size) Type() string { return "SIZE" }

// choice is a flag with one of a few values.
type choice struct {
	value string
	of    []string
}

var _ pflag.Value = (*choice)(nil)

func (c *choice) Set(text string) error {
	if !slices.Contains(c.of, text) {
		return fault.Userf("expected one of %s", strings.Join(c.of, ", "))
	}
	c.value = text
	return nil
}

func (c *choice) String() string { return c.value }
func (c *choice) Type() string   { return strings.Join(c.of, "|") }

// modelArgument lets a verb take the model as its only argument.
func modelArgument(cmd *cobra.Command, args []string) error {
	if len(args) > 1 {
		return fault.Userf("%d models given, expected one", len(args))
	}
	return nil
}
