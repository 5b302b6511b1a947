package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/bigmoe/bigmoe/engine/backend"
	"github.com/bigmoe/bigmoe/engine/budget"
	"github.com/bigmoe/bigmoe/engine/drive"
	"github.com/bigmoe/bigmoe/engine/expert"
	"github.com/bigmoe/bigmoe/engine/expert/policy"
	"github.com/bigmoe/bigmoe/engine/model"
	"github.com/bigmoe/bigmoe/engine/token"
	"github.com/bigmoe/bigmoe/engine/vfs"
	"github.com/bigmoe/bigmoe/sdk/compute"
	"github.com/bigmoe/bigmoe/sdk/compute/futex"
	"github.com/bigmoe/bigmoe/sdk/compute/memory"
	"github.com/bigmoe/bigmoe/sdk/fault"
	"github.com/bigmoe/bigmoe/sdk/plan"
)

// Engine is a loaded model: its dense weights in shared memory, its expert store and a running backend.
type Engine struct {
	*Opened
	Context int            // positions the states hold
	Budget  *budget.Fitted // how the memory limit is divided
	Backend *compute.Description

	turns     turns
	cfg       Config
	batch     int
	logitRows int
	bound     *compute.Bound
	layout    *compute.Layout
	memory    *memory.Memory
	deviceMu  sync.Mutex
	device    backend.Device // replaced when it dies: see current
	restarts  backend.Restarts
	death     error // of the last device
	sequence  compute.Sequence
	router    *router
	warmer    warmer
	rowFiles  sources
	rows      *rowReader
	readers   sync.WaitGroup // of rows: the one above, and those whose read hung
	owner     *Session       // whose text the backend's states hold
	trimmable bool

	suppressed []int32 // token ids that must not be sampled
	closing    sync.Once
	closed     error // what Close returned

	// Of the evaluation in progress, kept so that a token allocates nothing.
	input  compute.Batch
	logits []float32

	stall time.Duration
}

// Sizes of this process that the budget counts, measured as resident memory of a running engine without a model.
const (
	engineBytes   = 64 << 20 // code, runtime, recipe host's leftovers, garbage not yet collected
	readerBytes   = 64 << 10 // stack and kernel bookkeeping of one reader
	loaderBytes   = maxLoadReaders * (loadChunkBytes + 2*vfs.Align)
	regionPadding = 1 << 20 // page rounding between the parts of the region
)

// Open loads a model. It refuses, before anything large is allocated, what the recipe, the backend or the memory
// limit do not allow; the error says which, with the arithmetic.
//
// When ctx ends, Open returns its error and leaves nothing behind. If a read hangs just then, it does not wait for it: what is
// open by then is closed when the read ends.
func Open(ctx context.Context, cfg Config) (*Engine, error) {
	if err := cfg.setDefaults(); err != nil {
		return nil, err
	}
	if err := cfg.checkBackend(); err != nil {
		return nil, err
	}
	progress := &gate{pass: cfg.Progress}
	cfg.Progress = progress.report
	e, err := try(ctx, func() (*Engine, error) { return open(ctx, cfg) }, func(e *Engine, err error) {
		if err == nil {
			err = e.Close()
		}
		cfg.Log.Debug().Err(err).Msg("a cancelled open has ended")
	})
	if err != nil {
		progress.shut()
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return nil, err
	}
	return e, nil
}

func open(ctx context.Context, cfg Config) (_ *Engine, err error) {
	opened, err := inspect(ctx, &cfg)
	if err != nil {
		return nil, err
	}
	e := &Engine{Opened: opened, cfg: cfg, turns: newTurns()}
	defer func() {
		if err != nil {
			err = errors.Join(err, e.Close())
		}
	}()
	if err := e.size(); err != nil {
		return nil, err
	}
	return e, e.start(ctx)
}

// size fixes the numbers that everything else follows from.
func (e *Engine) size() error {
	trained := int(e.Plan.Model.ContextLength)
	e.Context = e.cfg.Context
	if e.Context == 0 {
		e.Context = min(DefaultContext, trained)
	}
	if e.Context > trained {
		return fault.Userf("%s: --ctx %d is more than the %d positions the model was trained for", e.File.Path(), e.Context, trained)
	}
	e.batch = min(e.cfg.Batch, e.Context)
	e.logitRows = min(e.cfg.LogitRows, e.batch)
	if v, ok := e.File.Get("tokenizer.ggml.suppress_tokens"); ok {
		ids, err := v.Ints()
		if err != nil {
			return err
		}
		for _, id := range ids {
			if id < 0 || id >= int64(e.vocabulary()) {
				return fault.Corruptf("%s: tokenizer.ggml.suppress_tokens: id %d of %d tokens", e.File.Path(), id, e.vocabulary())
			}
			e.suppressed = append(e.suppressed, int32(id))
		}
	}
	threads := e.cfg.Threads
	if threads == 0 {
		threads = runtime.NumCPU()
	}
	e.bound = &compute.Bound{Plan: e.Plan, Values: e.Model.Values, Options: &compute.Options{
		Context: uint32(e.Context), Batch: uint32(e.batch), LogitRows: uint32(e.logitRows), Threads: uint32(threads), KvType: e.cfg.KV,
	}}
	if e.cfg.Prefetch == PrefetchRouter {
		e.bound.Options.PredictTokens = uint32(e.batch)
	}
	for i := range e.Model.Weights {
		w := &e.Model.Weights[i]
		e.bound.Weights = append(e.bound.Weights, &compute.BoundWeight{Type: uint32(w.Type), RowBytes: uint64(w.RowBytes)})
	}
	for i := range e.Model.Banks {
		b := &compute.BoundBank{}
		for _, p := range e.Model.Banks[i].Parts {
			b.Parts = append(b.Parts, &compute.BoundPart{Type: uint32(p.Type), RowBytes: uint64(p.RowBytes)})
		}
		e.bound.Banks = append(e.bound.Banks, b)
	}
	e.trimmable = true
	for _, s := range e.Plan.States {
		e.trimmable = e.trimmable && s.Rewind == plan.Rewind_TRIM
	}
	return nil
}

// start takes the memory and brings up the backend.
func (e *Engine) start(ctx context.Context) error {
	var err error
	// The backend inherits the region when it starts; how large it must be is known only after Prepare.
	if e.memory, err = memory.New(); err != nil {
		return err
	}
	if err = e.launch(ctx); err != nil {
		return err
	}
	e.Backend = e.device.Describe()
	needs, err := e.device.Prepare(ctx, e.bound)
	if err != nil {
		return fmt.Errorf("%s: %w", e.File.Path(), err)
	}
	limit, err := e.limit()
	if err != nil {
		return err
	}
	if e.Budget, err = e.fit(limit, needs); err != nil {
		return fmt.Errorf("%s: %w", e.File.Path(), err)
	}
	store, offsets, err := e.lay()
	if err != nil {
		return err
	}
	store.Readers = cmp.Or(e.cfg.Readers, drive.Depth(e.cfg.DriveCache, e.File.Path()), DefaultReaders)
	e.router = &router{banks: e.Model.Banks, onRoute: e.cfg.OnRoute, onScores: e.cfg.OnScores, onWave: e.cfg.OnWave, predict: e.cfg.Prefetch == PrefetchRouter}
	if len(e.Model.Banks) > 0 {
		if e.router.store, err = expert.Open(*store); err != nil {
			return fmt.Errorf("%s: %w", e.File.Path(), err)
		}
	}
	if err := e.load(ctx, offsets); err != nil {
		return err
	}
	if s := e.router.store; s != nil && e.cfg.Prefetch != PrefetchOff { // off: nothing is read before a layer picks it
		if err := s.Warm(nil); err != nil {
			return err
		}
	}
	if err := e.warm(); err != nil {
		return err
	}
	if e.rowFiles, err = openSources(e.cfg.FS, e.Model, false); err != nil {
		return err
	}
	e.startRowReader()
	e.sequence, err = e.device.Load(ctx, e.bound, e.layout)
	return err
}

// load reads the dense weights, and finds out on the way how many reads in flight the drive likes.
func (e *Engine) load(ctx context.Context, offsets []uint64) error {
	l, err := newLoader(&e.cfg, e.Model, e.memory, offsets, e.loaded)
	if err != nil {
		return err
	}
	depth, err := l.load(ctx, e.cfg.Readers)
	if err != nil || depth == 0 {
		return err
	}
	if s := e.router.store; s != nil {
		s.SetReaders(depth)
	}
	if err := drive.Remember(e.cfg.DriveCache, e.File.Path(), depth); err != nil {
		e.cfg.Log.Debug().Err(err).Msg("the depth of the drive is not remembered")
	}
	return nil
}

// launch makes a device and puts it in the place of the last one.
func (e *Engine) launch(ctx context.Context) error {
	var dev backend.Device
	if b := e.cfg.Backend.InProcess; b != nil {
		dev = backend.InProcess(b, e.memory)
	} else {
		p, err := backend.Start(ctx, backend.Options{
			Path: e.cfg.Backend.Path, Args: e.cfg.Backend.Args, SHA256: e.cfg.Backend.SHA256, Log: e.cfg.Log, Memory: e.memory, HangTimeout: e.cfg.Backend.HangTimeout,
		})
		if err != nil {
			return err
		}
		dev = p
	}
	e.deviceMu.Lock()
	defer e.deviceMu.Unlock()
	e.device = dev
	return nil
}

// current is the device, for whoever does not have the turn.
func (e *Engine) current() backend.Device {
	e.deviceMu.Lock()
	defer e.deviceMu.Unlock()
	return e.device
}

// limit returns the memory limit: what was asked for if the machine has it, otherwise what is free.
func (e *Engine) limit() (int64, error) {
	machine, err := budget.Machine()
	if err != nil {
		if e.cfg.MemoryBytes > 0 {
			return e.cfg.MemoryBytes, nil
		}
		return 0, err
	}
	if e.cfg.MemoryBytes == 0 {
		return machine.Default(), nil
	}
	if top := machine.Ceiling(); e.cfg.MemoryBytes > top {
		what := "the machine has " + budget.Size(machine.TotalBytes)
		if machine.CgroupBytes == top {
			what = fmt.Sprintf("the cgroup %s allows %s", machine.CgroupPath, budget.Size(top))
		}
		return 0, fault.Userf("--mem %s is more than there is: %s", budget.Size(e.cfg.MemoryBytes), what)
	}
	return e.cfg.MemoryBytes, nil
}

// fit divides the limit. Lines are in the order of the run: what is read first comes first.
func (e *Engine) fit(limit int64, needs *compute.Needs) (*budget.Fitted, error) {
	banks, topK := e.Model.StoreBanks(), e.Model.MaxTopK()
	messages, err := compute.NewLayout(e.bound, 0)
	if err != nil {
		return nil, err
	}
	// Rows are staged here before they go into the region; a row is small.
	scratch := int64(needs.ScratchBytes) + int64(messages.RegionBytes) + int64(e.batch)*e.rowBytesPerToken() + regionPadding
	n := budget.Needs{
		Fixed: []budget.Item{
			{Name: "dense weights", Bytes: e.Model.DenseBytes()},
			{Name: fmt.Sprintf("states for a context of %d", e.Context), Bytes: int64(needs.StateBytes)},
			{Name: fmt.Sprintf("scratch for batches of %d", e.batch), Bytes: scratch},
			{Name: "backend process", Bytes: int64(needs.ProcessBytes)},
			{Name: "engine process", Bytes: engineBytes + loaderBytes + e.Tokenizer.SizeBytes() + int64(max(e.cfg.Readers, maxLoadReaders))*readerBytes},
		},
		WantCache:  e.cfg.CacheBytes,
		ArenaBytes: func(int64) int64 { return 0 },
	}
	if len(banks) > 0 {
		least, err := expert.Plan(banks, topK, 0)
		if err != nil {
			return nil, err
		}
		n.ExpertBytes, n.MinCache = least.ExpertBytes, least.MinBudgetBytes
		n.ArenaBytes = func(cache int64) int64 {
			l, err := expert.Plan(banks, topK, cache)
			if err != nil {
				return 1 << 62
			}
			return l.PhysicalBytes
		}
	}
	return budget.Fit(limit, n)
}

func (e *Engine) rowBytesPerToken() int64 {
	var n int64
	for i := range e.Model.Weights {
		if w := &e.Model.Weights[i]; !w.Resident() {
			n += w.RowBytes
		}
	}
	return n
}

// lay creates the region: messages, dense weights, arena. It returns the configuration of the store and where each
// resident weight goes.
func (e *Engine) lay() (*expert.Config, []uint64, error) {
	var arena expert.Layout
	if len(e.Model.Banks) > 0 {
		var err error
		if arena, err = expert.Plan(e.Model.StoreBanks(), e.Model.MaxTopK(), e.Budget.CacheBytes); err != nil {
			return nil, nil, err
		}
	}
	var err error
	if e.layout, err = compute.NewLayout(e.bound, uint64(arena.Slots)); err != nil {
		return nil, nil, err
	}
	at := e.layout.RegionBytes
	offsets := make([]uint64, len(e.Model.Weights))
	for i := range e.Model.Weights {
		if w := &e.Model.Weights[i]; w.Resident() {
			offsets[i], e.bound.Weights[i].Offset = at, at
			at += uint64(model.AlignUp(w.Bytes()))
		}
	}
	at = (at + vfs.Align - 1) &^ (vfs.Align - 1)
	base := at
	e.layout.RegionBytes = at + uint64(arena.ArenaBytes)
	if err = e.memory.Size(e.layout.RegionBytes); err != nil {
		return nil, nil, err
	}
	e.logits = make([]float32, e.logitRows*e.vocabulary())
	pol, err := policy.New(e.cfg.Policy)
	if err != nil {
		return nil, nil, err
	}
	region := e.memory.Bytes()
	cfg := &expert.Config{
		FS: e.cfg.FS, Files: e.Model.Files(), Banks: e.Model.StoreBanks(), TopK: e.Model.MaxTopK(),
		Arena: region[base:], ArenaBase: base, BudgetBytes: e.Budget.CacheBytes,
		Policy: pol, Mode: e.cfg.IO,
		Wake:    wake,
		Discard: func(off uint64, n int64) error { return e.memory.Discard(off, uint64(n)) },
	}
	if e.memory.Huge() {
		cfg.Back = func(off uint64, n int64) { e.memory.Back(off, uint64(n)) }
	}
	if arena.Slots > 0 {
		cfg.Ready = unsafe.Slice((*uint32)(unsafe.Pointer(&region[e.layout.Ready])), arena.Slots)
	}
	return cfg, offsets, nil
}

// revive starts a new backend when the last one died. The weights and cached experts are still in the region.
func (e *Engine) revive(ctx context.Context) error {
	if e.sequence != nil {
		dead := e.device.Dead()
		if dead == nil {
			return nil
		}
		e.death = dead
	}
	e.owner, e.sequence = nil, nil
	if err := e.device.Close(); err != nil {
		e.cfg.Log.Warn().Err(err).Msg("closing the dead backend")
	}
	if err := e.restarts.Begin(ctx, e.death); err != nil {
		return err
	}
	err := e.launch(ctx)
	if err == nil {
		e.sequence, err = e.device.Load(ctx, e.bound, e.layout)
	}
	if err != nil {
		e.sequence = nil // and not a nil pointer in an interface
		if e.death = err; ctx.Err() != nil {
			e.restarts.Cancelled()
		}
	}
	return err
}

// BackendPID is the id of the process that the backend runs in: this one's when it is Backend.InProcess. It changes when a
// backend has died and another was started.
func (e *Engine) BackendPID() int { return e.current().PID() }

func (e *Engine) vocabulary() int { return int(e.Plan.Model.Vocabulary) }

func (e *Engine) promptOptions() token.Options {
	return token.Options{AddSpecial: true, ParseSpecial: true}
}

func (e *Engine) progress(p Phase, done, total int64) {
	if e.cfg.Progress != nil {
		e.cfg.Progress(Progress{Phase: p, Done: done, Total: total})
	}
}

func (e *Engine) loaded(done, total int64) { e.progress(PhaseLoad, done, total) }

func wake(word *uint32) { futex.Wake((*atomic.Uint32)(unsafe.Pointer(word))) }
