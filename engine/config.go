package engine

import (
	"errors"
	"fmt"
	"time"

	"github.com/rs/zerolog"

	"github.com/bigmoe/bigmoe/engine/expert"
	"github.com/bigmoe/bigmoe/engine/vfs"
	"github.com/bigmoe/bigmoe/sdk/compute"
	"github.com/bigmoe/bigmoe/sdk/fault"
)

// Config says what to open and what it may take. Model, Recipes and Backend are needed (package bigmoe fills in the
// last two); the zero value of every other field is the usual choice.
type Config struct {
	Model   string  // path of a GGUF file, or of any shard of a set
	Recipe  string  // name of the recipe; "" = the one for the file's architecture
	Recipes Recipes // where recipes come from
	Backend Backend // what computes; not needed by Inspect

	MemoryBytes int64 // limit for this process and the backend's, all included; 0 = what the machine and its cgroups leave
	CacheBytes  int64 // payload bytes of cached experts; 0 = what the limit leaves
	Context     int   // positions; 0 = DefaultContext, less when the model was trained for less
	Batch       int   // most tokens evaluated at once; 0 = DefaultBatch
	LogitRows   int   // most positions whose logits are wanted at once, see Session.Score; 0 = 1
	Threads     int   // of the backend; 0 = one per core
	Readers     int   // reads in flight; 0 = what suits the drive
	IO          expert.IOMode
	Policy      string         // of the cache, see package policy; "" = DefaultPolicy
	KV          compute.KVType // precision of the key-value cache: the zero value is half, KVType_F32 full
	Prefetch    Prefetch       // which experts are read before a layer has picked them; "" = PrefetchRouter
	ExpertsUsed int            // experts per token instead of the model's own number: changes the output. 0 = the model's

	// RecipeCache is a folder for compiled recipes, where nobody else may write; "" interprets them, which takes longer for
	// large models.
	RecipeCache string
	// DriveCache is a folder for what is found out about drives; "" = it is found out anew each time.
	DriveCache string
	// UsageDir is a folder for what is known about which experts models use (package usage), from which the cache is warmed at the
	// start; "" = nothing is kept, and nothing warmed.
	UsageDir string
	// FS reads experts and weights; nil = the operating system. Tests inject faults here.
	FS vfs.FS

	Log zerolog.Logger // warnings, and what the backend says; the zero value drops it all

	// The engine calls these, one at a time. They must not call the engine, and must not keep slices they get.
	Progress func(Progress)                                     // how far loading or a prompt is
	OnRoute  func(layer, k int, ids []int32, weights []float32) // every routing decision: len(ids)/k tokens, k choices each
	OnScores func(layer int, scores []float32)                  // what a router thinks of every expert, for each token before its OnRoute; Backend must be InProcess
	OnWave   func(layer int, slots []expert.Slot)               // what the cache had of it, in one call or more
}

// Defaults of Config.
const (
	DefaultContext = 4096
	DefaultBatch   = 512
	DefaultReaders = 8 // when nothing is known about the drive
	DefaultPolicy  = "forecast"
)

// Prefetch says how experts are guessed ahead. It changes speed and counters, never the text.
type Prefetch string

// The ways to guess.
const (
	PrefetchOff    Prefetch = "off"
	PrefetchRouter Prefetch = "router" // the next layer's router, applied early: see plugins/compute-cpu
)

// Recipes finds recipe modules. Package registry implements it. Engines may call one from several goroutines at once.
type Recipes interface {
	// Find returns the module called name. When there is none the error says which names exist.
	Find(name string) (Recipe, error)
}

// Recipe is a recipe module.
type Recipe struct {
	Name   string
	Module []byte // WebAssembly
}

// Backend says which compute backend to use: a program, which is started as a child process and whose crash ends a
// request and nothing else, or one in this process. Exactly one of Path and InProcess is set.
type Backend struct {
	Path      string          // the program
	Args      []string        // its arguments
	SHA256    []byte          // of the program, checked at each start; not when empty
	InProcess compute.Backend // may serve several engines
	// HangTimeout is how long an evaluation may show no sign of life; 0 = a minute.
	HangTimeout time.Duration
}

// Phase is what a Progress report is about.
type Phase string

// The phases.
const (
	PhaseLoad    Phase = "load"    // bytes of dense weights
	PhasePrefill Phase = "prefill" // tokens of the prompt
)

// Progress is a step towards the first token.
type Progress struct {
	Phase       Phase
	Done, Total int64
}

// checkBackend refuses what Inspect has no use for and Open cannot go without.
func (c *Config) checkBackend() error {
	if (c.Backend.Path == "") == (c.Backend.InProcess == nil) {
		return fault.Userf("Config.Backend needs either Path or InProcess; package bigmoe has the backend that ships")
	}
	return nil
}

func (c *Config) setDefaults() error {
	var problems []error
	if c.Model == "" {
		problems = append(problems, errors.New("no model file"))
	}
	for _, f := range []struct {
		name  string
		value int
	}{{"context", c.Context}, {"batch", c.Batch}, {"logit rows", c.LogitRows}, {"threads", c.Threads}, {"readers", c.Readers}, {"experts used", c.ExpertsUsed}} {
		if f.value < 0 {
			problems = append(problems, errors.New(f.name+" is negative"))
		}
	}
	if c.MemoryBytes < 0 || c.CacheBytes < 0 {
		problems = append(problems, errors.New("memory and cache sizes must not be negative"))
	}
	if c.Threads > 256 || c.Readers > 256 {
		problems = append(problems, errors.New("more than 256 threads or readers"))
	}
	if c.Batch == 0 {
		c.Batch = DefaultBatch
	}
	if c.Batch > 1<<16 {
		problems = append(problems, errors.New("batch above 65536 tokens"))
	}
	if c.LogitRows == 0 {
		c.LogitRows = 1
	}
	if c.Policy == "" {
		c.Policy = DefaultPolicy
	}
	if c.Prefetch == "" {
		c.Prefetch = PrefetchRouter
	}
	if c.Prefetch != PrefetchRouter && c.Prefetch != PrefetchOff {
		problems = append(problems, fmt.Errorf("prefetch %q: expected router or off", c.Prefetch))
	}
	if c.OnScores != nil && c.Backend.InProcess == nil {
		problems = append(problems, errors.New("the scores of routers are seen only with a backend in this process"))
	}
	if c.FS == nil {
		c.FS = vfs.OS()
	}
	if c.Recipes == nil {
		problems = append(problems, errors.New("no recipes: Config.Recipes says where they come from; package bigmoe has those that ship"))
	}
	return fault.As(fault.User, errors.Join(problems...))
}
