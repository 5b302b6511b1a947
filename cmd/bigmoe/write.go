package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/bigmoe/bigmoe/engine"
	"github.com/bigmoe/bigmoe/sdk/fault"
)

// writeFlags are those of the verbs that write a text.
type writeFlags struct {
	engineFlags
	samplingFlags
	promptFlags
	maxTokens int
	ignoreEOS bool
}

// addText adds what to write. It and addEngine are apart for a verb's own flags to come in between.
func (f *writeFlags) addText(fs *pflag.FlagSet) {
	f.promptFlags.add(fs)
	fs.IntVarP(&f.maxTokens, "max-tokens", "n", 0, "most `TOKENS` to write; 0: until the text ends or the context is full")
	fs.BoolVar(&f.ignoreEOS, "ignore-eos", false, "go on after a token that ends the text")
}

// addEngine adds how.
func (f *writeFlags) addEngine(fs *pflag.FlagSet) {
	f.engineFlags.add(fs, "f16")
	f.samplingFlags.add(fs)
}

// writing is what one of these verbs does while a text is written. begin and end must be there.
type writing struct {
	config func(*engine.Config)                                          // changes what the flags say
	begin  func(*engine.Engine, *task) (func(engine.Token) error, error) // returns what gets the tokens
	end    func(error) error                                             // comes after the last token; its error is that of the verb
	report func(*runOutput) error                                        // gets the figures, before people do
}

// write writes a text with a model. Interrupted, it reports what there is so far.
func (a *app) write(cmd *cobra.Command, f *writeFlags, args []string, w writing) error {
	if err := exclusive(cmd); err != nil {
		return err
	}
	if f.maxTokens < 0 {
		return fault.Userf("--max-tokens %d: expected 0 or more", f.maxTokens)
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
	if w.config != nil {
		w.config(&cfg)
	}
	ctx := cmd.Context()
	return withEngine(ctx, cfg, func(e *engine.Engine, load time.Duration) error {
		out := runOutput{LoadSeconds: load.Seconds()}
		params, err := f.params(cmd.Flags(), e.File, e.Context)
		if err != nil {
			return err
		}
		out.Sampling, out.random = describe(params), seedText(params)
		emit, err := w.begin(e, &t)
		if err != nil {
			return err
		}
		res, err := e.NewSession().Generate(ctx, engine.Request{
			Prompt: t.prompt, MaxTokens: f.maxTokens, Sampling: params, IgnoreEnd: f.ignoreEOS,
		}, emit)
		a.status.Clear()
		err = w.end(err)
		out.Interrupted = ctx.Err() != nil
		if res == nil || (err != nil && !out.Interrupted) {
			return err
		}
		out.take(res, e)
		out.Policy = f.policy.value // by the name it was asked for
		return errors.Join(err, a.report(&out, f.quiet, w.report))
	})
}

// report shows what a text took: to the verb, and to people.
func (a *app) report(out *runOutput, quiet bool, verb func(*runOutput) error) error {
	if verb != nil {
		if err := verb(out); err != nil {
			return err
		}
	}
	for _, lossy := range out.Report.Lossy {
		fmt.Fprintf(a.status, "lossy: %s: the text is not the one of the whole model\n", lossy)
	}
	if !quiet {
		out.summary(a.status)
	}
	return nil
}

// withEngine opens an engine for f, which also learns how long that took, and closes it.
func withEngine(ctx context.Context, cfg engine.Config, f func(e *engine.Engine, load time.Duration) error) (err error) {
	start := time.Now()
	e, err := engine.Open(ctx, cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	return f(e, time.Since(start))
}
