package conformance_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/plugins/compute-cpu/cpu"
	"github.com/bigmoe/bigmoe/sdk/compute"
	"github.com/bigmoe/bigmoe/sdk/compute/conformance"
)

// TestMain lets the test binary be the CPU backend.
func TestMain(m *testing.M) {
	if kernels, ok := os.LookupEnv("BIGMOE_TEST_KERNELS"); ok {
		b, err := cpu.New(cpu.Options{Kernels: kernels})
		if err != nil {
			panic(err)
		}
		compute.Serve(b)
		return
	}
	os.Exit(m.Run())
}

// TestCPU checks the fastest kernels and the plain reference.
func TestCPU(t *testing.T) {
	self, err := os.Executable()
	require.NoError(t, err)
	for _, kernels := range []string{"", "go"} {
		t.Run("kernels="+kernels, func(t *testing.T) {
			report, err := conformance.Run(t.Context(), conformance.Options{Path: self, Env: []string{"BIGMOE_TEST_KERNELS=" + kernels}})
			require.NoError(t, err)
			for _, c := range report.Checks {
				if c.Outcome != conformance.Pass {
					t.Errorf("%s: %s: %s: %s", c.Group, c.Name, c.Outcome, c.Why)
				}
			}
			require.Greater(t, len(report.Checks), 200)
		})
	}
}
