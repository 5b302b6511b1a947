package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/bigmoe/bigmoe/cmd/bigmoe/internal/conform"
	"github.com/bigmoe/bigmoe/cmd/bigmoe/internal/oracle"
	"github.com/bigmoe/bigmoe/engine"
	"github.com/bigmoe/bigmoe/engine/budget"
	"github.com/bigmoe/bigmoe/engine/gguf"
	"github.com/bigmoe/bigmoe/registry"
	"github.com/bigmoe/bigmoe/sdk/fault"
)

type recipeCheckFlags struct {
	models []string
	golden string
	json   bool
}

func (a *app) recipeCheckCommand() *cobra.Command {
	f := &recipeCheckFlags{}
	cmd := &cobra.Command{
		Use:   "check [flags] [RECIPE]",
		Short: "Check that a recipe keeps its promises, and gets the right numbers",
		Example: `  bigmoe recipe check olmoe
  bigmoe recipe check --model model.gguf --golden model.json ./olmoe.wasm`,
		Long: `RECIPE is the folder of a recipe, by default the current one, or a .wasm file. It is checked on each model given with --model; without
one, on what the folder has in testdata: outlines (.json), models (.gguf), and reference outputs (.json with the name of a model).

For each: the recipe stays within the sandbox; its plan is the same in three runs, interpreted and compiled; the plan is valid
and accounts for every tensor, with its type and sizes. Keys of the architecture that it does not read are a warning and no
failure: some say nothing new, others are a scale that was forgotten. With reference outputs, logits, experts and the most likely text are
computed by the plain kernels and have to agree. Exit code 1: the numbers differ; others as everywhere.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.recipeCheck(cmd.Context(), f, append(args, ".")[0])
		},
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	fs.StringArrayVar(&f.models, "model", nil, "`MODEL` or outline to check on; may be given several times")
	fs.StringVar(&f.golden, "golden", "", "reference outputs for the one model in `FILE`")
	fs.BoolVar(&f.json, "json", false, "one JSON object")
	return cmd
}

// checkCase is one model to check on.
type checkCase struct{ model, golden string }

type recipeCheckOutput struct {
	Recipe string          `json:"recipe"`
	Module string          `json:"module"` // its path
	Bytes  int             `json:"bytes"`
	ABI    int             `json:"abi_version"`
	Models []checkedOutput `json:"models"`
}

type checkedOutput struct {
	Model       string         `json:"model"`
	Layers      uint32         `json:"layers"`
	Tensors     int            `json:"tensors"`
	Unused      int            `json:"unused"` // of them, as the recipe says
	Seconds     float64        `json:"seconds"`
	MemoryBytes int64          `json:"memory_bytes"`
	Calls       int            `json:"calls"`
	PlanBytes   int            `json:"plan_bytes"`
	Warnings    []string       `json:"warnings,omitempty"`
	UnreadKeys  []string       `json:"unread_keys,omitempty"`
	Golden      *oracle.Result `json:"golden,omitempty"`
}

func (a *app) recipeCheck(ctx context.Context, f *recipeCheckFlags, target string) error {
	path, cases, err := f.find(target)
	if err != nil {
		return err
	}
	r := registry.New(registry.Config{})
	name, err := r.Add(path)
	if err != nil {
		return err
	}
	recipe, err := r.Find(name)
	if err != nil {
		return err
	}
	out := &recipeCheckOutput{Recipe: name, Module: path, Bytes: len(recipe.Module)}
	if !f.json {
		fmt.Fprintf(a.stdout, "%s: %s\n", path, budget.Size(int64(out.Bytes)))
	}
	for _, c := range cases {
		if err := a.recipeCheckOn(ctx, recipe, r, c, out, !f.json); err != nil {
			return err
		}
	}
	if f.json {
		return writeJSON(a.stdout, out)
	}
	_, err = fmt.Fprintln(a.stdout, "sound")
	return err
}

// find returns the module and what to check it on.
func (f *recipeCheckFlags) find(target string) (module string, cases []checkCase, err error) {
	module, isFolder, err := recipeModule(target)
	if err != nil {
		return "", nil, err
	}
	switch {
	case f.golden != "" && len(f.models) != 1:
		return "", nil, fault.Userf("--golden belongs to one --model, %d are given", len(f.models))
	case len(f.models) > 0:
		for _, m := range f.models {
			cases = append(cases, checkCase{m, f.golden})
		}
		return module, cases, nil
	case isFolder:
		cases, err = casesIn(filepath.Join(target, "testdata"))
	}
	if err == nil && len(cases) == 0 {
		err = fault.Userf("nothing to check %s on: give a model with --model, or put models or outlines into the folder's testdata", module)
	}
	return module, cases, err
}

// casesIn returns the models and outlines in a folder, which need not exist.
func casesIn(dir string) (cases []checkCase, err error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		base, isJSON := strings.CutSuffix(path, ".json")
		isModel := strings.HasSuffix(path, ".gguf")
		switch {
		case isModel:
			c := checkCase{model: path}
			reference := strings.TrimSuffix(path, ".gguf") + ".json"
			if text, err := os.ReadFile(reference); err == nil && oracle.Is(text) {
				c.golden = reference
			}
			cases = append(cases, c)
		case isJSON:
			text, err := os.ReadFile(path)
			if err != nil {
				return nil, err
			}
			if _, err := os.Stat(base + ".gguf"); err == nil && oracle.Is(text) {
				continue
			}
			cases = append(cases, checkCase{model: path})
		}
	}
	return cases, err
}

// recipeCheckOn checks on one model. What it found before an error is told, too.
func (a *app) recipeCheckOn(ctx context.Context, recipe engine.Recipe, r *registry.Registry, c checkCase, out *recipeCheckOutput, talk bool) (err error) {
	path, remove, err := modelOrOutline(c.model)
	if err != nil {
		return err
	}
	defer remove()
	file, err := gguf.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	report, err := conform.Check(ctx, recipe.Name, recipe.Module, file)
	if err != nil {
		return renamed{err, path, c.model}
	}
	u := report.Usage
	out.ABI = u.ABIVersion
	res := checkedOutput{Model: c.model, Layers: report.Plan.Model.Layers, Tensors: report.Tensors, Unused: len(report.Plan.Unused),
		Seconds: u.Seconds, MemoryBytes: u.MemoryBytes, Calls: u.Calls, PlanBytes: u.PlanBytes, Warnings: report.Warnings, UnreadKeys: report.Unread}
	if talk {
		defer func() { _, e := fmt.Fprint(a.stdout, res.text(report)); err = errors.Join(err, e) }()
	}
	if c.golden != "" {
		g, err := oracle.Read(c.golden)
		if err != nil {
			return err
		}
		cfg := engine.Config{Model: path, Recipe: recipe.Name, Recipes: r, Log: a.logger(false, true)}
		if res.Golden, err = g.Compare(ctx, cfg); err != nil {
			res.Golden = nil
			return err
		}
	}
	out.Models = append(out.Models, res)
	return nil
}

// text is what people get to see.
func (res *checkedOutput) text(report *conform.Report) string {
	var w strings.Builder
	u, b := report.Usage, report.Bounds
	fmt.Fprintf(&w, "%s\n  plan     valid, the same in 3 runs: %d layers, written for ABI %d\n", res.Model, res.Layers, u.ABIVersion)
	fmt.Fprintf(&w, "  tensors  all %d accounted for, %d of them as unused\n", res.Tensors, res.Unused)
	fmt.Fprintf(&w, "  used     %.2f s of %v, %s of %s, %d calls of %d, a plan of %s of %s\n", u.Seconds, b.Timeout,
		budget.Size(u.MemoryBytes), budget.Size(b.MemoryLimitBytes), u.Calls, b.MaxCalls, budget.Size(int64(u.PlanBytes)), budget.Size(int64(b.MaxResultBytes)))
	warnings := res.Warnings
	if keys := unread(report.Plan.Architecture, res.UnreadKeys); keys != "" {
		warnings = append(slices.Clip(warnings), keys)
	}
	for _, warning := range warnings {
		fmt.Fprintf(&w, "  warning  %s\n", warning)
	}
	if g := res.Golden; g != nil {
		fmt.Fprintf(&w, "  golden   %s\n", g)
	}
	return w.String()
}
