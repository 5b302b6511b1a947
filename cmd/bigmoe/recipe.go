package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/bigmoe/bigmoe/engine"
	"github.com/bigmoe/bigmoe/engine/budget"
)

func (a *app) recipeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "recipe",
		Short:   "List, add and publish recipes, or show the plan that one makes",
		Example: `  bigmoe recipe plan model.gguf`,
		Long: `A recipe is a WebAssembly module that knows one architecture: it looks at the metadata of a model file and answers with a
plan, which says what stays in memory, what is streamed and what is computed.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.recipeListCommand(), a.recipePlanCommand())
	cmd.AddCommand(a.recipeStoreCommands()...)
	return cmd
}

func (a *app) recipeListCommand() *cobra.Command {
	var f modelFlags
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "list [flags]",
		Short:   "List the recipes that can be found",
		Example: `  bigmoe recipe list --recipes ~/recipes`,
		Long:    `Recipes in folders come before built-in ones of the same name, and those before added ones.`,
		Args:    cobra.NoArgs,
		RunE:    func(*cobra.Command, []string) error { return a.recipeList(&f, asJSON) },
	}
	f.addRecipe(cmd.Flags())
	cmd.Flags().BoolVar(&asJSON, "json", false, "a JSON list")
	return cmd
}

func (a *app) recipeList(f *modelFlags, asJSON bool) error {
	r, _, err := f.registry()
	if err != nil {
		return err
	}
	list, err := r.Recipes()
	if err != nil {
		return err
	}
	if asJSON {
		return writeJSON(a.stdout, list)
	}
	w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NAME\tSIZE\tSHA256\tORIGIN")
	for _, e := range list {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", e.Name, budget.Size(int64(e.Bytes)), e.SHA256[:16], e.Origin)
	}
	return w.Flush()
}

func (a *app) recipePlanCommand() *cobra.Command {
	var f modelFlags
	var expertsUsed int
	cmd := &cobra.Command{
		Use:     "plan [flags] [MODEL]",
		Short:   "Print the plan that a recipe makes for a model, as JSON",
		Example: `  bigmoe recipe plan --recipe ./mine.wasm model.gguf`,
		Long: `The plan has been checked against the file: every tensor is used or listed as unused, with the type and shape it should
have. docs/plan.md explains it. Without MODEL the built-in demo model is taken.`,
		Args: modelArgument,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				f.model = args[0]
			}
			return a.recipePlan(cmd.Context(), &f, expertsUsed)
		},
	}
	f.addRecipe(cmd.Flags())
	cmd.Flags().IntVar(&expertsUsed, "experts-used", 0, "experts per token and layer instead of the model's own `NUMBER`")
	return cmd
}

func (a *app) recipePlan(ctx context.Context, f *modelFlags, expertsUsed int) error {
	path, _, remove, err := modelPath(f.model)
	if err != nil {
		return err
	}
	defer remove()
	r, name, err := f.registry()
	if err != nil {
		return err
	}
	o, err := engine.Inspect(ctx, engine.Config{Model: path, Recipe: name, Recipes: r, ExpertsUsed: expertsUsed, Log: a.logger(false, false)})
	if err != nil {
		return err
	}
	defer o.File.Close()
	text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(o.Plan)
	if err != nil {
		return err
	}
	// protojson varies its white space on purpose; the same plan should be the same text.
	var out bytes.Buffer
	if err := json.Indent(&out, text, "", "  "); err != nil {
		return err
	}
	out.WriteByte('\n')
	_, err = out.WriteTo(a.stdout)
	return err
}
