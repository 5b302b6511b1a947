// Command bigmoe-compute-cpu is the CPU backend as a program of its own; bigmoe starts it when told to with --backend.
package main

import (
	"flag"
	"fmt"
	"os"
	"runtime/debug"

	"github.com/bigmoe/bigmoe/plugins/compute-cpu/cpu"
	"github.com/bigmoe/bigmoe/sdk/compute"
)

func main() {
	show := flag.Bool("version", false, "print name, version and kernels, and exit")
	kernels := flag.String("kernels", "", fmt.Sprintf("kernel set, one of %q (default: the last)", cpu.Kernels()))
	flag.Parse()
	backend, err := cpu.New(cpu.Options{Version: version(), Kernels: *kernels})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	if *show {
		d := backend.Describe()
		fmt.Println(d.Name, d.Version, d.Kernels)
		return
	}
	compute.Serve(backend)
}

// version is what the module was built as.
func version() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		return info.Main.Version
	}
	return "unknown"
}
