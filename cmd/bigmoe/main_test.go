package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/rogpeppe/go-internal/testscript"
	"github.com/stretchr/testify/require"
)

// TestMain lets the test binary be bigmoe: under that name for scripts, and as the backend child of tests that run
// verbs in this process.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == computeVerb {
		main()
	}
	testscript.Main(m, map[string]func(){"bigmoe": main})
}

const goldenDir = "../../testdata/golden"

func TestScripts(t *testing.T) {
	golden, err := filepath.Abs(goldenDir)
	require.NoError(t, err)
	module, err := filepath.Abs("../../recipes/qwen3moe/qwen3moe.wasm")
	require.NoError(t, err)
	program, err := exec.LookPath("bigmoe")
	require.NoError(t, err)
	cache := goCache(t)
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		Setup: func(env *testscript.Env) error {
			env.Setenv("GOLDEN", golden)
			env.Setenv("MODULES", filepath.Join(golden, "../../engine/recipehost/testdata"))
			env.Setenv("XDG_CACHE_HOME", filepath.Join(env.WorkDir, "cache"))
			env.Setenv("XDG_DATA_HOME", filepath.Join(env.WorkDir, "data"))
			env.Setenv("HOME", env.WorkDir)
			env.Setenv("BIGMOE", program)
			env.Setenv("GOCACHE", cache) // recipes are built, and Go's own packages are most of them
			env.Setenv("MODULE", module)
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits":    exits,
			"registry": ociRegistry,
			"spoil":    spoil,
		},
	})
}

// ociRegistry [stop] starts a registry on this machine, whose address is then $REGISTRY, or stops it.
func ociRegistry(ts *testscript.TestScript, neg bool, args []string) {
	switch {
	case !neg && len(args) == 0:
		server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
		ts.Defer(server.Close)
		ts.Setenv("REGISTRY", server.Listener.Addr().String())
		registries.Store(ts.Getenv("REGISTRY"), server)
	case !neg && len(args) == 1 && args[0] == "stop":
		server, _ := registries.Load(ts.Getenv("REGISTRY"))
		server.(*httptest.Server).Close()
	default:
		ts.Fatalf("usage: registry [stop]")
	}
}

// registries are those that scripts started, by address.
var registries sync.Map

// spoil PATTERN appends a byte to the one file that fits.
func spoil(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: spoil PATTERN")
	}
	paths, err := filepath.Glob(ts.MkAbs(args[0]))
	ts.Check(err)
	if len(paths) != 1 {
		ts.Fatalf("%d files, expected 1", len(paths))
	}
	content, err := os.ReadFile(paths[0])
	ts.Check(err)
	info, err := os.Stat(paths[0])
	ts.Check(err)
	ts.Check(os.Remove(paths[0])) // it may be read-only
	ts.Check(os.WriteFile(paths[0], append(content, '\n'), info.Mode()))
}

// exits CODE PROGRAM ARG... runs a program that must end with that code.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE PROGRAM ARG...")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	err = ts.Exec(args[1], args[2:]...)
	got := 0
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		got = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if got != want {
		ts.Fatalf("exit code %d, expected %d\n%s", got, want, ts.ReadFile("stderr"))
	}
}

// run runs a command line in this process, without environment or input.
func run(args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	a := &app{stdin: &bytes.Buffer{}, stdout: &out, stderr: &errs, lookupEnv: func(string) (string, bool) { return "", false }}
	code = a.execute(context.Background(), args)
	return code, out.String(), errs.String()
}

func TestPanicIsABug(t *testing.T) {
	var errs bytes.Buffer
	a := &app{stdin: &bytes.Buffer{}, stdout: panics{}, stderr: &errs, lookupEnv: os.LookupEnv}
	require.Equal(t, 70, a.execute(context.Background(), []string{"version"}))
	require.Contains(t, errs.String(), "bigmoe: oh no\nthis is a bug in bigmoe")
	require.Contains(t, errs.String(), "main_test.go", "the stack")
}

type panics struct{}

func (panics) Write([]byte) (int, error) { panic("oh no") }

// Every verb explains itself with an example, and nothing that can be set lacks an explanation.
func TestHelp(t *testing.T) {
	a := &app{}
	var visit func(args []string)
	visit = func(args []string) {
		code, out, errs := run(append([]string{"help"}, args...)...)
		require.Zero(t, code, "%v: %s", args, errs)
		require.Contains(t, out, "Usage:\n  bigmoe", "%v", args)
		require.Contains(t, out, "Example:\n  ", "%v", args)
		cmd, _, err := a.root().Find(args)
		require.NoError(t, err)
		for _, sub := range cmd.Commands() {
			if sub.IsAvailableCommand() {
				visit(append(args[:len(args):len(args)], sub.Name()))
			}
		}
	}
	visit(nil)
}
