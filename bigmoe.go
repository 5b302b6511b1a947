// Package bigmoe is what a Go program imports to run a model: the engine, with the recipes and the CPU backend that ship.
//
//	e, err := bigmoe.Open(ctx, engine.Config{Model: "model.gguf", MemoryBytes: 6 << 30})
//	if err != nil {
//		return err
//	}
//	defer e.Close()
//	_, err = e.NewSession().Generate(ctx, engine.Request{Prompt: "Once upon a time"}, func(t engine.Token) error {
//		_, err := os.Stdout.WriteString(t.Text)
//		return err
//	})
//
// Everything else is in package engine, whose examples run; docs/library.md is the guide.
//
// # Caveats
//
// The backend runs in this process: a crash in it would take the program along. engine.Backend.Path names a program
// that cannot, such as plugins/compute-cpu.
//
// The package holds no state, and its functions may be called from several goroutines.
package bigmoe

import (
	"context"

	"github.com/bigmoe/bigmoe/engine"
	"github.com/bigmoe/bigmoe/plugins/compute-cpu/cpu"
	"github.com/bigmoe/bigmoe/recipes"
	"github.com/bigmoe/bigmoe/registry"
)

// Open is [engine.Open]. Where cfg says neither, recipes are the built-in ones and the backend is the processor, with
// the fastest kernels that it can run.
func Open(ctx context.Context, cfg engine.Config) (*engine.Engine, error) {
	if cfg.Backend.Path == "" && cfg.Backend.InProcess == nil {
		b, err := cpu.New(cpu.Options{})
		if err != nil {
			return nil, err
		}
		cfg.Backend.InProcess = b
	}
	if cfg.Recipes == nil {
		cfg.Recipes = Recipes()
	}
	return engine.Open(ctx, cfg)
}

// Inspect is [engine.Inspect], with the built-in recipes where cfg names none.
func Inspect(ctx context.Context, cfg engine.Config) (*engine.Opened, error) {
	if cfg.Recipes == nil {
		cfg.Recipes = Recipes()
	}
	return engine.Inspect(ctx, cfg)
}

// Recipes finds the built-in recipes, and in front of them those in folders, as NAME/NAME.wasm.
func Recipes(folders ...string) *registry.Registry {
	return registry.New(registry.Config{BuiltIn: recipes.Names(), Lookup: recipes.Lookup, RecipeDirs: folders})
}
