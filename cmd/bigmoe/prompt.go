package main

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/bigmoe/bigmoe/cmd/bigmoe/internal/demo"
	"github.com/bigmoe/bigmoe/cmd/bigmoe/internal/term"
	"github.com/bigmoe/bigmoe/engine"
	"github.com/bigmoe/bigmoe/sdk/fault"
)

// maxInputBytes bounds what is read as a prompt or as token ids. No context takes as much.
const maxInputBytes = 64 << 20

// stdinNotice is how long a person may wonder why nothing happens.
const stdinNotice = time.Second

// promptFlags say where the prompt is.
type promptFlags struct{ prompt, file string }

func (f *promptFlags) add(fs *pflag.FlagSet) {
	fs.StringVarP(&f.prompt, "prompt", "p", "", "the prompt")
	fs.StringVarP(&f.file, "file", "f", "", "`FILE` with the prompt; - is standard input")
}

// task is a prompt and the model that shall go on from it.
type task struct {
	prompt string
	found  bool // false: nobody gave one, it is the demo's
	path   string
	isDemo bool
	remove func() // takes away what was made for the model
}

// task finds prompt and model of a verb that writes text.
func (a *app) task(cmd *cobra.Command, f *promptFlags, model string, args []string) (t task, err error) {
	if t.prompt, t.found, err = a.prompt(cmd.Context(), f.prompt, cmd.Flags().Changed("prompt"), f.file, args); err != nil {
		return t, err
	}
	if !t.found && model != "" {
		return t, errNoPrompt
	}
	if !t.found {
		t.prompt = demo.Prompt
	}
	t.path, t.isDemo, t.remove, err = modelPath(model)
	return t, err
}

// config returns the engine's configuration by flags f, with progress shown.
func (t *task) config(a *app, f *engineFlags) (engine.Config, error) {
	cfg, err := f.config(a, t.path)
	if t.isDemo {
		limitDemo(&cfg)
	}
	cfg.Progress = a.progress(f.quiet)
	return cfg, err
}

var errNoPrompt = fault.Userf("no prompt: give one as argument, with -p or -f, or on standard input")

// prompt finds the prompt: -p, the argument, -f, or standard input, which "-" asks for and which is also taken when it
// is a pipe or file and nothing else was given. found is false when there is none. One newline at the end of a file or
// of standard input is not part of the prompt.
func (a *app) prompt(ctx context.Context, text string, textGiven bool, file string, args []string) (prompt string, found bool, err error) {
	switch {
	case len(args) > 1:
		return "", false, fault.Userf("%d prompts given, expected one: put it in quotes", len(args))
	case len(args) == 1 && (textGiven || file != ""):
		return "", false, fault.Userf("a prompt as argument and by a flag: give one of them")
	case len(args) == 1 && args[0] != "-":
		return args[0], true, nil
	case textGiven:
		return text, true, nil
	case file != "" && file != "-":
		prompt, err := readFile(file)
		return strings.TrimSuffix(prompt, "\n"), true, err
	case len(args) == 0 && file == "" && !a.piped():
		return "", false, nil
	}
	prompt, err = a.readStdin(ctx, "the prompt")
	return strings.TrimSuffix(prompt, "\n"), prompt != "" || len(args) == 1 || file == "-", err
}

// piped reports whether standard input is something to read rather than a person or nothing.
func (a *app) piped() bool {
	f, ok := a.stdin.(*os.File)
	if !ok {
		return true
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&fs.ModeCharDevice == 0 && !term.Is(f)
}

// readStdin reads all of standard input. If that takes long it says what it is waiting for.
func (a *app) readStdin(ctx context.Context, what string) (string, error) {
	type result struct {
		data []byte
		err  error
	}
	done := make(chan result, 1)
	go func() {
		data, err := io.ReadAll(io.LimitReader(a.stdin, maxInputBytes+1))
		done <- result{data, err}
	}()
	notice := time.After(stdinNotice)
	for {
		select {
		case r := <-done:
			if len(r.data) > maxInputBytes {
				r.err = fault.Userf("more than %d bytes", maxInputBytes)
			}
			if r.err != nil {
				return "", fmt.Errorf("standard input: %w", r.err)
			}
			return string(r.data), nil
		case <-notice:
			fmt.Fprintf(a.status, "bigmoe: waiting for %s on standard input\n", what)
		case <-ctx.Done():
			return "", context.Cause(ctx)
		}
	}
}

// readFile reads a file that the command line names, "-" excluded.
func readFile(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", fault.As(fault.User, err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxInputBytes+1))
	if err == nil && len(data) > maxInputBytes {
		err = fault.Userf("%s: more than %d bytes", path, maxInputBytes)
	}
	return string(data), fault.As(fault.User, err)
}
