package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/bigmoe/bigmoe/cmd/bigmoe/internal/term"
	"github.com/bigmoe/bigmoe/sdk/fault"
)

// app is one run of the program.
type app struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	lookupEnv      func(string) (string, bool)

	status *term.Status // on stderr; also the writer for everything else that goes there
	begun  bool         // the command line is understood: what fails from now on is the verb
}

// Exit codes beside those of [fault.Kind].
const (
	exitInterrupted = 130 // 128 + SIGINT, as shells have it
	exitTerminated  = 143
	exitBrokenPipe  = 141
)

// signalled is the cause of a context that a signal ended.
type signalled struct{ os.Signal }

func (s signalled) Error() string { return "stopped by " + s.String() }

// interrupts returns a context that the first SIGINT or SIGTERM ends; the second one ends the process. Writing to a
// closed pipe becomes an error instead of a death that would leave temporary files behind.
func interrupts() (context.Context, func()) {
	signal.Ignore(syscall.SIGPIPE)
	ctx, cancel := context.WithCancelCause(context.Background())
	ch := make(chan os.Signal, 2)
	signal.Notify(ch, os.Interrupt, syscall.SIGTERM)
	go func() {
		cancel(signalled{<-ch})
		<-ch
		os.Exit(exitInterrupted)
	}()
	return ctx, func() { signal.Stop(ch) }
}

// execute runs the command line and returns the exit code.
func (a *app) execute(ctx context.Context, args []string) (code int) {
	a.status = term.NewStatus(a.stderr)
	a.stdout = term.Safe(a.stdout) // models, recipes and registries have a say in what is printed
	defer func() {
		if r := recover(); r != nil {
			fmt.Fprintf(a.status, "bigmoe: %v\nthis is a bug in bigmoe; please report it with what follows\n\n%s", r, debug.Stack())
			code = fault.Bug.ExitCode()
		}
	}()
	root := a.root()
	root.SetArgs(args)
	root.SetIn(a.stdin)
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	cmd, err := root.ExecuteContextC(ctx)
	a.status.Clear()
	var sig signalled
	switch {
	case errors.As(context.Cause(ctx), &sig):
		if sig.Signal == syscall.SIGTERM {
			return exitTerminated
		}
		return exitInterrupted
	case err == nil:
		return 0
	case errors.Is(err, syscall.EPIPE): // nobody reads on: no reason to complain
		return exitBrokenPipe
	}
	fmt.Fprintf(a.status, "bigmoe: %s\n", strings.TrimSpace(err.Error()))
	if !a.begun {
		fmt.Fprintf(a.status, "run '%s --help' for how to use it\n", cmd.CommandPath())
		err = fault.As(fault.User, err)
	}
	kind := fault.KindOf(err)
	if kind == fault.Bug {
		fmt.Fprintln(a.status, "this is a bug in bigmoe; please report it")
	}
	return kind.ExitCode()
}

const (
	groupMain      = "main"
	groupEngineers = "engineers"
)

// helpTemplate answers in the order in which people ask: what, how, an example, then the details.
const helpTemplate = `{{.Short}}

Usage:
  {{if .Runnable}}{{.UseLine}}{{else}}{{.CommandPath}} COMMAND{{end}}
{{- with .Example}}

Example:
{{.}}{{end}}
{{- with .Long}}

{{.}}{{end}}
{{- range $group := .Groups}}

{{.Title}}
{{- range $.Commands}}{{if and .IsAvailableCommand (eq .GroupID $group.ID)}}
  {{rpad .Name .NamePadding}} {{.Short}}{{end}}{{end}}{{end}}
{{- if and .HasAvailableSubCommands (not .Groups)}}

Commands:
{{- range .Commands}}{{if .IsAvailableCommand}}
  {{rpad .Name .NamePadding}} {{.Short}}{{end}}{{end}}{{end}}
{{- if .HasAvailableLocalFlags}}

Flags:
{{.LocalFlags.FlagUsages | trimTrailingWhitespaces}}{{end}}
`

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "bigmoe",
		Short: "Run mixture-of-experts language models that are larger than memory",
		Example: `  bigmoe run                                        # the built-in demo model
  bigmoe run -m model.gguf --mem 6G "Dear diary,"`,
		Long: `The dense weights stay in memory, the experts stay on the SSD and are read just in time into a bounded cache.

Every flag can be set by the environment instead: --io-threads is BIGMOE_IO_THREADS. A flag on the command line wins.
Exit codes: 2 a mistake in the request, 3 a corrupt file, 4 not supported, 70 a bug, 1 anything else, 130 interrupted.`,
		SilenceErrors: true,
		SilenceUsage:  true,
		PersistentPreRunE: func(cmd *cobra.Command, args []string) error {
			if err := a.fromEnvironment(cmd, args); err != nil {
				return err
			}
			a.begun = true
			return nil
		},
	}
	root.SetHelpTemplate(helpTemplate)
	root.SetUsageFunc(func(*cobra.Command) error { return nil })
	root.CompletionOptions.SetDefaultShellCompDirective(cobra.ShellCompDirectiveDefault)
	root.AddGroup(&cobra.Group{ID: groupMain, Title: "Commands:"}, &cobra.Group{ID: groupEngineers, Title: "For engineers:"})
	root.SetHelpCommandGroupID(groupMain)
	root.SetCompletionCommandGroupID(groupMain)
	for _, cmd := range []*cobra.Command{a.runCommand(), a.inspectCommand(), a.checkCommand(), a.recipeCommand(), a.backendCommand(), a.versionCommand()} {
		cmd.GroupID = groupMain
		root.AddCommand(cmd)
	}
	for _, cmd := range []*cobra.Command{a.benchCommand(), a.evalCommand(), a.traceCommand(), a.replayCommand(), a.tokenizeCommand(), a.detokenizeCommand()} {
		cmd.GroupID = groupEngineers
		root.AddCommand(cmd)
	}
	root.AddCommand(computeCommand())
	return root
}

// rivals are flags that exclude each other: one given on the command line silences the other's variable.
var rivals = [][]string{{"prompt", "file"}, {"greedy", "temp"}, {"vary", "config"}}

// envName is the variable that stands for a flag.
func envName(flag string) string {
	return "BIGMOE_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// fromEnvironment sets the flags that the command line left alone.
func (a *app) fromEnvironment(cmd *cobra.Command, args []string) error {
	given := map[string]bool{"help": true, flagYes: true}
	if len(args) > 0 { // the prompt, if the verb takes one
		given["prompt"], given["file"] = true, true
	}
	cmd.Flags().Visit(func(f *pflag.Flag) {
		given[f.Name] = true
		for _, names := range rivals {
			if names[0] == f.Name || names[1] == f.Name {
				given[names[0]], given[names[1]] = true, true
			}
		}
	})
	var err error
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		value, ok := a.lookupEnv(envName(f.Name))
		if !ok || value == "" || given[f.Name] || err != nil {
			return
		}
		if e := cmd.Flags().Set(f.Name, value); e != nil {
			err = fault.Userf("environment variable %s: %w", envName(f.Name), e)
		}
	})
	return err
}

// exclusive refuses flags that contradict each other.
func exclusive(cmd *cobra.Command) error {
	for _, names := range rivals {
		if cmd.Flags().Changed(names[0]) && cmd.Flags().Changed(names[1]) {
			return fault.Userf("--%s and --%s exclude each other", names[0], names[1])
		}
	}
	return nil
}
