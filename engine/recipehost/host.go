package recipehost

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/sys"
	"google.golang.org/protobuf/proto"

	"github.com/bigmoe/bigmoe/sdk/fault"
	"github.com/bigmoe/bigmoe/sdk/plan"
)

// The versions of docs/recipe-abi.md that this host speaks. A module says which one it was written for.
const (
	OldestABIVersion = 1
	ABIVersion       = 2
)

// Options bounds what a recipe may use. Zero fields take the defaults.
type Options struct {
	// CacheDir keeps compiled modules, so that only the first start with a recipe pays for compiling it. Nobody else
	// may write there, since its files are run as they are. Empty: modules are interpreted.
	CacheDir string

	Timeout          time.Duration // of the module's own running, not of compiling it or while the process stands still; 20 s
	MemoryLimitBytes int64         // of the module, in whole pages of 64 KiB; 64 MiB
	MaxModuleBytes   int           // which bounds the time that compiling takes; 4 MiB
	MaxResultBytes   int           // of the encoded plan; 16 MiB
	MaxCalls         int           // questions to the host; 4 million

	Warn func(message string) // gets what a recipe warns of, while it runs; nil drops it
	Used func(Usage)          // gets what a module used, once it returned a plan, valid or not; nil drops it
}

// Usage is what a module used of its bounds.
type Usage struct {
	ABIVersion  int
	Seconds     float64 // of its own running
	MemoryBytes int64   // at its end: a module never gives memory back
	Calls       int
	PlanBytes   int

	Name   string   // what the module calls itself
	Unread []string // keys of the plan's architecture that the file has and the module did not ask for, in file order; without vocab_size
}

// Bounds returns the options with the defaults filled in.
func (h *Host) Bounds() Options { return h.opts }

const pageBytes = 64 << 10

// Host runs recipes.
type Host struct{ opts Options }

// New returns a host with the given bounds.
func New(opts Options) *Host {
	if opts.Timeout <= 0 {
		opts.Timeout = 20 * time.Second // fifty times what a large model takes: a busy machine must not refuse a good recipe
	}
	if opts.MemoryLimitBytes <= 0 {
		opts.MemoryLimitBytes = 64 << 20
	}
	opts.MemoryLimitBytes = min(max(opts.MemoryLimitBytes, pageBytes), 1<<32)
	if opts.MaxModuleBytes <= 0 {
		opts.MaxModuleBytes = 4 << 20
	}
	if opts.MaxResultBytes <= 0 {
		opts.MaxResultBytes = 16 << 20
	}
	if opts.MaxCalls <= 0 {
		opts.MaxCalls = 4 << 20
	}
	return &Host{opts: opts}
}

// Plan runs the module, decodes the plan it returns and validates it, which yields the shapes of its values. Whether the
// plan fits the file is for the caller to check. Both the plan and the error name the recipe as the caller does. The
// error's kind is what the recipe said where it refused the file itself; fault.Unsupported for a module that needs
// something this host does not offer, time included; fault.Corrupt for one that misbehaves or says that it has a bug.
func (h *Host) Plan(ctx context.Context, name string, module []byte, src Source) (*plan.Plan, plan.Values, error) {
	p, err := h.plan(ctx, module, src)
	if err != nil {
		return nil, nil, fmt.Errorf("recipe %q: %w", name, err)
	}
	p.Recipe = name
	values, err := plan.Validate(p)
	if err != nil {
		return nil, nil, err
	}
	return p, values, nil
}

func (h *Host) plan(ctx context.Context, module []byte, src Source) (*plan.Plan, error) {
	if len(module) > h.opts.MaxModuleBytes {
		return nil, fault.Unsupportedf("module of %d bytes: at most %d are taken", len(module), h.opts.MaxModuleBytes)
	}
	o, err := sieve(module, h.opts.MemoryLimitBytes, offered)
	if err != nil {
		return nil, err
	}
	s := &session{opts: h.opts, src: src, tensors: src.Tensors(), handles: map[string]int32{}, newer: o.newer}
	err = h.run(ctx, o.module, s)
	switch {
	case s.err != nil: // says more than the trap that ended the module
		return nil, s.err
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case err != nil:
		return nil, err
	case s.result == nil:
		return nil, fault.Corruptf("returned without a plan")
	}
	p := &plan.Plan{}
	if err := proto.Unmarshal(s.result, p); err != nil {
		return nil, fault.Corruptf("returned %d bytes that are not a plan: %w", len(s.result), err)
	}
	if h.opts.Used != nil {
		s.used.PlanBytes, s.used.Name, s.used.Unread = len(s.result), p.Recipe, s.unread(p.Architecture)
		h.opts.Used(s.used)
	}
	return p, nil
}

// features are what compilers emit for recipes. Reference types are left out because a growing table would be memory
// that nothing bounds.
const features = api.CoreFeatureMutableGlobal | api.CoreFeatureSignExtensionOps | api.CoreFeatureMultiValue |
	api.CoreFeatureNonTrappingFloatToIntConversion | api.CoreFeatureBulkMemoryOperations

// load makes the module ready to run: from the cache, compiled into it, or for the interpreter. A cache that cannot be
// used, be it unwritable, full or damaged, is not worth an error.
func (h *Host) load(ctx context.Context, module []byte, s *session) (r wazero.Runtime, code wazero.CompiledModule, closeAll func(), err error) {
	if h.opts.CacheDir != "" {
		if cache, err := wazero.NewCompilationCacheWithDir(h.opts.CacheDir); err == nil {
			r, code, err := h.prepare(ctx, wazero.NewRuntimeConfig().WithCompilationCache(cache), module, s)
			if err == nil {
				return r, code, func() { r.Close(ctx); cache.Close(ctx) }, nil
			}
			cache.Close(ctx)
		}
	}
	r, code, err = h.prepare(ctx, wazero.NewRuntimeConfigInterpreter(), module, s)
	return r, code, func() { r.Close(ctx) }, err
}

func (h *Host) prepare(ctx context.Context, config wazero.RuntimeConfig, module []byte, s *session) (wazero.Runtime, wazero.CompiledModule, error) {
	r := wazero.NewRuntimeWithConfig(ctx, config.
		WithCoreFeatures(features).
		WithMemoryLimitPages(uint32(h.opts.MemoryLimitBytes/pageBytes)).
		WithCloseOnContextDone(true).
		WithDebugInfoEnabled(false))
	if err := s.offer(ctx, r); err != nil {
		r.Close(ctx)
		return nil, nil, fault.Bugf("host module: %w", err)
	}
	code, err := r.CompileModule(ctx, module)
	if err != nil {
		r.Close(ctx)
		kind := fault.Corrupt
		if strings.Contains(err.Error(), "is disabled") { // wazero has no other sign of a proposal that we do not take
			kind = fault.Unsupported
		}
		return nil, nil, fault.As(kind, fmt.Errorf("not a module that can be run: %w", firstLine(err)))
	}
	return r, code, nil
}

func (h *Host) run(ctx context.Context, module []byte, s *session) error {
	r, code, closeAll, err := h.load(context.WithoutCancel(ctx), module, s)
	if err != nil {
		return err
	}
	defer closeAll()
	for _, export := range []string{"bigmoe_abi_version", "bigmoe_plan"} {
		if _, ok := code.ExportedFunctions()[export]; !ok {
			return fault.Corruptf("does not export the function %s: not a recipe", export)
		}
	}
	if _, ok := code.ExportedMemories()["memory"]; !ok {
		return fault.Corruptf("does not export its memory: not a recipe")
	}
	start := time.Now()
	timed, cancel := withRunningTime(ctx, h.opts.Timeout)
	defer cancel()
	m, err := r.InstantiateModule(timed, code, wazero.NewModuleConfig().WithName("recipe").WithStartFunctions())
	if err != nil {
		return s.ended("instantiation", err)
	}
	call := func(name string) ([]uint64, error) {
		results, err := m.ExportedFunction(name).Call(timed)
		switch {
		case err == nil:
			return results, nil
		case timed.Err() != nil:
			return nil, fault.Unsupportedf("did not finish within its limit of %v: it has no end, or this machine is too busy or too slow for it", h.opts.Timeout)
		}
		return nil, s.ended(name, err)
	}
	if m.ExportedFunction("_initialize") != nil {
		if _, err := call("_initialize"); err != nil {
			return err
		}
	}
	version, err := call("bigmoe_abi_version")
	if err != nil {
		return err
	}
	if err := negotiate(version); err != nil {
		return err
	}
	if len(s.newer) > 0 {
		return fault.Unsupportedf("imports the function %q of %q, which version %d of the ABI does not have", s.newer[0].name, moduleName, version[0])
	}
	_, err = call("bigmoe_plan")
	s.used = Usage{ABIVersion: int(version[0]), Seconds: time.Since(start).Seconds(), MemoryBytes: int64(m.Memory().Size()), Calls: s.calls}
	return err
}

// withRunningTime is context.WithTimeout by a clock that only runs while this process does: stopped, or on a machine that sleeps
// or stalls, it must not refuse a good recipe.
func withRunningTime(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	const tick = 20 * time.Millisecond
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		clock := time.NewTicker(tick) // which drops ticks that nobody was there for
		defer clock.Stop()
		for left := limit; left > 0; left -= tick {
			select {
			case <-ctx.Done():
				return
			case <-clock.C:
			}
		}
		cancel()
	}()
	return ctx, cancel
}

// negotiate refuses modules that were written for another version of the ABI than those this host speaks.
func negotiate(results []uint64) error {
	if len(results) != 1 {
		return fault.Corruptf("bigmoe_abi_version returns %d values, expected one", len(results))
	}
	switch version := i32(results[0]); {
	case version > ABIVersion:
		return fault.Unsupportedf("written for version %d of the ABI, this build speaks %d to %d: a newer bigmoe is needed",
			version, OldestABIVersion, ABIVersion)
	case version < OldestABIVersion:
		return fault.Unsupportedf("written for version %d of the ABI, this build speaks %d to %d", version, OldestABIVersion, ABIVersion)
	}
	return nil
}

// ended explains why a call of the module did not return.
func (s *session) ended(call string, err error) error {
	said := ""
	if text := strings.TrimSpace(string(s.output)); text != "" {
		said = fmt.Sprintf("; it printed %q", text)
	}
	var exit *sys.ExitError
	if errors.As(err, &exit) {
		return fault.Corruptf("%s ended the module with status %d%s", call, int32(exit.ExitCode()), said)
	}
	return fault.Corruptf("%s trapped: %w%s", call, firstLine(err), said)
}

// firstLine drops the stack trace that wazero appends.
func firstLine(err error) error {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return errors.New(line)
}
