package main

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/bigmoe/bigmoe/cmd/bigmoe/internal/bench"
	"github.com/bigmoe/bigmoe/engine"
	"github.com/bigmoe/bigmoe/sdk/fault"
)

type benchFlags struct {
	engineFlags
	promptFlags
	vary, configs []string
	maxTokens     int
	runs, warmUps int
	warm          bool
	format        choice
}

func (a *app) benchCommand() *cobra.Command {
	f := &benchFlags{format: choice{"markdown", []string{"markdown", "json", "csv"}}}
	cmd := &cobra.Command{
		Use:   "bench [flags] [PROMPT]",
		Short: "Measure configurations against each other",
		Example: `  bigmoe bench -m model.gguf --mem 6G -n 128 --vary policy=lru,frequency -f prompt.txt
  bigmoe bench -m model.gguf -f prompt.txt --config "mem=6G policy=lru" --config "mem=6G prefetch=off"`,
		Long: `The variants take turns, A B A B …, each time with an engine of their own and the model's pages dropped from the page
cache. Ratios are taken round by round, so that a machine that drifts does not decide. The text is greedy and goes on after
tokens that end it; variants whose texts differ are not compared, which exit code 1 tells, unless one of them is lossy.

--vary FLAG=VALUE,VALUE multiplies: all combinations are measured. --config gives whole variants instead, and "" is one that
changes nothing. Prompts are found as in run. docs/bench.md says what each figure means.`,
		RunE: func(cmd *cobra.Command, args []string) error { return a.bench(cmd, f, args) },
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	fs.StringArrayVar(&f.vary, "vary", nil, "`FLAG=VALUE,VALUE…` of run to measure with; may be repeated")
	fs.StringArrayVar(&f.configs, "config", nil, "a variant: `\"FLAG=VALUE …\"`; may be repeated")
	fs.IntVar(&f.runs, "runs", 3, "measured `RUNS` of each variant")
	fs.IntVar(&f.warmUps, "warmup", 1, "`RUNS` of each variant before them that do not count")
	fs.BoolVar(&f.warm, "warm", false, "also measure a second text with the same engine")
	fs.Var(&f.format, "format", "what to write: markdown (medians and ratios), json (everything) or csv (one line per run)")
	f.promptFlags.add(fs)
	fs.IntVarP(&f.maxTokens, "max-tokens", "n", 128, "`TOKENS` to write")
	f.engineFlags.add(fs, "f16")
	return cmd
}

func (a *app) bench(cmd *cobra.Command, f *benchFlags, args []string) error {
	if err := exclusive(cmd); err != nil {
		return err
	}
	switch {
	case f.runs < 1:
		return fault.Userf("--runs %d: expected 1 or more", f.runs)
	case f.warmUps < 0:
		return fault.Userf("--warmup %d: expected 0 or more", f.warmUps)
	case f.maxTokens < 2:
		return fault.Userf("--max-tokens %d: expected 2 or more: the first one is the prefill's", f.maxTokens)
	}
	variants, err := bench.Variants(f.vary, f.configs)
	if err != nil {
		return err
	}
	t, err := a.task(cmd, &f.promptFlags, f.model, args)
	if err != nil {
		return err
	}
	defer t.remove()
	var configs []engine.Config
	for _, v := range variants {
		cfg, err := f.variant(a, &t, v)
		if err != nil {
			return fmt.Errorf("variant %q: %w", v, err)
		}
		configs = append(configs, cfg)
	}
	report, err := a.measure(cmd.Context(), f, variants, configs, t.prompt)
	if err != nil {
		return err
	}
	for _, line := range report.Lossy() {
		fmt.Fprintf(a.status, "lossy: %s\n", line)
	}
	switch f.format.value {
	case "json":
		return writeJSON(a.stdout, report)
	case "csv":
		return report.WriteCSV(a.stdout)
	}
	return report.WriteMarkdown(a.stdout)
}

// fixed are flags of the engine that are the same for all variants.
var fixed = []string{"model", "verbose", "quiet"}

// variant returns the engine's configuration with the settings of v on top of the flags given.
func (f *benchFlags) variant(a *app, t *task, v bench.Variant) (engine.Config, error) {
	var own engineFlags
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	own.add(fs, "f16")
	own = f.engineFlags // whose fields the flag set goes on to write to
	for _, s := range v.Settings {
		if fs.Lookup(s.Flag) == nil || slices.Contains(fixed, s.Flag) {
			var names []string
			fs.VisitAll(func(f *pflag.Flag) {
				if !slices.Contains(fixed, f.Name) {
					names = append(names, f.Name)
				}
			})
			return engine.Config{}, fault.Userf("no flag %q that can vary; there are: %s", s.Flag, strings.Join(names, ", "))
		}
		if err := fs.Set(s.Flag, s.Value); err != nil {
			return engine.Config{}, fault.As(fault.User, err)
		}
	}
	return t.config(a, &own)
}

// measure runs the schedule.
func (a *app) measure(ctx context.Context, f *benchFlags, variants []bench.Variant, configs []engine.Config, prompt string) (*bench.Report, error) {
	b, err := newBencher(ctx, configs, prompt, f.maxTokens)
	if err != nil {
		return nil, err
	}
	report := bench.New(bench.Header{
		Machine: machine(), Drive: b.drive, Memory: b.memory, Model: filepath.Base(configs[0].Model), WarmUps: f.warmUps, PageCache: pageCache,
	}, variants)
	for _, step := range bench.Schedule(len(variants), f.warmUps, f.runs) {
		runs, err := b.run(ctx, configs[step.Variant], f.warm)
		a.status.Clear()
		if err != nil {
			return nil, fmt.Errorf("variant %q: %w", variants[step.Variant], err)
		}
		for _, run := range runs {
			if err := report.Add(step, run); err != nil {
				return nil, err
			}
			if !f.quiet {
				fmt.Fprintln(a.status, report.Line(step, &run))
			}
		}
	}
	return report, nil
}
