// Package cpu is the compute backend for the processor the program runs on.
//
//	func main() { compute.Serve(cpu.New(cpu.Options{})) }
//
// It executes plans with weights as they lie in the file: quantised weights meet activations rounded to 8 bits
// (specs/quants.md), float weights meet float32. The instruction set is chosen when the backend is made; plain Go
// remains as the reference that every other set is compared with.
//
// Results are the same bits for any number of threads, any split of a text into batches, and any order in which experts
// arrive. They differ between instruction sets in the last bits of float32 sums.
//
// # Caveats
//
// Load allocates nothing that Prepare did not announce, and Eval allocates nothing. States are private memory that is
// taken page by page as positions are filled.
//
// # Concurrency
//
// As [compute.Backend] and [compute.Sequence] say: one call at a time. Eval uses the number of threads in the options,
// the calling one included; between calls they sleep.
package cpu

import (
	"context"
	"runtime"

	"github.com/bigmoe/bigmoe/plugins/compute-cpu/internal/kernel"
	"github.com/bigmoe/bigmoe/plugins/compute-cpu/internal/program"
	"github.com/bigmoe/bigmoe/sdk/compute"
	"github.com/bigmoe/bigmoe/sdk/dtype"
	"github.com/bigmoe/bigmoe/sdk/fault"
	"github.com/bigmoe/bigmoe/sdk/plan"
)

// Name is what the backend calls itself.
const Name = "cpu"

// Options choose how the backend computes.
type Options struct {
	Version string // reported by Describe
	Kernels string // name of a kernel set; empty: the fastest this processor and build can run
}

// New returns the backend. It fails when the kernel set is not one of [Kernels].
func New(o Options) (compute.Backend, error) {
	set := kernel.Best()
	if o.Kernels != "" {
		var ok bool
		if set, ok = kernel.ByName(o.Kernels); !ok {
			return nil, fault.Userf("no kernels %q here: this processor and build have %q", o.Kernels, Kernels())
		}
	}
	return &backend{version: o.Version, set: set}, nil
}

// Kernels returns the names of the kernel sets that run here, the reference first and the fastest last.
func Kernels() []string {
	var out []string
	for _, s := range kernel.Sets() {
		out = append(out, s.Name)
	}
	return out
}

type backend struct {
	version string
	set     *kernel.Set
}

var _ compute.Backend = (*backend)(nil)

func (b *backend) Describe() *compute.Description {
	d := &compute.Description{Name: Name, Version: b.version, Kernels: b.set.Name, Ops: program.Ops(), PlanSchema: plan.SchemaVersion,
		Threads: uint32(runtime.NumCPU())}
	for t := range dtype.Type(256) {
		if _, ok := kernel.ActFor(t); ok {
			d.Types = append(d.Types, uint32(t))
		}
	}
	return d
}

func (b *backend) Prepare(m *compute.Bound) (*compute.Needs, error) {
	p, err := program.Compile(m)
	if err != nil {
		return nil, err
	}
	return p.Needs(), nil
}

func (b *backend) Load(m *compute.Bound, region *compute.Region) (compute.Sequence, error) {
	p, err := program.Compile(m)
	if err != nil {
		return nil, err
	}
	machine, err := p.Load(b.set, region)
	if err != nil {
		return nil, err
	}
	return sequence{machine}, nil
}

type sequence struct{ machine *program.Machine }

var _ compute.Sequence = sequence{}

func (s sequence) Eval(ctx context.Context, b *compute.Batch, host compute.Host) error {
	return s.machine.Eval(ctx, b, host)
}
func (s sequence) Trim(position int) error { return s.machine.Trim(position) }
func (s sequence) Close() error            { return s.machine.Close() }
