package recipekit

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/cmd/bigmoe/internal/conform"
	"github.com/bigmoe/bigmoe/cmd/bigmoe/internal/plantext"
	"github.com/bigmoe/bigmoe/engine/gguf"
	"github.com/bigmoe/bigmoe/engine/gguf/outline"
	"github.com/bigmoe/bigmoe/sdk/fault"
	"github.com/bigmoe/bigmoe/sdk/plan"
)

// build makes a recipe in a language, in a folder of its own, or skips the test where that language cannot be compiled.
func build(t *testing.T, lang *Language) (dir string, b *Built) {
	dir = filepath.Join(t.TempDir(), "plain")
	require.NoError(t, New(dir, lang))
	b, err := Build(context.Background(), dir)
	missing := fault.KindOf(err) == fault.Unsupported
	for _, said := range []string{"target may not be installed", "unable to execute command", "wasm-ld"} {
		missing = missing || err != nil && strings.Contains(err.Error(), said)
	}
	if missing {
		t.Skip(err)
	}
	require.NoError(t, err)
	return dir, b
}

// planOf checks a recipe on the outline that came with it.
func planOf(t *testing.T, dir string, b *Built) *plan.Plan {
	text, err := os.ReadFile(filepath.Join(dir, "testdata", "plain.json"))
	require.NoError(t, err)
	o, err := outline.Parse(text)
	require.NoError(t, err)
	model := filepath.Join(t.TempDir(), "model.gguf")
	require.NoError(t, o.Write(model))
	f, err := gguf.Open(model)
	require.NoError(t, err)
	defer f.Close()
	module, err := os.ReadFile(b.Module)
	require.NoError(t, err)
	report, err := conform.Check(context.Background(), "plain", module, f)
	require.NoError(t, err)
	require.Equal(t, len(module), b.Bytes)
	return report.Plan
}

// TestTemplates: what New writes builds, to the same bytes wherever it lies, and says the same in every language.
func TestTemplates(t *testing.T) {
	inGo, err := LanguageOf("go")
	require.NoError(t, err)
	dir, b := build(t, inGo)
	want := planOf(t, dir, b)
	for _, lang := range Languages {
		t.Run(lang.Name, func(t *testing.T) {
			dir, b := build(t, lang)
			require.Equal(t, lang.Name, b.Language)
			require.Empty(t, plantext.Diff("go", want, lang.Name, planOf(t, dir, b)))
			_, again := build(t, lang)
			require.Equal(t, b.SHA256, again.SHA256)
		})
	}
}

func TestDetect(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a.c", "b.c", "bigmoe.h"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), nil, 0o644))
	}
	lang, sources, err := detect(dir)
	require.NoError(t, err)
	require.Equal(t, "c", lang.Name)
	require.Equal(t, []string{"a.c", "b.c"}, sources)

	require.NoError(t, os.WriteFile(filepath.Join(dir, "main.go"), nil, 0o644))
	_, _, err = detect(dir)
	require.ErrorContains(t, err, "sources in go and in c: expected one language")
}
