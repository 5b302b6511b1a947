package engine_test

import (
	"os"
	"testing"

	"github.com/bigmoe/bigmoe/engine"
	"github.com/bigmoe/bigmoe/plugins/compute-cpu/cpu"
	"github.com/bigmoe/bigmoe/recipes"
	"github.com/bigmoe/bigmoe/sdk/compute"
	"github.com/bigmoe/bigmoe/sdk/fault"
)

// childArg makes the test binary a backend process.
const childArg = "-be-a-backend"

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == childArg {
		compute.Serve(newCPU(""))
		return
	}
	engine.SetClosePatience(prompt) // a busy machine is no read that hangs
	os.Exit(m.Run())
}

// backends are the ways to run the CPU backend: the plain Go reference, the best kernels of this machine in this
// process, and the same in a child process.
func backends() map[string]engine.Backend {
	plain := "go"
	if raceEnabled {
		plain = "" // see race_on_test.go
	}
	self, err := os.Executable()
	if err != nil {
		panic(err)
	}
	return map[string]engine.Backend{
		"reference":     {InProcess: newCPU(plain)},
		"in process":    {InProcess: newCPU("")},
		"child process": {Path: self, Args: []string{childArg}},
	}
}

// arithmetic skips a test of numbers under the race detector: it is slow there, and what runs at the same time is what
// TestGoldens and the identity tests of the same models run.
func arithmetic(t *testing.T) {
	t.Helper()
	if raceEnabled {
		t.Skip("tests arithmetic, not concurrency")
	}
}

func newCPU(kernels string) compute.Backend {
	b, err := cpu.New(cpu.Options{Kernels: kernels})
	if err != nil {
		panic(err)
	}
	return b
}

// builtin finds the recipes that ship with bigmoe.
type builtin struct{}

func (builtin) Find(name string) (engine.Recipe, error) {
	wasm, ok := recipes.Lookup(name)
	if !ok {
		return engine.Recipe{}, fault.Unsupportedf("no recipe %q; there are %v", name, recipes.Names())
	}
	return engine.Recipe{Name: name, Module: wasm}, nil
}
