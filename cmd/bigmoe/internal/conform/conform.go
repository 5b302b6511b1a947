// Package conform checks that a recipe keeps its promises on a model: it stays within the sandbox, its plan is the same
// in every run, interpreted and compiled, the plan is valid, and it accounts for every tensor of the file.
//
//	report, err := conform.Check(ctx, "olmoe", module, file)
//
// A check runs the recipe three times and compiles it once. The package has no state.
package conform

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/bigmoe/bigmoe/cmd/bigmoe/internal/plantext"
	"github.com/bigmoe/bigmoe/engine"
	"github.com/bigmoe/bigmoe/engine/gguf"
	"github.com/bigmoe/bigmoe/engine/model"
	"github.com/bigmoe/bigmoe/engine/recipehost"
	"github.com/bigmoe/bigmoe/sdk/fault"
	"github.com/bigmoe/bigmoe/sdk/plan"
)

// Report is what a check found where nothing is wrong.
type Report struct {
	Plan     *plan.Plan
	Usage    recipehost.Usage   // of the largest of the runs
	Bounds   recipehost.Options // what it is held against
	Warnings []string           // of the recipe, and about it
	Unread   []string           // keys of the architecture that the recipe did not ask for
	Tensors  int                // in the file
}

// outcome is one run.
type outcome struct {
	encoded  []byte
	plan     *plan.Plan
	values   plan.Values
	usage    recipehost.Usage
	warnings []string
}

// Check runs the recipe on a model. The error names the recipe and, where the plan does not fit it, the file.
func Check(ctx context.Context, name string, module []byte, f *gguf.File) (*Report, error) {
	arch, err := engine.Architecture(f)
	if err != nil {
		return nil, err
	}
	cache, err := os.MkdirTemp("", "bigmoe-check-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(cache)
	first, err := run(ctx, name, module, f, "")
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.Path(), err)
	}
	report := &Report{Plan: first.plan, Usage: first.usage, Bounds: recipehost.New(recipehost.Options{}).Bounds(),
		Warnings: first.warnings, Unread: first.usage.Unread, Tensors: len(f.Tensors())}
	if own := first.usage.Name; own != name {
		report.Warnings = append(slices.Clip(report.Warnings), fmt.Sprintf("calls itself %q, but its module is called %q", own, name))
	}
	for mode, dir := range map[string]string{"interpreted again": "", "compiled": cache} {
		again, err := run(ctx, name, module, f, dir)
		if err != nil {
			return nil, fmt.Errorf("%s: %s: %w", f.Path(), mode, err)
		}
		if !bytes.Equal(first.encoded, again.encoded) || !slices.Equal(first.warnings, again.warnings) {
			return nil, fault.Corruptf("%s: recipe %q: not the same when %s:\n%s", f.Path(), name, mode, plantext.Diff("first", first.plan, mode, again.plan))
		}
		report.Usage.Seconds = max(report.Usage.Seconds, again.usage.Seconds)
		report.Usage.MemoryBytes = max(report.Usage.MemoryBytes, again.usage.MemoryBytes)
	}
	if first.plan.Architecture != arch {
		return nil, fault.Userf("%s: architecture is %q, recipe %q is for %q", f.Path(), arch, name, first.plan.Architecture)
	}
	_, err = model.Bind(first.plan, first.values, f)
	return report, err
}

func run(ctx context.Context, name string, module []byte, f *gguf.File, cacheDir string) (o outcome, err error) {
	host := recipehost.New(recipehost.Options{CacheDir: cacheDir,
		Warn: func(message string) { o.warnings = append(o.warnings, message) },
		Used: func(u recipehost.Usage) { o.usage = u }})
	if o.plan, o.values, err = host.Plan(ctx, name, module, recipehost.File(f)); err != nil {
		return o, err
	}
	o.encoded, err = proto.MarshalOptions{Deterministic: true}.Marshal(o.plan)
	return o, err
}
