package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/bigmoe/bigmoe/cmd/bigmoe/internal/recipekit"
	"github.com/bigmoe/bigmoe/engine/budget"
)

func (a *app) recipeNewCommand() *cobra.Command {
	var names []string
	for _, l := range recipekit.Languages {
		names = append(names, l.Name)
	}
	lang := choice{names[0], names}
	cmd := &cobra.Command{
		Use:     "new [flags] FOLDER",
		Short:   "Write the folder of a new recipe, which builds at once",
		Example: `  bigmoe recipe new olmoe && bigmoe recipe build olmoe && bigmoe recipe check olmoe`,
		Long: `The folder is called as the architecture is (general.architecture of its models). It gets the sources of a plain mixture of
experts to change, the library they need, a README, and an outline of a model to check against. Nothing is downloaded, then or
when it is built. docs/tutorial-recipe.md goes on from there.`,
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			l, err := recipekit.LanguageOf(lang.value)
			if err != nil {
				return err
			}
			if err := recipekit.New(args[0], l); err != nil {
				return err
			}
			_, err = fmt.Fprintf(a.stdout, "%s: now edit %s, then bigmoe recipe build %[1]s\n", args[0], l.Main)
			return err
		},
	}
	cmd.Flags().Var(&lang, "lang", "language: "+strings.Join(names, ", "))
	return cmd
}

func (a *app) recipeBuildCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "build [FOLDER]",
		Short:   "Compile a recipe to WebAssembly",
		Example: `  bigmoe recipe build olmoe`,
		Long: `Writes FOLDER/NAME.wasm, where NAME is that of the folder; without FOLDER the current one. Go (.go), C (.c) or Rust (.rs) is told
from the sources; its compiler has to be in PATH. The same sources and compiler give the same bytes.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.recipeBuild(cmd.Context(), append(args, ".")[0], asJSON)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "one JSON object")
	return cmd
}

func (a *app) recipeBuild(ctx context.Context, dir string, asJSON bool) error {
	built, err := recipekit.Build(ctx, dir)
	if err != nil {
		return err
	}
	if asJSON {
		return writeJSON(a.stdout, built)
	}
	_, err = fmt.Fprintf(a.stdout, "%s: %s, sha256 %s\n", built.Module, budget.Size(int64(built.Bytes)), built.SHA256)
	return err
}
