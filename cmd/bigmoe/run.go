package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/bigmoe/bigmoe/cmd/bigmoe/internal/term"
	"github.com/bigmoe/bigmoe/engine"
	"github.com/bigmoe/bigmoe/engine/budget"
	"github.com/bigmoe/bigmoe/sdk/fault"
)

type runFlags struct {
	engineFlags
	samplingFlags
	promptFlags
	maxTokens int
	ignoreEOS bool
	json      bool
}

func (a *app) runCommand() *cobra.Command {
	f := &runFlags{}
	cmd := &cobra.Command{
		Use:     "run [flags] [PROMPT]",
		Short:   "Write text with a model",
		Example: `  bigmoe run -m Qwen3-30B-A3B-Q4_K_M.gguf --mem 6G -n 200 "The sea was calm until"`,
		Long: `The text goes to standard output as it comes, progress and a summary to standard error. The prompt is the argument, -p,
the contents of -f, or standard input; it is continued as it is, without a chat template. Special tokens that it spells
are recognised. Ctrl-C stops the text and still prints the summary.

Without -m the built-in demo model is run, with a deliberately small cache so that experts are streamed.

The text depends on model, prompt, sampling flags, --kv, --experts-used and the backend. It does not depend on memory,
cache, policy, batches, I/O or threads.`,
		RunE: func(cmd *cobra.Command, args []string) error { return a.run(cmd, f, args) },
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	f.promptFlags.add(fs)
	fs.IntVarP(&f.maxTokens, "max-tokens", "n", 0, "most `TOKENS` to write; 0: until the text ends or the context is full")
	fs.BoolVar(&f.ignoreEOS, "ignore-eos", false, "go on after a token that ends the text")
	fs.BoolVar(&f.json, "json", false, "one JSON object on standard output: text, tokens and all figures")
	f.engineFlags.add(fs, "f16")
	f.samplingFlags.add(fs)
	return cmd
}

func (a *app) run(cmd *cobra.Command, f *runFlags, args []string) (err error) {
	ctx := cmd.Context()
	if err := exclusive(cmd); err != nil {
		return err
	}
	if f.maxTokens < 0 {
		return fault.Userf("--max-tokens %d: expected 0 or more", f.maxTokens)
	}
	if len(args) == 1 && f.model == "" && strings.HasSuffix(args[0], ".gguf") {
		return fault.Userf("%s looks like a model: give it with -m", args[0])
	}
	if _, err := f.params(cmd.Flags(), nil, 0); err != nil { // before anything is loaded
		return err
	}
	t, err := a.task(cmd, &f.promptFlags, f.model, args)
	if err != nil {
		return err
	}
	defer t.remove()
	cfg, err := t.config(a, &f.engineFlags)
	if err != nil {
		return err
	}

	start := time.Now()
	e, err := engine.Open(ctx, cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	out := runOutput{LoadSeconds: time.Since(start).Seconds()}
	params, err := f.params(cmd.Flags(), e.File, e.Context)
	if err != nil {
		return err
	}
	out.Sampling, out.random = describe(params), seedText(params)

	if !t.found && !f.quiet {
		fmt.Fprintf(a.status, "demo model, prompt: %s\n", t.prompt)
	}
	text, decode := term.NewText(a.stdout), time.Time{}
	count := 0
	res, err := e.NewSession().Generate(ctx, engine.Request{
		Prompt: t.prompt, MaxTokens: f.maxTokens, Sampling: params, IgnoreEnd: f.ignoreEOS,
	}, func(t engine.Token) error {
		out.Text += t.Text
		if decode.IsZero() {
			decode = time.Now()
		}
		count++
		if !f.json {
			if text.Terminal() {
				a.status.Clear() // the text itself is the progress
			}
			if _, err := text.WriteString(t.Text); err != nil {
				return err
			}
		}
		if (f.json || !text.Terminal()) && !f.quiet {
			a.status.Set(func() string {
				return fmt.Sprintf("decode %d tokens, %.1f tok/s", count, float64(count-1)/max(time.Since(decode).Seconds(), 1e-9))
			})
		}
		return nil
	})
	a.status.Clear()
	if werr := text.EndLine(); err == nil {
		err = werr
	}
	out.Interrupted = ctx.Err() != nil
	if res == nil || (err != nil && !out.Interrupted) {
		return err
	}
	out.take(res, e)
	out.Policy = f.policy.value // by the name it was asked for
	if f.json {
		if err := writeJSON(a.stdout, &out); err != nil {
			return err
		}
	}
	for _, lossy := range out.Report.Lossy {
		fmt.Fprintf(a.status, "lossy: %s: the text is not the one of the whole model\n", lossy)
	}
	if !f.quiet {
		out.summary(a.status)
	}
	return err
}

// progress returns what shows loading and prefill on the status line.
func (a *app) progress(quiet bool) func(engine.Progress) {
	if quiet {
		return nil
	}
	return func(p engine.Progress) {
		a.status.Set(func() string {
			bar := term.Bar(p.Done, p.Total)
			if p.Phase == engine.PhaseLoad {
				return fmt.Sprintf("load    %s %s of %s", bar, budget.Size(p.Done), budget.Size(p.Total))
			}
			return fmt.Sprintf("prefill %s %d of %d tokens", bar, p.Done, p.Total)
		})
	}
}

// runOutput is what --json prints, and what the summary is made of.
type runOutput struct {
	Text string `json:"text"`
	*engine.Result
	Interrupted bool           `json:"interrupted,omitempty"`
	Sampling    map[string]any `json:"sampling"`
	LoadSeconds float64        `json:"load_seconds"`
	Prefill     speed          `json:"prefill"` // instead of the one in Result
	Decode      speed          `json:"decode"`
	ExpertBytes int64          `json:"expert_bytes"` // all experts of the model
	engine.Report

	random string
}

// speed is a cost with the figures that people compare.
type speed struct {
	engine.Cost
	TokensPerSecond  float64 `json:"tokens_per_second"`
	HitRate          float64 `json:"hit_rate"`
	MissMiBPerToken  float64 `json:"miss_mib_per_token"`
	ReadMiBPerToken  float64 `json:"read_mib_per_token"`
	StallShareOfTime float64 `json:"stall_share"`
}

func speedOf(c engine.Cost) speed {
	s := speed{Cost: c, TokensPerSecond: c.TokensPerSecond(), HitRate: c.HitRate()}
	if c.Tokens > 0 {
		s.MissMiBPerToken = float64(c.MissBytes) / (1 << 20) / float64(c.Tokens)
		s.ReadMiBPerToken = float64(c.ReadBytes) / (1 << 20) / float64(c.Tokens)
	}
	if c.Seconds > 0 {
		s.StallShareOfTime = c.StallSeconds / c.Seconds
	}
	return s
}

func (o *runOutput) take(res *engine.Result, e *engine.Engine) {
	o.Result, o.Report = res, e.Report()
	o.Prefill, o.Decode = speedOf(res.Prefill), speedOf(res.Decode)
	o.ExpertBytes = e.Model.ExpertBytes()
}

// summary prints the figures for people.
func (o *runOutput) summary(w io.Writer) {
	line := func(name, format string, args ...any) {
		fmt.Fprintf(w, "%-8s %s\n", name, fmt.Sprintf(format, args...))
	}
	line("load", "%.2f s", o.LoadSeconds)
	phase := func(name string, s speed) {
		if s.Tokens == 0 {
			return
		}
		if o.ExpertBytes == 0 {
			line(name, "%d tokens in %.2f s: %.2f tok/s", s.Tokens, s.Seconds, s.TokensPerSecond)
			return
		}
		line(name, "%d tokens in %.2f s: %.2f tok/s, hit rate %.1f %%, %.2f MiB per token, stalled %.0f %% of the time",
			s.Tokens, s.Seconds, s.TokensPerSecond, 100*s.HitRate, s.MissMiBPerToken, 100*s.StallShareOfTime)
	}
	phase("prefill", o.Prefill)
	phase("decode", o.Decode)
	if o.ExpertBytes > 0 {
		line("cache", "%s of %s of experts (%.0f %%), %s, %s I/O%s", budget.Size(o.Budget.CacheBytes), budget.Size(o.ExpertBytes),
			100*float64(o.Budget.CacheBytes)/float64(o.ExpertBytes), o.Policy, o.IO, because(o.IOReason))
	}
	peak := "peak unknown"
	if o.PeakBytes > 0 {
		peak = budget.Size(o.PeakBytes) + " at peak"
	}
	line("memory", "%s of %s allowed, both processes", peak, budget.Size(o.Budget.LimitBytes))
	line("backend", "%s (%s), %d threads, context %d, %s", o.Backend, o.Kernels, o.Threads, o.Context, o.random)
	if o.Interrupted {
		line("stopped", "interrupted after %d tokens", len(o.Tokens))
	} else {
		line("stopped", "%s", map[engine.StopReason]string{
			engine.StopEnd: "the model ended the text", engine.StopLength: "--max-tokens reached", engine.StopContext: "the context is full",
		}[o.Stop])
	}
}

func because(reason string) string {
	if reason == "" {
		return ""
	}
	return " (" + reason + ")"
}

// writeJSON writes v on lines of its own, readable by people too.
func writeJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}
