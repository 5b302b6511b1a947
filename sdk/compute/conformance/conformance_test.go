package conformance_test

import (
	"context"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/plugins/compute-cpu/cpu"
	"github.com/bigmoe/bigmoe/sdk/compute"
	"github.com/bigmoe/bigmoe/sdk/compute/conformance"
	"github.com/bigmoe/bigmoe/sdk/fault"
)

const (
	kernelsEnv = "BIGMOE_TEST_KERNELS" // makes the test binary the CPU backend
	faultEnv   = "BIGMOE_TEST_FAULT"   // with a fault
)

func TestMain(m *testing.M) {
	kernels, ok := os.LookupEnv(kernelsEnv)
	if !ok {
		os.Exit(m.Run())
	}
	b, err := cpu.New(cpu.Options{Kernels: kernels})
	if err != nil {
		panic(err)
	}
	wrong := os.Getenv(faultEnv)
	if wrong == "survives the engine" {
		signal.Ignore(syscall.SIGPIPE)
		// The lifeline of compute.Serve is this descriptor: give it one that never ends.
		r, _, err := os.Pipe()
		if err != nil || syscall.Dup2(int(r.Fd()), compute.LifelineFD) != nil {
			panic("no pipe")
		}
	}
	compute.Serve(faulty{b, wrong})
}

func options(t *testing.T, wrong, kernels string) conformance.Options {
	self, err := os.Executable()
	require.NoError(t, err)
	return conformance.Options{Path: self, Env: []string{kernelsEnv + "=" + kernels, faultEnv + "=" + wrong}}
}

// TestCPU checks the fastest kernels and the plain reference.
func TestCPU(t *testing.T) {
	for _, kernels := range []string{"", "go"} {
		t.Run("kernels="+kernels, func(t *testing.T) {
			o, least := options(t, "", kernels), 200
			if raceEnabled {
				o.Only, least = []string{"streaming", "rewind", "refusals", "end"}, 60
			}
			report, err := conformance.Run(t.Context(), o)
			require.NoError(t, err)
			for _, c := range report.Checks {
				if c.Outcome != conformance.Pass {
					t.Errorf("%s: %s: %s: %s", c.Group, c.Name, c.Outcome, c.Why)
				}
			}
			require.Greater(t, len(report.Checks), least)
		})
	}
}

// TestFaults: each fault is found, by the check that is there for it.
func TestFaults(t *testing.T) {
	for _, c := range []struct{ fault, group, check, why string }{
		{"has no name", "start", "describes itself", "no name"},
		{"has a long name", "start", "describes itself", "together expected at most 300"},
		{"hides an op", "ops", "softcap", "takes op softcap, which it does not describe"},
		{"rounds too much", "ops", "rms_norm", "expected"},
		{"depends on the waves", "streaming", "one expert at a time", "same bits"},
		{"writes over tokens", "streaming", "writes only where it may", "is not the backend's to write"},
		{"writes over a weight", "streaming", "writes only where it may", "is not the backend's to write"},
		{"writes behind the region", "streaming", "writes only where it may", "is not the backend's to write"},
		{"takes its own weights", "streaming", "weights that the engine changes", "change nothing"},
		{"ignores cancelling", "streaming", "cancelled between waves", "the evaluation worked"},
		{"forgets nothing", "rewind", "trim, and another continuation", ""},
		{"refuses as the wrong kind", "refusals", "prepare: an unknown type of weight", "refused as user mistake, expected [unsupported]"},
		{"needs nothing", "memory", "what it announced is what it takes", "it announced 0 MiB"},
		{"survives the engine", "end", "the engine goes while it is idle", "still there"},
	} {
		t.Run(c.fault, func(t *testing.T) {
			if raceEnabled && c.group != "streaming" {
				t.Skip("nothing there runs at the same time")
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			o := options(t, c.fault, "")
			o.Only = []string{c.group}
			found := conformance.Check{}
			o.Progress = func(got conformance.Check) {
				if got.Group == c.group && got.Name == c.check {
					found = got
					cancel() // enough
				}
			}
			_, _ = conformance.Run(ctx, o)
			require.Equal(t, conformance.Fail, found.Outcome, "%+v", found)
			require.Contains(t, found.Why, c.why)
		})
	}
}

// TestNoBackend: a program that does not start is one failed check.
func TestNoBackend(t *testing.T) {
	report, err := conformance.Run(t.Context(), conformance.Options{Path: "/bin/true"})
	require.NoError(t, err)
	require.Nil(t, report.Backend)
	require.Len(t, report.Checks, 1)
	require.Equal(t, conformance.Fail, report.Checks[0].Outcome)
}

// faulty is a backend with a fault.
type faulty struct {
	compute.Backend
	fault string
}

func (f faulty) Describe() *compute.Description {
	d := f.Backend.Describe()
	switch f.fault {
	case "has no name":
		d.Name = ""
	case "has a long name":
		d.Kernels = strings.Repeat("k", 300)
	case "hides an op":
		d.Ops = strings.Fields(strings.ReplaceAll(strings.Join(d.Ops, " "), "softcap", ""))
	}
	return d
}

func (f faulty) Prepare(m *compute.Bound) (*compute.Needs, error) {
	n, err := f.Backend.Prepare(m)
	if err != nil && f.fault == "refuses as the wrong kind" {
		return nil, fault.Userf("%s", err)
	}
	if err == nil && f.fault == "needs nothing" {
		return &compute.Needs{StateBytes: uint64(m.Options.Context)}, nil
	}
	return n, err
}

func (f faulty) Load(m *compute.Bound, r *compute.Region) (compute.Sequence, error) {
	if f.fault == "writes over a weight" { // once, so that all evaluations agree
		for _, w := range m.Weights {
			if w.Offset > 0 {
				r.Bytes[w.Offset] ^= 1
			}
		}
	}
	seq, err := f.Backend.Load(m, r)
	return &faultySequence{Sequence: seq, fault: f.fault, region: r}, err
}

type faultySequence struct {
	compute.Sequence
	fault  string
	region *compute.Region
	evals  byte
}

func (s *faultySequence) Trim(position int) error {
	if s.fault == "forgets nothing" && position > 0 {
		return nil
	}
	return s.Sequence.Trim(position)
}

func (s *faultySequence) Eval(ctx context.Context, b *compute.Batch, h compute.Host) error {
	host := &faultyHost{Host: h, fault: s.fault}
	err := s.Sequence.Eval(ctx, b, host)
	if s.fault == "ignores cancelling" && err != nil {
		err = nil
	}
	s.evals++
	switch s.fault {
	case "writes over tokens":
		b.Tokens[0] = -1
	case "writes behind the region":
		s.region.Bytes[1<<20] = s.evals
	}
	for i := range b.Logits {
		if s.fault == "rounds too much" {
			b.Logits[i] *= 1.0001
		}
		if s.fault == "depends on the waves" {
			b.Logits[i] += float32(host.waves) / (1 << 16)
		}
	}
	return err
}

type faultyHost struct {
	compute.Host
	fault string
	waves int
}

func (h *faultyHost) Route(bank, k int, ids []int32, weights []float32) (compute.Wave, error) {
	before := append([]float32(nil), weights...)
	w, err := h.Host.Route(bank, k, ids, weights)
	if h.fault == "takes its own weights" {
		copy(weights, before)
	}
	return w, err
}

func (h *faultyHost) Next() (compute.Wave, error) {
	h.waves++
	return h.Host.Next()
}
