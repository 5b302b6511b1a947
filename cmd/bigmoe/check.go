package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/bigmoe/bigmoe/cmd/bigmoe/internal/term"
	"github.com/bigmoe/bigmoe/engine"
	"github.com/bigmoe/bigmoe/engine/budget"
	"github.com/bigmoe/bigmoe/engine/gguf"
	"github.com/bigmoe/bigmoe/sdk/fault"
)

type checkFlags struct {
	modelFlags
	quiet bool
	json  bool
}

func (a *app) checkCommand() *cobra.Command {
	f := &checkFlags{}
	cmd := &cobra.Command{
		Use:     "check [flags] [MODEL]",
		Short:   "Read every weight of a model file and look for damage",
		Example: `  bigmoe check Qwen3-30B-A3B-Q4_K_M.gguf`,
		Long: `The container, the recipe's view of it, the tokenizer, and the values: each tensor of each shard is read, and the first
number or scale that is NaN or infinite is an error that names file and tensor (exit code 3). Takes as long as reading the
file does. Without MODEL the built-in demo model is taken.`,
		Args: modelArgument,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				f.model = args[0]
			}
			return a.check(cmd.Context(), f)
		},
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	f.addRecipe(fs)
	fs.BoolVarP(&f.quiet, "quiet", "q", false, "no progress or warnings on standard error")
	fs.BoolVar(&f.json, "json", false, "one JSON object")
	return cmd
}

// checkOutput is what check found when nothing is wrong.
type checkOutput struct {
	Path    string  `json:"path"`
	Shards  int     `json:"shards"`
	Tensors int     `json:"tensors"`
	Bytes   int64   `json:"bytes"`
	Recipe  string  `json:"recipe"`
	Seconds float64 `json:"seconds"`
}

func (a *app) check(ctx context.Context, f *checkFlags) error {
	path, _, remove, err := modelPath(f.model)
	if err != nil {
		return err
	}
	defer remove()
	file, err := gguf.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	r, name, err := f.registry()
	if err != nil {
		return err
	}
	out := checkOutput{Path: path, Shards: len(file.Shards()), Tensors: len(file.Tensors())}
	for _, t := range file.Tensors() {
		out.Bytes += t.Bytes
	}
	// A model that cannot be run may still have sound values, or not: both are looked at, and damage counts more.
	o, planErr := engine.Inspect(ctx, engine.Config{Model: path, Recipe: name, Recipes: r, Log: a.logger(false, f.quiet)})
	if planErr == nil {
		out.Recipe = o.Plan.Recipe
		defer o.File.Close()
	} else if fault.KindOf(planErr) == fault.Corrupt {
		return planErr
	}
	var progress func(done, total int64)
	start := time.Now()
	if !f.quiet {
		progress = func(done, total int64) {
			a.status.Set(func() string {
				return fmt.Sprintf("check %s %s of %s, %s/s", term.Bar(done, total), budget.Size(done), budget.Size(total),
					budget.Size(int64(float64(done)/max(time.Since(start).Seconds(), 1e-9))))
			})
		}
	}
	if err := file.Check(ctx, progress); err != nil {
		return err
	}
	a.status.Clear()
	if planErr != nil {
		return planErr
	}
	out.Seconds = time.Since(start).Seconds()
	if f.json {
		return writeJSON(a.stdout, out)
	}
	_, err = fmt.Fprintf(a.stdout, "%s: sound: %d tensors, %s, no NaN, no infinity; recipe %s\n", out.Path, out.Tensors, budget.Size(out.Bytes), out.Recipe)
	return err
}
