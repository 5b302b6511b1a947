package main

import (
	"context"
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/bigmoe/bigmoe/engine/backend"
	"github.com/bigmoe/bigmoe/registry"
	"github.com/bigmoe/bigmoe/sdk/compute"
	"github.com/bigmoe/bigmoe/sdk/compute/memory"
	"github.com/bigmoe/bigmoe/sdk/dtype"
)

func (a *app) backendCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "backend",
		Short:   "List, add and publish compute backends",
		Example: `  bigmoe backend list`,
		Long: `A backend is a program that does the arithmetic of a model in a process of its own. The CPU backend is built in;
--backend PATH of the verb run takes another.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	var f storeFlags
	var asJSON, verbose bool
	list := &cobra.Command{
		Use:     "list [flags] [PATH...]",
		Short:   "Start the built-in backends, added ones and those at PATH, and ask what they can do",
		Example: `  bigmoe backend list bin/bigmoe-compute-cpu`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.backendList(cmd.Context(), &f, args, asJSON, verbose)
		},
	}
	f.add(list.Flags())
	list.Flags().BoolVar(&asJSON, "json", false, "a JSON list")
	list.Flags().BoolVarP(&verbose, "verbose", "v", false, "log what the backends do to standard error")
	cmd.AddCommand(list)
	cmd.AddCommand(a.backendStoreCommands()...)
	return cmd
}

// backendOutput is a backend as it describes itself.
type backendOutput struct {
	registry.Backend
	Version string   `json:"version"`
	Kernels string   `json:"kernels"`
	Ops     []string `json:"ops"`
	Types   []string `json:"types"`
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
	for _, path := range paths {
		b, err := r.FindBackend(path)
		if err != nil {
			return err
		}
		backends = append(backends, b)
	}
	list := make([]backendOutput, 0, len(backends))
	for _, b := range backends {
		d, err := a.describeBackend(ctx, b, verbose)
		if err != nil {
			return err
		}
		out := backendOutput{Backend: b, Version: d.Version, Kernels: d.Kernels, Ops: d.Ops}
		for _, t := range d.Types {
			out.Types = append(out.Types, dtype.Type(t).String())
		}
		list = append(list, out)
	}
	if asJSON {
		return writeJSON(a.stdout, list)
	}
	w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NAME\tKERNELS\tOPS\tTYPES\tORIGIN")
	for _, b := range list {
		fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s\n", b.Name, b.Kernels, len(b.Ops), strings.Join(b.Types, " "), b.Origin)
	}
	return w.Flush()
}

func (a *app) describeBackend(ctx context.Context, b registry.Backend, verbose bool) (*compute.Description, error) {
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
