package compute

import (
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/bigmoe/bigmoe/sdk/fault"
	"github.com/bigmoe/bigmoe/sdk/plan"
)

// maxBatch bounds the tokens of one evaluation, so that no size in a layout can overflow.
const maxBatch = 1 << 20

// Message returns m as it crosses the process boundary.
func (m *Bound) Message() (*Model, error) {
	if err := m.check(); err != nil {
		return nil, err
	}
	p, err := proto.Marshal(m.Plan)
	if err != nil {
		return nil, fault.Bugf("plan: %w", err)
	}
	return &Model{Plan: p, Weights: m.Weights, Banks: m.Banks, Options: m.Options}, nil
}

// Bind is the inverse of [Bound.Message]. It validates the plan and that everything belongs together.
func Bind(msg *Model) (*Bound, error) {
	p := &plan.Plan{}
	if err := proto.Unmarshal(msg.GetPlan(), p); err != nil {
		return nil, fault.Bugf("plan: %w", err)
	}
	values, err := plan.Validate(p)
	if err != nil {
		return nil, err
	}
	m := &Bound{Plan: p, Values: values, Weights: msg.Weights, Banks: msg.Banks, Options: msg.Options}
	return m, m.check()
}

func (m *Bound) check() error {
	switch o := m.Options; {
	case m.Plan == nil || m.Plan.Model == nil || m.Values == nil:
		return fault.Bugf("bound model: the plan is missing or was not validated")
	case len(m.Weights) != len(m.Plan.Weights) || len(m.Banks) != len(m.Plan.Banks):
		return fault.Bugf("bound model: %d weights and %d banks, the plan has %d and %d", len(m.Weights), len(m.Banks), len(m.Plan.Weights), len(m.Plan.Banks))
	case o == nil || o.Context == 0 || o.Batch == 0 || o.Batch > maxBatch || o.LogitRows == 0 || o.LogitRows > o.Batch:
		return fault.Bugf("bound model: options are impossible: %v", o)
	}
	for i, w := range m.Weights {
		if w == nil || w.RowBytes == 0 || w.RowBytes > 1<<40 {
			return fault.Bugf("bound model: weight %q has rows of %d bytes", m.Plan.Weights[i].Name, w.GetRowBytes())
		}
	}
	for i, b := range m.Banks {
		if b == nil || len(b.Parts) != len(m.Plan.Banks[i].Parts) {
			return fault.Bugf("bound model: bank %q has %d parts, the plan has %d", m.Plan.Banks[i].Name, len(b.GetParts()), len(m.Plan.Banks[i].Parts))
		}
	}
	return nil
}

// codeOf maps the kinds of failure to gRPC status codes.
var codeOf = map[fault.Kind]codes.Code{
	fault.Unknown:     codes.Unknown,
	fault.Corrupt:     codes.DataLoss,
	fault.User:        codes.InvalidArgument,
	fault.Unsupported: codes.Unimplemented,
	fault.Bug:         codes.Internal,
}

// toStatus makes the error of a control call that carries err's text and kind.
func toStatus(err error) error {
	if err == nil {
		return nil
	}
	return status.Error(codeOf[fault.KindOf(err)], err.Error())
}

// FromStatus is what the engine makes of the error of a control call: the backend's text with its [fault.Kind].
func FromStatus(err error) error {
	s, ok := status.FromError(err)
	if !ok || err == nil {
		return err
	}
	for kind, code := range codeOf {
		if s.Code() == code {
			return Fault(uint32(kind), s.Message())
		}
	}
	return err
}

// Fault makes an error of the number of a [fault.Kind] and a text, as they stand in a mailbox.
func Fault(kind uint32, text string) error {
	err := errors.New(text)
	if k := fault.Kind(kind); k > fault.Unknown && k <= fault.Bug {
		return fault.As(k, err)
	}
	return err
}
