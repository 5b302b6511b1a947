package main

import (
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/bigmoe/bigmoe/engine"
	"github.com/bigmoe/bigmoe/engine/expert"
	"github.com/bigmoe/bigmoe/engine/expert/replay"
	"github.com/bigmoe/bigmoe/plugins/compute-cpu/cpu"
	"github.com/bigmoe/bigmoe/sdk/fault"
)

type traceFlags struct {
	writeFlags
	output string
	scores string
}

func (a *app) traceCommand() *cobra.Command {
	f := &traceFlags{}
	cmd := &cobra.Command{
		Use:     "trace [flags] [PROMPT]",
		Short:   "Write text and record which experts it took",
		Example: `  bigmoe trace -m model.gguf --mem 6G --greedy -n 200 -o routes.csv.gz "The sea was calm until"`,
		Long: `Takes what run takes and writes, instead of the text, a CSV file with a row for each expert that a token was routed to: turn,
phase (0 prompt, 1 text), step (position), layer, slot (the how-manieth choice), expert, weight, residency (1: it was in the
cache), expert_bytes (what had to be read for it). The comments at its begin say how large an expert of each layer is.

Nothing is read ahead while recording, so that residency is the work of --policy and --cache alone, and replay counts the
same hits.`,
		RunE: func(cmd *cobra.Command, args []string) error { return a.trace(cmd, f, args) },
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	fs.StringVarP(&f.output, "output", "o", "-", "`FILE` to write, compressed if it ends in .gz; - is standard output")
	fs.StringVar(&f.scores, "scores", "", "`FILE` for what the routers thought of every expert, likewise: some KB per token. The CPU backend then runs in this process")
	f.addText(fs)
	f.addEngine(fs)
	return cmd
}

func (a *app) trace(cmd *cobra.Command, f *traceFlags, args []string) error {
	if f.prefetch.value == "router" {
		return fault.Userf("--prefetch router: nothing is read ahead while recording")
	}
	if f.scores != "" && (f.scores == "-" || f.scores == f.output) {
		return fault.Userf("--scores %s: expected a file of its own", f.scores)
	}
	backend, err := f.inProcess()
	if err != nil {
		return err
	}
	rec, done := newRecorder(), []func() error{}
	create := func(path string) (io.Writer, error) {
		w, closeFile, err := a.create(path)
		if err == nil {
			done = append(done, closeFile)
		}
		return w, err
	}
	return a.write(cmd, &f.writeFlags, args, writing{
		config: func(cfg *engine.Config) {
			cfg.Prefetch, cfg.UsageDir = engine.PrefetchOff, ""
			cfg.OnRoute, cfg.OnWave = rec.route, rec.wave
			if f.scores != "" {
				cfg.Backend, cfg.OnScores = backend, rec.score
			}
		},
		begin: func(e *engine.Engine, _ *task) (func(engine.Token) error, error) {
			h := traceHeader(e)
			w, err := create(f.output)
			if err != nil {
				return nil, err
			}
			rec.out = replay.NewWriter(w, h)
			if f.scores != "" {
				if w, err = create(f.scores); err != nil {
					return nil, err
				}
				rec.scoresOut = replay.NewScoreWriter(w, h)
			}
			return func(engine.Token) error { return rec.token() }, nil
		},
		end: func(err error) error {
			errs := []error{err, rec.finish()}
			for _, closeFile := range done {
				errs = append(errs, closeFile())
			}
			return errors.Join(errs...)
		},
	})
}

// inProcess returns the backend that can be asked for scores: the chosen one without a process of its own.
func (f *traceFlags) inProcess() (engine.Backend, error) {
	if f.scores == "" {
		return engine.Backend{}, nil
	}
	kernels := ""
	switch f.backend {
	case "cpu":
	case "reference":
		kernels = "go"
	default:
		return engine.Backend{}, fault.Userf("--scores: the backends cpu and reference tell scores, %s does not", f.backend)
	}
	b, err := cpu.New(cpu.Options{Version: readVersion().Version, Kernels: kernels})
	return engine.Backend{InProcess: b}, err
}

// traceHeader describes a loaded model.
func traceHeader(e *engine.Engine) replay.Header {
	h := replay.Header{
		Model: filepath.Base(e.File.Path()), Architecture: e.Plan.Architecture, TopK: e.Model.MaxTopK(),
		ExpertBytes: make([]int64, e.Plan.Model.Layers),
	}
	for i := range e.Model.Banks {
		b := &e.Model.Banks[i]
		h.Experts = max(h.Experts, b.Experts)
		h.ExpertBytes[b.Layer] = b.ExpertBytes()
	}
	return h
}

// create opens what -o names. done ends it.
func (a *app) create(path string) (w io.Writer, done func() error, err error) {
	if path == "-" {
		return a.stdout, func() error { return nil }, nil
	}
	file, err := os.Create(path)
	if err != nil {
		return nil, nil, fault.As(fault.User, err)
	}
	if !strings.HasSuffix(path, ".gz") {
		return file, file.Close, nil
	}
	z := gzip.NewWriter(file)
	return z, func() error { return errors.Join(z.Close(), file.Close()) }, nil
}

// recorder turns what the engine says about a generation into batches of a trace. A batch is written once the cache has
// been asked for all of it, which is when the next one begins.
type recorder struct {
	out       *replay.Writer
	err       error
	batch     replay.Batch // K is 0 when there is none
	weights   []float32
	scores    []float32           // of the batch that comes next
	scoresOut *replay.ScoreWriter // nil if nobody wants them
	missed    map[int32]bool

	decode    bool
	evaluated int // tokens of the batches of tokens before this one
	tokens    int // of this one
}

func newRecorder() *recorder {
	return &recorder{missed: map[int32]bool{}, batch: replay.Batch{Layer: math.MaxInt}}
}

// route begins the batch of a layer.
func (r *recorder) route(layer, k int, ids []int32, weights []float32) {
	r.write()
	known := append(r.batch.Scores[:0], r.scores...)
	r.scores = r.scores[:0]
	n := len(ids) / k
	if layer <= r.batch.Layer {
		r.evaluated += r.tokens
		r.tokens = n
	}
	r.batch = replay.Batch{Prefill: !r.decode, Layer: layer, K: k, Experts: append(r.batch.Experts[:0], ids...), Scores: known,
		Step: r.evaluated + r.tokens - n} // the last layer may be needed for the last tokens alone
	r.weights = append(r.weights[:0], weights...)
	clear(r.missed)
}

// score takes what a router thinks of every expert for a token of the batch that route will begin.
func (r *recorder) score(_ int, scores []float32) { r.scores = append(r.scores, scores...) }

// wave notes which experts the cache did not have.
func (r *recorder) wave(_ int, slots []expert.Slot) {
	for i := range slots {
		if !slots[i].Hit {
			r.missed[slots[i].Expert] = true
		}
	}
}

func (r *recorder) write() {
	if r.batch.K > 0 && r.err == nil {
		r.err = r.out.Write(&r.batch, r.weights, func(e int32) bool { return r.missed[e] })
	}
	if r.batch.K > 0 && r.scoresOut != nil && r.err == nil {
		r.err = r.scoresOut.Write(&r.batch)
	}
	r.batch.K = 0
}

// token says that a token has been chosen: what is evaluated from now on is the text.
func (r *recorder) token() error {
	r.decode = true
	return r.err
}

func (r *recorder) finish() error {
	r.write()
	if r.err == nil {
		r.err = r.out.Flush()
	}
	if r.scoresOut != nil && r.err == nil {
		r.err = r.scoresOut.Flush()
	}
	if r.err != nil {
		return fmt.Errorf("route trace: %w", r.err)
	}
	return nil
}
