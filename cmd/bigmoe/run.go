package main

import (
	"cmp"
	"encoding/json"
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
	writeFlags
	json bool
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
	f.addText(fs)
	fs.BoolVar(&f.json, "json", false, "one JSON object on standard output: text, tokens and all figures")
	f.addEngine(fs)
	return cmd
}

func (a *app) run(cmd *cobra.Command, f *runFlags, args []string) error {
	if len(args) == 1 && f.model == "" && strings.HasSuffix(args[0], ".gguf") {
		return fault.Userf("%s looks like a model: give it with -m", args[0])
	}
	text, terminal, decode := term.NewText(a.stdout), term.Is(a.stdout), time.Time{}
	count := 0
	emit := func(t engine.Token) error {
		if decode.IsZero() {
			decode = time.Now()
		}
		count++
		if !f.json {
			if terminal {
				a.status.Clear() // the text itself is the progress
			}
			if _, err := text.WriteString(t.Text); err != nil {
				return err
			}
		}
		if (f.json || !terminal) && !f.quiet {
			a.status.Set(func() string {
				return fmt.Sprintf("decode %d tokens, %.1f tok/s", count, float64(count-1)/max(time.Since(decode).Seconds(), 1e-9))
			})
		}
		return nil
	}
	return a.write(cmd, &f.writeFlags, args, writing{
		config: func(cfg *engine.Config) { cfg.UsageDir = f.usageDir(usageFolder()) },
		begin: func(_ *engine.Engine, t *task) (func(engine.Token) error, error) {
			if !t.found && !f.quiet {
				fmt.Fprintf(a.status, "demo model, prompt: %s\n", t.prompt)
			}
			return emit, nil
		},
		end: func(err error) error { return cmp.Or(err, text.EndLine()) },
		report: func(out *runOutput) error {
			if !f.json {
				return nil
			}
			return writeJSON(a.stdout, out)
		},
	})
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
