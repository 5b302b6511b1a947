package main

import (
	"cmp"
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/bigmoe/bigmoe/cmd/bigmoe/internal/bench"
	"github.com/bigmoe/bigmoe/engine"
	"github.com/bigmoe/bigmoe/engine/sample"
)

// bencher measures one text, again and again.
type bencher struct {
	request engine.Request
	files   []string // of the model
	drive   *bench.Drive
	memory  *bench.Memory
}

// newBencher looks at the model, and measures its drive as deep as the deepest of the configurations reads.
func newBencher(ctx context.Context, configs []engine.Config, prompt string, maxTokens int) (b *bencher, err error) {
	opened, err := engine.Inspect(ctx, configs[0])
	if err != nil {
		return nil, err
	}
	b = &bencher{
		request: engine.Request{Prompt: prompt, MaxTokens: maxTokens, Sampling: sample.Greedy(), IgnoreEnd: true},
		files:   opened.Model.Files(),
	}
	threads := configs[0].Threads
	b.memory = probeMemory(cmp.Or(threads, runtime.NumCPU()))
	b.memory.TokenBytes = opened.Model.DenseBytes() + opened.Model.TokenBytes()
	var parts, partBytes int64
	for _, bank := range opened.Model.Banks {
		parts += int64(bank.Experts * len(bank.Parts))
		partBytes += int64(bank.Experts) * bank.ExpertBytes()
	}
	if err := opened.File.Close(); err != nil { // pages of a mapped file would stay in the page cache
		return nil, err
	}
	if parts > 0 {
		depth := 0
		for _, cfg := range configs {
			depth = max(depth, cfg.Readers)
		}
		b.drive, err = probeDrive(ctx, b.files, partBytes/parts, depth)
	}
	return b, err
}

// run opens an engine with nothing of the model in the page cache and writes the text; if warm is set, then once more.
func (b *bencher) run(ctx context.Context, cfg engine.Config, warm bool) (runs []bench.Run, err error) {
	for _, name := range b.files {
		if err := dropPageCache(name); err != nil {
			return nil, err
		}
	}
	debug.FreeOSMemory() // the last run's memory is not this one's
	peakKnown := resetPeak()
	start := time.Now()
	err = withEngine(ctx, cfg, func(e *engine.Engine, load time.Duration) error {
		for {
			r, err := b.write(ctx, e, start)
			if err != nil {
				return err
			}
			r.LoadSeconds, r.Warm = load.Seconds(), len(runs) > 0
			if !peakKnown {
				r.PeakBytes = bench.Unknown
			}
			if r.Warm {
				r.LoadSeconds = bench.Unknown
			}
			if runs = append(runs, *r); len(runs) == 2 || !warm {
				return nil
			}
			start = time.Now()
		}
	})
	if err != nil {
		return nil, err
	}
	return runs, nil
}

// write has the engine write the text. The first token is counted from start.
func (b *bencher) write(ctx context.Context, e *engine.Engine, start time.Time) (*bench.Run, error) {
	var first time.Duration
	var cpuFirst float64
	cpuStart := cpuSeconds(e)
	res, err := e.NewSession().Generate(ctx, b.request, func(t engine.Token) error {
		if first == 0 {
			first, cpuFirst = time.Since(start), cpuSeconds(e)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	cpuEnd := cpuSeconds(e)
	if len(res.Tokens) < 2 {
		return nil, fmt.Errorf("the context of %d left room for %d tokens after a prompt of %d, too few to measure", e.Context, len(res.Tokens), res.PromptTokens)
	}
	report := e.Report()
	decode := b.phase(res.Decode, cpuEnd-cpuFirst, report.Threads)
	decode.MemoryLimit = b.memory.BytesPerSecond / float64(b.memory.TokenBytes)
	return &bench.Run{
		FirstTokenSeconds: first.Seconds(),
		Prefill:           b.phase(res.Prefill, cpuFirst-cpuStart, report.Threads),
		Decode:            decode,
		CacheBytes:        float64(report.Budget.CacheBytes),
		PeakBytes:         float64(report.PeakBytes),
		PromptTokens:      res.PromptTokens,
		Tokens:            res.Tokens,
		Setup:             bench.Setup{Backend: report.Backend, Kernels: report.Kernels, Threads: report.Threads, IO: report.IO, Lossy: report.Lossy},
	}, nil
}

// phase turns a cost and the processor time it took into figures.
func (b *bencher) phase(c engine.Cost, cpuSeconds float64, threads int) bench.Phase {
	s := speedOf(c)
	p := bench.Phase{
		TokensPerSecond: s.TokensPerSecond, MissMiBPerToken: s.MissMiBPerToken, HitRate: s.HitRate, StallShare: s.StallShareOfTime,
		DriveLimit: bench.Unknown, MemoryLimit: bench.Unknown, ForeseenRate: float64(c.Foreseen) / float64(c.Requested),
		ReadMiBPerSecond: float64(c.ReadBytes) / (1 << 20) / c.Seconds, CPUShare: cpuSeconds / c.Seconds / float64(threads),
	}
	if c.Requested == 0 {
		p.HitRate, p.ForeseenRate = bench.Unknown, bench.Unknown
	}
	if b.drive != nil {
		p.DriveLimit = b.drive.BytesPerSecond * float64(c.Tokens) / float64(c.MissBytes) // unknown if nothing was missed
	}
	return p
}
