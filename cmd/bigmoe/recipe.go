package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/bigmoe/bigmoe/cmd/bigmoe/internal/recipekit"
	"github.com/bigmoe/bigmoe/engine/budget"
	"github.com/bigmoe/bigmoe/registry"
	"github.com/bigmoe/bigmoe/sdk/fault"
)

func (a *app) recipeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "recipe",
		Short:   "List, write, check, add and publish recipes",
		Example: `  bigmoe recipe plan model.gguf`,
		Long: `A recipe is a WebAssembly module that knows one architecture: it looks at the metadata of a model file and answers with a
plan, which says what stays in memory, what is streamed and what is computed.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.recipeListCommand(), a.recipeNewCommand(), a.recipeBuildCommand(), a.recipeCheckCommand(), a.recipePlanCommand(),
		a.recipeDiffCommand(), a.recipeOutlineCommand())
	cmd.AddCommand(a.recipeStoreCommands()...)
	return cmd
}

// recipeModule returns the path of the module that target means: a file, or the folder of a recipe that was built.
func recipeModule(target string) (module string, isFolder bool, err error) {
	info, err := os.Stat(target)
	if err != nil || !info.IsDir() {
		return target, false, fault.As(fault.User, err)
	}
	if module, err = recipekit.Module(target); err != nil {
		return "", true, err
	}
	if _, err := os.Stat(module); errors.Is(err, fs.ErrNotExist) {
		return "", true, fault.Userf("%s does not exist: bigmoe recipe build %s makes it", module, target)
	}
	return module, true, nil
}

// unread says which keys of an architecture a recipe does not read, "" if it reads all.
func unread(architecture string, keys []string) string {
	if len(keys) == 0 {
		return ""
	}
	var short []string
	for _, key := range keys {
		short = append(short, strings.TrimPrefix(key, architecture+"."))
	}
	return fmt.Sprintf("keys of %s.* not read: %s", architecture, strings.Join(short, ", "))
}

func (a *app) recipeListCommand() *cobra.Command {
	var f modelFlags
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "list [flags]",
		Short:   "List the recipes that can be found",
		Example: `  bigmoe recipe list --recipes ~/recipes`,
		Long: `Recipes in folders come before built-in ones of the same name, and those before added ones. Those that are damaged are listed
with the reason.`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return a.recipeList(&f, asJSON) },
	}
	f.addFolders(cmd.Flags())
	cmd.Flags().BoolVar(&asJSON, "json", false, "a JSON list")
	return cmd
}

// recipeOutput is a recipe, or why it cannot be used.
type recipeOutput struct {
	registry.Recipe
	Why string `json:"why,omitempty"`
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
		out := []recipeOutput{}
		for _, e := range list {
			out = append(out, recipeOutput{e, text(e.Err)})
		}
		return writeJSON(a.stdout, out)
	}
	w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NAME\tSIZE\tSHA256\tORIGIN")
	for _, e := range list {
		if e.Err == nil {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", e.Name, budget.Size(int64(e.Bytes)), e.SHA256[:16], e.Origin)
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, e := range list {
		if e.Err != nil {
			fmt.Fprintf(a.stdout, "%s (%s) cannot be used: %v\n", e.Name, e.Origin, e.Err)
		}
	}
	return nil
}

// text is what an error says, "" if there is none.
func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
