package recipehost

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/bigmoe/bigmoe/sdk/plan"
)

var rebuild = flag.Bool("rebuild", false, "rewrite the recipes in C and Rust")

// languages are those other than Go that qwen3moe is written in, in testdata/NAME/qwen3moe.*, with the library in
// sdk/recipe/NAME. COMPILER beside it says what the committed module was built with.
var languages = []struct {
	name, compiler string
	args           []string // before -o
	yarn           bool     // whether it describes the model with scaled positions
}{
	{"c", "clang", []string{"--target=wasm32", "-nostdlib", "-Os",
		"-Wl,--no-entry", "-Wl,--strip-all", "-Wl,-z,stack-size=65536", "qwen3moe.c"}, false},
	{"rust", "rustc", []string{"--edition=2021", "--crate-type=cdylib", "--target=wasm32-unknown-unknown", "-Copt-level=s",
		"-Cpanic=abort", "-Ctarget-cpu=mvp", "-Cstrip=symbols", "qwen3moe.rs"}, true},
}

func planOf(t *testing.T, module []byte, model string) (*plan.Plan, error) {
	p, _, err := New(Options{}).Plan(context.Background(), "qwen3moe", module, File(open(t, model)))
	return p, err
}

// wanted are the plans of the shipped recipe.
var wanted = map[string]*plan.Plan{}

// requireSamePlans wants what the shipped recipe makes of the models, which makes the text the same, too.
func requireSamePlans(t *testing.T, module []byte, yarn bool) {
	for _, model := range []string{"qwen3moe-f32", "qwen3moe-mix32", "qwen3moe-k-q4_k_m", "qwen3moe-yarn-f32"} {
		p, err := planOf(t, module, "qwen3moe/"+model+".gguf")
		if strings.Contains(model, "yarn") && !yarn {
			require.ErrorContains(t, err, "does not know scaled positions")
			continue
		}
		require.NoError(t, err)
		want := wanted[model]
		if want == nil {
			want, err = planOf(t, shipped(t), "qwen3moe/"+model+".gguf")
			require.NoError(t, err)
			wanted[model] = want
		}
		require.True(t, proto.Equal(want, p), "%s\nwant %v\ngot  %v", model, want, p)
	}
	_, err := planOf(t, module, "qwen2moe/qwen2moe-f32.gguf")
	require.ErrorContains(t, err, `tensor "blk.0.attn_q_norm.weight" is missing`)
}

func TestOtherLanguages(t *testing.T) {
	for _, lang := range languages {
		t.Run(lang.name, func(t *testing.T) {
			module, err := os.ReadFile(filepath.Join("testdata", lang.name, "qwen3moe.wasm"))
			require.NoError(t, err)
			requireSamePlans(t, module, lang.yarn)
		})
	}
}

// TestOtherLanguagesRebuild builds them where the compiler is installed: to the same bytes with the compiler that made
// the committed ones, to the same plans with any.
func TestOtherLanguagesRebuild(t *testing.T) {
	for _, lang := range languages {
		t.Run(lang.name, func(t *testing.T) {
			dir := filepath.Join("testdata", lang.name)
			version, err := exec.Command(lang.compiler, "--version").Output()
			if errors.Is(err, exec.ErrNotFound) {
				t.Skipf("%s is not installed", lang.compiler)
			}
			require.NoError(t, err)
			version, _, _ = bytes.Cut(version, []byte("\n"))
			out := filepath.Join(t.TempDir(), "qwen3moe.wasm")
			cmd := exec.Command(lang.compiler, append(lang.args, "-o", out)...)
			cmd.Dir = dir
			if said, err := cmd.CombinedOutput(); err != nil {
				for _, missing := range []string{"target may not be installed", "unable to execute command", "wasm-ld"} {
					if strings.Contains(string(said), missing) {
						t.Skipf("%s cannot build WebAssembly here: %s", lang.compiler, firstLine(errors.New(string(said))))
					}
				}
				require.NoError(t, err, "%s", said)
			}
			module, err := os.ReadFile(out)
			require.NoError(t, err)
			if *rebuild {
				require.NoError(t, os.WriteFile(filepath.Join(dir, "qwen3moe.wasm"), module, 0o644))
				require.NoError(t, os.WriteFile(filepath.Join(dir, "COMPILER"), append(version, '\n'), 0o644))
			}
			made, err := os.ReadFile(filepath.Join(dir, "COMPILER"))
			require.NoError(t, err)
			if !bytes.Equal(bytes.TrimSpace(made), version) {
				t.Logf("the committed module was made by %s, this is %s: only plans are compared", bytes.TrimSpace(made), version)
				requireSamePlans(t, module, lang.yarn)
				return
			}
			committed, err := os.ReadFile(filepath.Join(dir, "qwen3moe.wasm"))
			require.NoError(t, err)
			require.True(t, bytes.Equal(module, committed), "qwen3moe.wasm is not what its source builds to: run go test ./engine/recipehost -run Rebuild -rebuild")
		})
	}
}
