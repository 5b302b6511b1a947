package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/bigmoe/bigmoe/engine/backend"
	"github.com/bigmoe/bigmoe/registry"
	"github.com/bigmoe/bigmoe/sdk/compute"
	"github.com/bigmoe/bigmoe/sdk/compute/conformance"
	"github.com/bigmoe/bigmoe/sdk/compute/memory"
	"github.com/bigmoe/bigmoe/sdk/dtype"
	"github.com/bigmoe/bigmoe/sdk/fault"
	"github.com/bigmoe/bigmoe/sdk/plan"
)

func (a *app) backendCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "backend",
		Short:   "List, check, add and publish compute backends",
		Example: `  bigmoe backend list`,
		Long: `A backend is a program that does the arithmetic of a model in a process of its own. The CPU backend is built in;
--backend PATH of the verb run takes another.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.backendListCommand(), a.backendCheckCommand())
	cmd.AddCommand(a.backendStoreCommands()...)
	return cmd
}

func (a *app) backendListCommand() *cobra.Command {
	var f storeFlags
	var asJSON, verbose bool
	list := &cobra.Command{
		Use:     "list [flags] [PATH...]",
		Short:   "Start the built-in backends, added ones and those at PATH, and ask what they can do",
		Example: `  bigmoe backend list bin/bigmoe-compute-cpu`,
		Long:    `Those that cannot be used on this machine are listed with the reason. The exit code is about those that were given by path.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.backendList(cmd.Context(), &f, args, asJSON, verbose)
		},
	}
	f.add(list.Flags())
	list.Flags().BoolVar(&asJSON, "json", false, "a JSON list")
	list.Flags().BoolVarP(&verbose, "verbose", "v", false, "log what the backends do to standard error")
	return list
}

// backendOutput is a backend as it describes itself, or why it cannot.
type backendOutput struct {
	Name       string   `json:"name"`
	Origin     string   `json:"origin"`
	Available  bool     `json:"available"`
	Why        string   `json:"why,omitempty"` // it is not available
	Version    string   `json:"version,omitempty"`
	Kernels    string   `json:"kernels,omitempty"`
	Threads    uint32   `json:"threads,omitempty"`
	PlanSchema uint32   `json:"plan_schema,omitempty"`
	Ops        []string `json:"ops,omitempty"`
	Types      []string `json:"types,omitempty"`
	Lacks      []string `json:"lacks,omitempty"` // ops that plans may have and this backend does not
}

func (a *app) backendList(ctx context.Context, f *storeFlags, paths []string, asJSON, verbose bool) error {
	r, _, err := (&modelFlags{storeFlags: *f}).registry()
	if err != nil {
		return err
	}
	backends, err := r.Backends()
	if err != nil {
		return err
	}
	known := len(backends)
	for _, path := range paths {
		b, err := r.FindBackend(path)
		if err != nil {
			b = registry.Backend{Name: path, Origin: path, Err: err}
		}
		backends = append(backends, b)
	}
	list := make([]backendOutput, 0, len(backends))
	var given error
	for i, b := range backends {
		out, err := a.describeBackend(ctx, b, verbose)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && i >= known && given == nil:
			given = err
		}
		list = append(list, out)
	}
	if asJSON {
		err = writeJSON(a.stdout, list)
	} else {
		err = writeBackends(a.stdout, list)
	}
	if err != nil {
		return err
	}
	return given
}

func writeBackends(to io.Writer, list []backendOutput) error {
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NAME\tKERNELS\tTHREADS\tOPS\tTYPES\tORIGIN")
	for _, b := range list {
		if b.Available {
			fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%s\t%s\n", b.Name, b.Kernels, b.Threads, len(b.Ops), strings.Join(b.Types, " "), b.Origin)
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, b := range list {
		switch {
		case !b.Available:
			fmt.Fprintf(to, "%s is not available: %s\n", b.Name, b.Why)
		case len(b.Lacks) > 0:
			fmt.Fprintf(to, "%s lacks %s\n", b.Name, strings.Join(b.Lacks, ", "))
		}
	}
	return nil
}

// describeBackend starts a backend for as long as it takes to ask what it can do.
func (a *app) describeBackend(ctx context.Context, b registry.Backend, verbose bool) (out backendOutput, err error) {
	out.Name, out.Origin = b.Name, b.Origin
	if err = b.Err; err == nil {
		var d *compute.Description
		if d, err = a.askBackend(ctx, b, verbose); err == nil {
			out.Available, out.Version, out.Kernels, out.Threads, out.PlanSchema, out.Ops = true, d.Version, d.Kernels, d.Threads, d.PlanSchema, d.Ops
			for _, t := range d.Types {
				out.Types = append(out.Types, dtype.Type(t).String())
			}
			for _, op := range plan.Ops() {
				if !slices.Contains(d.Ops, op.Kind) {
					out.Lacks = append(out.Lacks, op.Kind)
				}
			}
			return out, nil
		}
	}
	out.Why = err.Error()
	return out, err
}

func (a *app) askBackend(ctx context.Context, b registry.Backend, verbose bool) (*compute.Description, error) {
	mem, err := memory.Create(1) // a backend is always given memory, used or not
	if err != nil {
		return nil, err
	}
	defer mem.Close()
	p, err := backend.Start(ctx, backend.Options{Path: b.Path, Args: b.Args, SHA256: b.SHA256, Log: a.logger(verbose, !verbose), Memory: mem})
	if err != nil {
		return nil, err
	}
	return p.Describe(), p.Close()
}

func (a *app) backendCheckCommand() *cobra.Command {
	var f storeFlags
	var asJSON, all bool
	var only []string
	check := &cobra.Command{
		Use:   "check [flags] PATH [ARG...]",
		Short: "Hold a backend program against the contract that docs/backend.md describes",
		Example: `  bigmoe backend check ./my-backend
  bigmoe backend check reference`,
		Long: `Starts the program as the engine does and checks what it answers: every op and every type of weight with small plans and their
expected results, experts that arrive late or not at all, going back, requests that must be refused, memory, and all the ways to
end. What the backend says it cannot do is listed as unsupported and is no failure. PATH may also be the name of a known backend;
ARGs are the program's. The program runs with your rights. Exit code 4 when a check failed.`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.backendCheck(cmd.Context(), &f, args, only, asJSON, all)
		},
	}
	check.Flags().SetInterspersed(false)
	f.add(check.Flags())
	check.Flags().BoolVar(&asJSON, "json", false, "the report as a JSON object")
	check.Flags().StringSliceVar(&only, "only", nil, "`GROUPS` of checks to make, of "+strings.Join(conformance.Groups(), ", "))
	check.Flags().BoolVarP(&all, "all", "a", false, "list also the checks that passed")
	return check
}

func (a *app) backendCheck(ctx context.Context, f *storeFlags, args, only []string, asJSON, all bool) error {
	for _, group := range only {
		if !slices.Contains(conformance.Groups(), group) {
			return fault.Userf("--only %s: there are %s", group, strings.Join(conformance.Groups(), ", "))
		}
	}
	r, _, err := (&modelFlags{storeFlags: *f}).registry()
	if err != nil {
		return err
	}
	b, err := r.FindBackend(args[0])
	if err != nil {
		return err
	}
	if len(b.SHA256) > 0 { // an added one: the start compares its checksum
		if _, err := a.askBackend(ctx, b, false); err != nil {
			return err
		}
	}
	o := conformance.Options{Path: b.Path, Args: append(slices.Clone(b.Args), args[1:]...), Only: only}
	if !asJSON {
		o.Progress = func(c conformance.Check) { a.status.Set(func() string { return c.Group + ": " + c.Name }) }
	}
	report, err := conformance.Run(ctx, o)
	a.status.Clear()
	if err != nil {
		return err
	}
	if asJSON {
		err = writeJSON(a.stdout, report)
	} else {
		err = writeReport(a.stdout, report, all)
	}
	if n := report.Failed(); err == nil && n > 0 {
		err = fault.Unsupportedf("backend %s: %d of %d checks failed", args[0], n, len(report.Checks))
	}
	return err
}

func writeReport(to io.Writer, r *conformance.Report, all bool) error {
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	for _, c := range r.Checks {
		if all || c.Outcome != conformance.Pass {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", c.Outcome, c.Group, c.Name, c.Why)
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	name := "the program"
	if d := r.Backend; d != nil {
		name = fmt.Sprintf("%s %s (%s)", d.Name, d.Version, d.Kernels)
	}
	_, err := fmt.Fprintf(to, "%s: %d passed, %d failed, %d unsupported, %d skipped\n", name,
		r.Count(conformance.Pass), r.Failed(), r.Count(conformance.Unsupported), r.Count(conformance.Skipped))
	return err
}
