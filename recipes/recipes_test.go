package recipes_test

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/bigmoe/bigmoe/engine/gguf"
	"github.com/bigmoe/bigmoe/engine/recipehost"
	"github.com/bigmoe/bigmoe/recipes"
	"github.com/bigmoe/bigmoe/sdk/fault"
	"github.com/bigmoe/bigmoe/sdk/plan"
)

var update = flag.Bool("update", false, "rewrite the golden plans")

const golden = "../testdata/golden/"

func open(t testing.TB, path string) *gguf.File {
	t.Helper()
	f, err := gguf.Open(path)
	require.NoError(t, err)
	t.Cleanup(func() { f.Close() })
	return f
}

// cacheDir keeps the modules compiled, since the tests run each of them many times.
var cacheDir string

func TestMain(m *testing.M) {
	flag.Parse()
	dir, err := os.MkdirTemp("", "recipes")
	if err != nil {
		panic(err)
	}
	cacheDir = dir
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

func run(t testing.TB, arch string, src recipehost.Source) (*plan.Plan, error) {
	t.Helper()
	module, ok := recipes.Lookup(arch)
	require.True(t, ok, arch)
	p, _, err := recipehost.New(recipehost.Options{CacheDir: cacheDir}).Plan(context.Background(), arch, module, src)
	return p, err
}

func TestLookup(t *testing.T) {
	require.Subset(t, recipes.Names(), []string{"qwen2moe", "qwen3moe"})
	for _, name := range recipes.Names() {
		module, ok := recipes.Lookup(name)
		require.True(t, ok)
		require.True(t, bytes.HasPrefix(module, []byte("\x00asm")))
	}
	_, ok := recipes.Lookup("../recipes/qwen3moe")
	require.False(t, ok)
}

// TestRebuild holds the committed modules against their sources.
func TestRebuild(t *testing.T) {
	made, err := os.ReadFile("GOVERSION")
	require.NoError(t, err)
	switch {
	case testing.Short():
		t.Skip("rebuilding takes a while")
	case strings.TrimSpace(string(made)) != runtime.Version():
		t.Skipf("modules were made by %s, this is %s", bytes.TrimSpace(made), runtime.Version())
	}
	out := t.TempDir()
	text, err := exec.Command("sh", "build.sh", out).CombinedOutput()
	require.NoError(t, err, "%s", text)
	for _, name := range recipes.Names() {
		want, err := os.ReadFile(filepath.Join(out, name, name+".wasm"))
		require.NoError(t, err)
		have, _ := recipes.Lookup(name)
		require.True(t, bytes.Equal(want, have), "%s.wasm is not what its source builds to: run go generate ./recipes", name)
	}
}

// TestGoldenPlans compares whole plans. Rewrite them with -update and read the difference.
func TestGoldenPlans(t *testing.T) {
	for name, path := range map[string]string{
		"qwen3moe-f32":      golden + "qwen3moe/qwen3moe-f32.gguf",
		"qwen3moe-yarn-f32": golden + "qwen3moe/qwen3moe-yarn-f32.gguf",
		"qwen2moe-f32":      golden + "qwen2moe/qwen2moe-f32.gguf",
	} {
		t.Run(name, func(t *testing.T) {
			f := open(t, path)
			p, err := run(t, architecture(t, f), recipehost.File(f))
			require.NoError(t, err)
			file := filepath.Join("testdata", "plans", name+".json")
			have := printPlan(t, p)
			if *update {
				require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
				require.NoError(t, os.WriteFile(file, have, 0o644))
			}
			want, err := os.ReadFile(file)
			require.NoError(t, err)
			require.Equal(t, string(want), string(have))
		})
	}
}

func architecture(t testing.TB, f *gguf.File) string {
	v, _ := f.Get("general.architecture")
	arch, err := v.String()
	require.NoError(t, err)
	return arch
}

// printPlan returns the plan as JSON with one line for each weight, bank, state and op.
func printPlan(t testing.TB, p *plan.Plan) []byte {
	raw, err := protojson.Marshal(p)
	require.NoError(t, err)
	var fields map[string]json.RawMessage
	require.NoError(t, json.Unmarshal(raw, &fields))
	var out bytes.Buffer
	compact := func(raw json.RawMessage, end string) {
		require.NoError(t, json.Compact(&out, raw)) // protojson varies its spaces on purpose
		out.WriteString(end)
	}
	names := []string{}
	for name := range fields {
		names = append(names, name)
	}
	slices.Sort(names)
	out.WriteString("{\n")
	for i, name := range names {
		end := ",\n"
		if i == len(names)-1 {
			end = "\n"
		}
		var list []json.RawMessage
		out.WriteString(`"` + name + `": `)
		if json.Unmarshal(fields[name], &list) != nil {
			compact(fields[name], end)
			continue
		}
		out.WriteString("[\n")
		for k, item := range list {
			sep := ",\n"
			if k == len(list)-1 {
				sep = "\n"
			}
			line := bytes.Buffer{}
			require.NoError(t, json.Compact(&line, item))
			out.Write(bytes.ReplaceAll(line.Bytes(), []byte(`{"kind":"`), []byte("\n"+`  {"kind":"`)))
			out.WriteString(sep)
		}
		out.WriteString("]" + end)
	}
	out.WriteString("}\n")
	require.True(t, json.Valid(out.Bytes()))
	return out.Bytes()
}

// TestEveryModel makes a plan for every model there is, the demo model and the whole golden set included where the
// checkout has them.
func TestEveryModel(t *testing.T) {
	shared := os.Getenv("BIGMOE_SHARED")
	if shared == "" {
		shared = "../../shared"
	}
	var paths []string
	for _, pattern := range []string{golden + "qwen*moe/*.gguf", shared + "/golden/qwen*moe/*.gguf", shared + "/demo/*.gguf"} {
		found, err := filepath.Glob(pattern)
		require.NoError(t, err)
		paths = append(paths, found...)
	}
	require.NotEmpty(t, paths)
	for _, path := range paths {
		t.Run(filepath.Base(path), func(t *testing.T) {
			f := open(t, path)
			if !slices.Contains(recipes.Names(), architecture(t, f)) {
				t.Skip("no recipe yet for " + architecture(t, f))
			}
			p, err := run(t, architecture(t, f), recipehost.File(f))
			require.NoError(t, err)
			require.Empty(t, leftOver(p, f.Tensors()))
			require.Len(t, p.Banks, int(p.Model.Layers))
			require.Equal(t, architecture(t, f), p.Architecture)
		})
	}
}

// leftOver lists the tensors that a plan neither uses nor names as unused.
func leftOver(p *plan.Plan, tensors []gguf.Tensor) []string {
	known := map[string]bool{}
	for _, w := range p.Weights {
		for _, s := range w.Sources {
			known[s.Tensor] = true
		}
	}
	for _, b := range p.Banks {
		for _, part := range b.Parts {
			for _, name := range part.Tensors {
				known[name] = true
			}
		}
	}
	for _, u := range p.Unused {
		known[u.Tensor] = true
	}
	var out []string
	for _, t := range tensors {
		if !known[t.Name] {
			out = append(out, t.Name)
		}
	}
	return out
}

// TestMalformedModels runs the rows of testdata/golden/badgguf whose defect only a recipe can see.
func TestMalformedModels(t *testing.T) {
	raw, err := os.ReadFile(golden + "badgguf/cases.json")
	require.NoError(t, err)
	var file struct {
		Cases []struct {
			ID, Entry, Stage, Must string
			Say                    []string
		}
	}
	require.NoError(t, json.Unmarshal(raw, &file))
	reject := []string{"no-block-count", "block-count-string", "block-count-1e9", "head-count-0", "heads-not-divisible", "embedding-negative",
		"used-gt-count", "expert-count-8", "experts-inconsistent", "tensor-missing", "shape-mismatch", "embedding-rows",
		"tokens-missing", "tokens-i32"}
	met := 0
	for _, c := range file.Cases {
		if c.Stage != "load" || !(slices.Contains(reject, c.ID) || c.Must == "accept") {
			continue
		}
		t.Run(c.ID, func(t *testing.T) {
			met++
			f := open(t, golden+"badgguf/files/"+c.Entry)
			p, err := run(t, "qwen3moe", recipehost.File(f))
			if c.Must == "accept" {
				require.NoError(t, err)
				require.Empty(t, leftOver(p, f.Tensors()))
				return
			}
			require.ErrorContains(t, err, `recipe "qwen3moe": `)
			require.Equal(t, fault.Corrupt, fault.KindOf(err))
			for _, say := range c.Say[1:] { // the first is the file, which the engine names
				says := func(word string) bool {
					return strings.Contains(strings.ToLower(err.Error()), strings.ToLower(word))
				}
				require.True(t, slices.ContainsFunc(strings.Split(say, "|"), says), "%q is not in %v", say, err)
			}
		})
	}
	require.Greater(t, met, len(reject))

	t.Run("tensor-unexpected", func(t *testing.T) {
		f := open(t, golden+"badgguf/files/tensor-unexpected.gguf")
		p, err := run(t, "qwen3moe", recipehost.File(f))
		require.NoError(t, err)
		require.Equal(t, []string{"blk.0.mystery.weight"}, leftOver(p, f.Tensors()), "for the engine to refuse")
	})
}
