package engine

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"

	"github.com/bigmoe/bigmoe/engine/gguf"
	"github.com/bigmoe/bigmoe/engine/model"
	"github.com/bigmoe/bigmoe/engine/recipehost"
	"github.com/bigmoe/bigmoe/engine/token"
	"github.com/bigmoe/bigmoe/sdk/fault"
	"github.com/bigmoe/bigmoe/sdk/plan"
)

// Opened is a model file that has been understood: parsed, planned by its recipe, bound and with its tokenizer
// loaded. No weights are in memory and no backend runs; Open goes on from here. All of it is for reading, by any number of
// goroutines at once.
type Opened struct {
	File      *gguf.File       // metadata and tensor table
	Plan      *plan.Plan       // what the recipe made of them
	Model     *model.Model     // where everything in the plan lies in the file
	Tokenizer *token.Tokenizer // text to ids and back
	Unread    []string         // metadata keys of the architecture that the recipe did not ask for
}

// Close closes the file. An [Engine] has a Close of its own.
func (o *Opened) Close() error { return o.File.Close() }

// Inspect does what Open does up to the point where memory is taken. Of cfg it needs Model and Recipes. Close the result.
func Inspect(ctx context.Context, cfg Config) (*Opened, error) {
	if err := cfg.setDefaults(); err != nil {
		return nil, err
	}
	o, err := try(ctx, func() (*Opened, error) { return inspect(ctx, &cfg) }, func(o *Opened, err error) {
		if err == nil {
			_ = o.Close() // nobody is there to be told
		}
	})
	if err != nil && ctx.Err() != nil {
		err = ctx.Err()
	}
	return o, err
}

// Plan is [Inspect] without the tokenizer, which stays nil: what the authors of recipes want to see does not depend on it.
func Plan(ctx context.Context, cfg Config) (*Opened, error) {
	if err := cfg.setDefaults(); err != nil {
		return nil, err
	}
	return understand(ctx, &cfg)
}

func understand(ctx context.Context, cfg *Config) (*Opened, error) {
	f, err := gguf.Open(cfg.Model)
	if err != nil {
		return nil, err
	}
	for _, w := range f.Warnings() {
		cfg.Log.Warn().Msg(w)
	}
	o := &Opened{File: f}
	if err := o.makePlan(ctx, cfg); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return o, nil
}

func inspect(ctx context.Context, cfg *Config) (_ *Opened, err error) {
	o, err := understand(ctx, cfg)
	if err != nil {
		return nil, err
	}
	f := o.File
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close())
		}
	}()
	if o.Tokenizer, err = token.New(f); err != nil {
		return nil, fmt.Errorf("%s: %w", f.Path(), err)
	}
	// The recipe ran in memory of its own and the file's vocabulary was read at its full length; the budget counts on
	// having that back before anything large comes.
	debug.FreeOSMemory()
	for _, w := range o.Tokenizer.Warnings() {
		cfg.Log.Warn().Msg(w)
	}
	if have, want := o.Tokenizer.Vocab(), int(o.Plan.Model.Vocabulary); have != want {
		return nil, fault.Corruptf("%s: tokenizer has %d tokens, the model %d", f.Path(), have, want)
	}
	return o, nil
}

// Architecture returns general.architecture of a file.
func Architecture(f *gguf.File) (string, error) {
	const key = "general.architecture"
	v, ok := f.Get(key)
	if !ok {
		return "", fault.Corruptf("%s: %s is missing: not a model", f.Path(), key)
	}
	name, err := v.String()
	if err != nil {
		return "", err
	}
	if name == "" {
		return "", fault.Corruptf("%s: %s is empty", f.Path(), key)
	}
	return name, nil
}

// makePlan asks the recipe about the file.
func (o *Opened) makePlan(ctx context.Context, cfg *Config) error {
	f := o.File
	arch, err := Architecture(f)
	if err != nil {
		return err
	}
	name := cfg.Recipe
	if name == "" {
		name = arch
	}
	recipe, err := cfg.Recipes.Find(name)
	if err != nil {
		return fmt.Errorf("%s: architecture %q: %w", f.Path(), arch, err)
	}
	src := recipehost.File(f)
	if cfg.ExpertsUsed > 0 {
		src = recipehost.Override(src, map[string]uint64{arch + ".expert_used_count": uint64(cfg.ExpertsUsed)})
	}
	host := recipehost.New(recipehost.Options{CacheDir: cfg.RecipeCache,
		Warn: func(message string) { cfg.Log.Warn().Str("recipe", recipe.Name).Msg(message) },
		Used: func(u recipehost.Usage) { o.Unread = u.Unread }})
	p, values, err := host.Plan(ctx, recipe.Name, recipe.Module, src)
	switch {
	case err != nil && recipe.Name != arch: // somebody chose this recipe: that it does not fit is not the file's fault
		return fault.Userf("%s: architecture is %q, which recipe %q does not fit: %w", f.Path(), arch, recipe.Name, err)
	case err != nil:
		return fmt.Errorf("%s: %w", f.Path(), err)
	}
	if len(o.Unread) > 0 {
		cfg.Log.Debug().Str("recipe", recipe.Name).Strs("keys", o.Unread).Msg("keys of the model that its recipe does not read")
	}
	if p.Architecture != arch {
		return fault.Userf("%s: architecture is %q, recipe %q is for %q", f.Path(), arch, recipe.Name, p.Architecture)
	}
	o.Plan = p
	o.Model, err = model.Bind(p, values, f)
	return err
}
