package recipekit

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/bigmoe/bigmoe/sdk"
	"github.com/bigmoe/bigmoe/sdk/fault"
)

// Language is one that recipes can be written in.
type Language struct {
	Name     string
	needs    string // what has to be installed
	about    string // what the README says of the library
	Main     string // its source in the templates
	suffix   string // of sources
	compiler string
	environ  []string
	beside   func(name string) map[string]string // the library: files beside the source
	args     func(module string, sources []string) []string
}

// Languages are those that there is a template for.
var Languages = []*Language{
	{Name: "go", needs: "Go " + goVersion + " or later", Main: "main.go", suffix: ".go", compiler: "go", beside: goLibrary,
		about: "`bigmoe` is a copy of its Go library.",
		// Nothing of the person's own settings may change the bytes or reach for the network.
		environ: []string{"GOOS=wasip1", "GOARCH=wasm", "GOWASM=", "GOFLAGS=", "GOEXPERIMENT=", "GOWORK=off", "GOTOOLCHAIN=local"},
		args: func(module string, _ []string) []string {
			return []string{"build", "-buildmode=c-shared", "-trimpath", "-buildvcs=false", "-ldflags=-s -w -buildid=", "-o", module, "."}
		}},
	{Name: "c", needs: "clang with wasm-ld (Debian: clang, lld)", Main: "main.c", suffix: ".c", compiler: "clang",
		beside: func(string) map[string]string { return sdk.C() }, about: "`bigmoe.h` is all of its library.",
		args: func(module string, sources []string) []string {
			return append([]string{"--target=wasm32", "-nostdlib", "-Os", "-Wl,--no-entry", "-Wl,--strip-all", "-Wl,-z,stack-size=65536",
				"-o", module}, sources...)
		}},
	{Name: "rust", needs: "rustc with the target wasm32-unknown-unknown", Main: "main.rs", suffix: ".rs", compiler: "rustc",
		beside: func(string) map[string]string { return sdk.Rust() }, about: "`bigmoe.rs` is all of its library.",
		// Without mvp, modules use features that the host refuses.
		args: func(module string, _ []string) []string {
			return []string{"--edition=2021", "--crate-type=cdylib", "--target=wasm32-unknown-unknown", "-Copt-level=s", "-Cpanic=abort",
				"-Ctarget-cpu=mvp", "-Cstrip=symbols", "-o", module, "main.rs"}
		}},
}

// LanguageOf returns the language called name.
func LanguageOf(name string) (*Language, error) {
	var names []string
	for _, l := range Languages {
		if l.Name == name {
			return l, nil
		}
		names = append(names, l.Name)
	}
	return nil, fault.Userf("no template in the language %q: expected one of %s", name, strings.Join(names, ", "))
}

// Built is a module that was made.
type Built struct {
	Module   string `json:"module"` // its path
	Language string `json:"language"`
	Bytes    int    `json:"bytes"`
	SHA256   string `json:"sha256"`
}

// Build compiles the sources in dir. The same sources and compiler give the same bytes.
func Build(ctx context.Context, dir string) (*Built, error) {
	module, err := Module(dir)
	if err != nil {
		return nil, err
	}
	lang, sources, err := detect(dir)
	if err != nil {
		return nil, err
	}
	compiler, err := exec.LookPath(lang.compiler)
	if err != nil {
		return nil, fault.Unsupportedf("%s: recipes in %s need %s: %w", dir, lang.Name, lang.needs, err)
	}
	cmd := exec.CommandContext(ctx, compiler, lang.args(filepath.Base(module), sources)...)
	cmd.Dir = dir
	cmd.Env = append(cmd.Environ(), lang.environ...)
	if said, err := cmd.CombinedOutput(); err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, fault.Userf("%s: %s: %w\n%s", dir, lang.compiler, err, said)
	}
	code, err := os.ReadFile(module)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(code)
	return &Built{Module: module, Language: lang.Name, Bytes: len(code), SHA256: hex.EncodeToString(sum[:])}, nil
}

// detect finds out the language of a folder from the names of its files.
func detect(dir string) (lang *Language, sources []string, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, nil, fault.As(fault.User, err)
	}
	for _, l := range Languages {
		var found []string
		for _, e := range entries {
			if strings.HasSuffix(e.Name(), l.suffix) {
				found = append(found, e.Name())
			}
		}
		switch {
		case len(found) == 0:
		case lang != nil:
			return nil, nil, fault.Userf("%s: sources in %s and in %s: expected one language", dir, lang.Name, l.Name)
		default:
			lang, sources = l, found
		}
	}
	if lang == nil {
		return nil, nil, fault.Userf("%s: no sources of a recipe; bigmoe recipe new writes some", dir)
	}
	return lang, sources, nil
}
