// Package recipekit writes the folder of a new recipe and builds recipes from their sources.
//
//	lang, err := recipekit.LanguageOf("go")
//	err = recipekit.New("olmoe", lang)
//	built, err := recipekit.Build(ctx, "olmoe") // olmoe/olmoe.wasm
//
// The folder has the name of the recipe, which is that of the architecture, and holds the module beside its sources, as
// folders that bigmoe looks for recipes in do.
package recipekit

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/bigmoe/bigmoe/registry/artifact"
	"github.com/bigmoe/bigmoe/sdk"
	"github.com/bigmoe/bigmoe/sdk/fault"
)

//go:embed template
var templates embed.FS

// Name returns what the recipe in dir is called.
func Name(dir string) (string, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	name := filepath.Base(abs)
	if !artifact.ValidName(name) { // package registry has to find it
		return "", fault.Userf("%q cannot be the name of a recipe: expected letters, digits, _ . - and at most 64 of them, and no name of a device", name)
	}
	return name, nil
}

// Module returns the path of the module in dir.
func Module(dir string) (string, error) {
	name, err := Name(dir)
	return filepath.Join(dir, name+".wasm"), err
}

// New writes a recipe that builds, and an outline of a model that it fits, into dir, which must not exist or be empty.
func New(dir string, lang *Language) error {
	name, err := Name(dir)
	if err != nil {
		return err
	}
	if there, err := os.ReadDir(dir); err == nil && len(there) > 0 {
		return fault.Userf("%s exists and is not empty", dir)
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fault.As(fault.User, err)
	}
	files := map[string]string{}
	for to, from := range map[string]string{lang.Main: lang.Name + "/" + lang.Main, "README.md": "README.md",
		"testdata/" + name + ".json": "outline.json"} {
		text, err := templates.ReadFile("template/" + from)
		if err != nil {
			return err
		}
		files[to] = strings.NewReplacer("NAME", name, "MAIN", lang.Main, "COMPILER", lang.needs, "LIBRARY", lang.about).Replace(string(text))
	}
	for path, text := range lang.beside(name) {
		files[path] = text
	}
	for path, text := range files {
		path = filepath.Join(dir, filepath.FromSlash(path))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

const goVersion = "1.24" // the first one whose compiler exports functions of a module

// goLibrary is the Go library as a module of its own below the recipe's, so that neither a network nor a release of it
// is needed.
func goLibrary(name string) map[string]string {
	const path = "github.com/bigmoe/bigmoe"
	files := map[string]string{
		"go.mod": fmt.Sprintf("module example.com/%s\n\ngo %s\n\nrequire %s v0.0.0\n\n// As it came with the bigmoe that wrote this folder.\nreplace %[3]s => ./bigmoe\n",
			name, goVersion, path),
		"bigmoe/go.mod": fmt.Sprintf("module %s\n\ngo %s\n", path, goVersion),
	}
	for file, text := range sdk.Go() {
		files["bigmoe/sdk/recipe/"+file] = text
	}
	return files
}
