package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/bigmoe/bigmoe/cmd/bigmoe/internal/plantext"
	"github.com/bigmoe/bigmoe/engine"
	"github.com/bigmoe/bigmoe/engine/gguf"
	"github.com/bigmoe/bigmoe/engine/gguf/outline"
	"github.com/bigmoe/bigmoe/sdk/fault"
	"github.com/bigmoe/bigmoe/sdk/plan"
)

func (a *app) recipePlanCommand() *cobra.Command {
	var f modelFlags
	var expertsUsed int
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "plan [flags] [MODEL]",
		Short:   "Print the plan that a recipe makes for a model",
		Example: `  bigmoe recipe plan --recipe ./mine.wasm model.gguf`,
		Long: `The plan has been checked against the file: every tensor is used or listed as unused, with the type and shape it should
have. Layers that do the same are printed once, with names shortened: ^h is the value h of the block before. Keys of the
architecture that the recipe does not read are listed at the end. --json prints the plan itself, which docs/plan.md explains.
MODEL may be the outline of a model; without it the built-in demo model is taken.`,
		Args: modelArgument,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				f.model = args[0]
			}
			o, err := a.plan(cmd.Context(), &f, expertsUsed)
			if err != nil {
				return err
			}
			if asJSON {
				return a.writePlan(o.Plan)
			}
			text := plantext.Text(o.Plan)
			if keys := unread(o.Plan.Architecture, o.Unread); keys != "" {
				text += "\n" + keys + "\n"
			}
			_, err = fmt.Fprint(a.stdout, text)
			return err
		},
	}
	f.addRecipe(cmd.Flags())
	cmd.Flags().IntVar(&expertsUsed, "experts-used", 0, "experts per token and layer instead of the model's own `NUMBER`")
	cmd.Flags().BoolVar(&asJSON, "json", false, "the plan as JSON")
	return cmd
}

// plan returns the plan that the recipe asked for makes for the model asked for. The file is closed.
func (a *app) plan(ctx context.Context, f *modelFlags, expertsUsed int) (*engine.Opened, error) {
	path, remove, err := modelOrOutline(f.model)
	if err != nil {
		return nil, err
	}
	defer remove()
	r, name, err := f.registry()
	if err != nil {
		return nil, err
	}
	o, err := engine.Plan(ctx, engine.Config{Model: path, Recipe: name, Recipes: r, ExpertsUsed: expertsUsed, Log: a.logger(false, false)})
	if err != nil {
		return nil, renamed{err, path, f.model}
	}
	return o, o.Close()
}

// modelOrOutline is modelPath for verbs that need no weights: a file called .json is the outline of a model.
func modelOrOutline(given string) (path string, remove func(), err error) {
	if !strings.HasSuffix(given, ".json") {
		path, _, remove, err = modelPath(given)
		return path, remove, err
	}
	text, err := os.ReadFile(given)
	if err != nil {
		return "", nil, fault.As(fault.User, err)
	}
	o, err := outline.Parse(text)
	if err != nil {
		return "", nil, fmt.Errorf("%s: %w", given, err)
	}
	dir, err := os.MkdirTemp("", "bigmoe-outline-")
	if err != nil {
		return "", nil, err
	}
	remove = func() { os.RemoveAll(dir) }
	path = filepath.Join(dir, "model.gguf")
	if err := o.Write(path); err != nil {
		remove()
		return "", nil, fmt.Errorf("%s: %w", given, err)
	}
	return path, remove, nil
}

// renamed is an error about a file that was made from an outline, and names the outline.
type renamed struct {
	error
	made, given string
}

func (r renamed) Error() string { return strings.ReplaceAll(r.error.Error(), r.made, r.given) }
func (r renamed) Unwrap() error { return r.error }

// writePlan writes the plan as JSON. protojson varies its white space on purpose; the same plan should be the same text.
func (a *app) writePlan(p *plan.Plan) error {
	text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(p)
	if err != nil {
		return err
	}
	var out bytes.Buffer
	if err := json.Indent(&out, text, "", "  "); err != nil {
		return err
	}
	out.WriteByte('\n')
	_, err = out.WriteTo(a.stdout)
	return err
}

func (a *app) recipeDiffCommand() *cobra.Command {
	var f modelFlags
	var with string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "diff [flags] MODEL [MODEL]",
		Short: "Compare the plans of two recipes for a model, or of two models",
		Example: `  bigmoe recipe diff --recipe ./old.wasm --with ./new.wasm model.gguf
  bigmoe recipe diff small.gguf large.gguf`,
		Long: `Prints what bigmoe recipe plan prints, as far as it differs: lines of the first with -, of the second with +. Nothing is printed
where the plans say the same. The exit code is 0 then, and 1 where they differ. A MODEL may be the outline of a model.`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.recipeDiff(cmd.Context(), &f, with, args, asJSON)
		},
	}
	f.addRecipe(cmd.Flags())
	cmd.Flags().StringVar(&with, "with", "", "`RECIPE` for the second plan, as in --recipe; default: the same")
	cmd.Flags().BoolVar(&asJSON, "json", false, "one JSON object")
	return cmd
}

// errDiffers ends a comparison whose outcome has been printed.
var errDiffers = errors.New("the plans differ")

func (a *app) recipeDiff(ctx context.Context, f *modelFlags, with string, models []string, asJSON bool) error {
	if len(models) == 1 && with == "" {
		return fault.Userf("nothing to compare: give a second MODEL, or a second recipe with --with")
	}
	first, second := *f, *f
	first.model, second.model = models[0], models[len(models)-1]
	if with != "" {
		second.recipe = with
	}
	p, err := a.plan(ctx, &first, 0)
	if err != nil {
		return err
	}
	q, err := a.plan(ctx, &second, 0)
	if err != nil {
		return err
	}
	text := plantext.Diff(first.model+" by "+p.Plan.Recipe, p.Plan, second.model+" by "+q.Plan.Recipe, q.Plan)
	if asJSON {
		err = writeJSON(a.stdout, struct {
			Same bool   `json:"same"`
			Diff string `json:"diff"`
		}{text == "", text})
	} else {
		_, err = fmt.Fprint(a.stdout, text)
	}
	if err == nil && text != "" {
		return errDiffers
	}
	return err
}

func (a *app) recipeOutlineCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "outline MODEL",
		Short:   "Print all of a model that a recipe sees, without weights and vocabulary",
		Example: `  bigmoe recipe outline model.gguf >testdata/model.json`,
		Long: `JSON of a few kilobytes: metadata, long lists such as the vocabulary by their length, and the types and sizes of all tensors.
bigmoe recipe plan, diff and check take it in place of a model, so that a recipe can be tested without large files.`,
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			f, err := gguf.Open(args[0])
			if err != nil {
				return err
			}
			defer f.Close()
			o, err := outline.Of(f)
			if err != nil {
				return err
			}
			text, err := o.MarshalJSON()
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(a.stdout, "%s\n", text)
			return err
		},
	}
}
