package main

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/bigmoe/bigmoe/plugins/compute-cpu/cpu"
	"github.com/bigmoe/bigmoe/sdk/compute"
)

// computeVerb makes a copy of this program its own backend process.
const computeVerb = "compute-cpu"

// referenceArgs are those of the verb that make it compute in plain Go.
var referenceArgs = []string{computeVerb, "--kernels", "go"}

func computeCommand() *cobra.Command {
	var kernels string
	cmd := &cobra.Command{
		Use:    computeVerb,
		Short:  "Be the built-in CPU backend of the bigmoe that started this process",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			signal.Ignore(os.Interrupt) // Ctrl-C reaches the whole process group; when to end is the engine's business
			signal.Reset(syscall.SIGTERM)
			b, err := cpu.New(cpu.Options{Version: readVersion().Version, Kernels: kernels})
			if err != nil {
				return err
			}
			compute.Serve(b)
			return nil
		},
	}
	cmd.Flags().StringVar(&kernels, "kernels", "", fmt.Sprintf("kernel set, one of %q; default: the last", cpu.Kernels()))
	return cmd
}
