package backend

import (
	"context"
	"os"

	"github.com/bigmoe/bigmoe/sdk/compute"
	"github.com/bigmoe/bigmoe/sdk/compute/memory"
	"github.com/bigmoe/bigmoe/sdk/fault"
)

// Device is a compute backend ready for use, in this process or in a child.
type Device interface {
	// Describe says what the backend is and can do.
	Describe() *compute.Description
	// Prepare is compute.Backend.Prepare.
	Prepare(ctx context.Context, m *compute.Bound) (*compute.Needs, error)
	// Load is compute.Backend.Load in the memory that the device was made with. The weights are in place by now. It
	// closes the sequence loaded before. A Load that ctx ends takes the device with it.
	Load(ctx context.Context, m *compute.Bound, l *compute.Layout) (compute.Sequence, error)
	// Dead returns nil as long as the device works, and then why it does not any more.
	Dead() error
	// PID is the process that the device runs in.
	PID() int
	// Close ends the device. The memory stays.
	Close() error
}

// InProcess makes a device of a backend linked into this program: the same results without a process boundary.
func InProcess(b compute.Backend, m *memory.Memory) Device { return &local{backend: b, memory: m} }

type local struct {
	backend compute.Backend
	memory  *memory.Memory
	seq     compute.Sequence
}

func (d *local) Describe() *compute.Description { return d.backend.Describe() }
func (d *local) Dead() error                    { return nil }
func (d *local) PID() int                       { return os.Getpid() }

func (d *local) Prepare(_ context.Context, m *compute.Bound) (*compute.Needs, error) {
	return d.backend.Prepare(m)
}

func (d *local) Load(_ context.Context, m *compute.Bound, l *compute.Layout) (compute.Sequence, error) {
	if err := d.Close(); err != nil {
		return nil, err
	}
	bytes := d.memory.Bytes()
	if err := l.Check(m, uint64(len(bytes))); err != nil {
		return nil, err
	}
	region, err := compute.NewRegion(bytes, l.Ready, l.Slots)
	if err != nil {
		return nil, fault.As(fault.Bug, err)
	}
	seq, err := d.backend.Load(m, region)
	if err != nil {
		return nil, err
	}
	d.seq = &once{Sequence: seq, region: region}
	return d.seq, nil
}

func (d *local) Close() error {
	if d.seq == nil {
		return nil
	}
	err := d.seq.Close()
	d.seq = nil
	return err
}

// once closes its sequence only once, and measures how long it waits for experts.
type once struct {
	compute.Sequence
	region *compute.Region
	closed bool
}

func (s *once) Eval(ctx context.Context, b *compute.Batch, host compute.Host) error {
	waited := s.region.Waited()
	err := s.Sequence.Eval(ctx, b, host)
	b.Stall = s.region.Waited() - waited
	return err
}

func (s *once) Close() error {
	if s.closed {
		return nil
	}
	s.closed = true
	return s.Sequence.Close()
}
