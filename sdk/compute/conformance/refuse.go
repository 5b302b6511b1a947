package conformance

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/bigmoe/bigmoe/sdk/compute"
	"github.com/bigmoe/bigmoe/sdk/compute/mailbox"
	"github.com/bigmoe/bigmoe/sdk/compute/optable"
	"github.com/bigmoe/bigmoe/sdk/fault"
	"github.com/bigmoe/bigmoe/sdk/plan"
)

// refusals asks for what cannot be done. Each must be answered by an error of the right kind, by a process that goes on.
func (s *suite) refusals() {
	unsupported, bug := []fault.Kind{fault.Unsupported}, []fault.Kind{fault.Bug}
	invalid := []fault.Kind{fault.Corrupt, fault.Bug, fault.Unsupported} // a plan that is wrong or newer: who can tell?
	for _, r := range []struct {
		name   string
		change func(msg *compute.Model, p *plan.Plan)
		kinds  []fault.Kind
		says   string
	}{
		{"an unknown op", func(_ *compute.Model, p *plan.Plan) { p.Blocks[1].Ops[0].Kind = "warp" }, unsupported, "warp"},
		{"an unknown attribute", func(_ *compute.Model, p *plan.Plan) {
			a := &p.Blocks[1].Ops[0].Attrs
			*a = append(*a, &plan.Attr{Name: "wobble", Value: &plan.Attr_B{B: true}})
		}, invalid, "wobble"},
		{"an unknown type of weight", func(m *compute.Model, _ *plan.Plan) { m.Weights[1].Type = 4 }, unsupported, `"q"`},
		{"an unknown type of expert", func(m *compute.Model, _ *plan.Plan) { m.Banks[0].Parts[1].Type = 4 }, unsupported, `"bank"`},
		{"a newer plan schema", func(_ *compute.Model, p *plan.Plan) { p.Schema = 1 << 20 }, unsupported, "1048576"},
		{"a plan that is none", func(m *compute.Model, _ *plan.Plan) { m.Plan = []byte("\xff\xff\xff") }, bug, ""},
		{"a value that no op defines", func(_ *compute.Model, p *plan.Plan) { p.Blocks[1].Ops[0].In[0] = "nothing" }, invalid, "nothing"},
		{"rows that are too short for their type", func(m *compute.Model, _ *plan.Plan) { m.Weights[1].RowBytes-- }, bug, `"q"`},
		{"too few weights", func(m *compute.Model, _ *plan.Plan) { m.Weights = m.Weights[1:] }, bug, ""},
		{"too few banks", func(m *compute.Model, _ *plan.Plan) { m.Banks = nil }, bug, ""},
		{"no options", func(m *compute.Model, _ *plan.Plan) { m.Options = nil }, bug, ""},
		{"a batch of nothing", func(m *compute.Model, _ *plan.Plan) { m.Options.Batch = 0 }, bug, ""},
		{"more logits than tokens", func(m *compute.Model, _ *plan.Plan) { m.Options.LogitRows++ }, bug, ""},
	} {
		s.run("refusals", "prepare: "+r.name, func() error {
			msg, _, err := s.layerMessage(r.change)
			if err != nil {
				return err
			}
			_, err = s.peer.prepare(s.ctx, msg)
			return s.goesOn(kindIs(err, r.says, r.kinds...))
		})
	}
	s.badLoads()
	s.badBatches()
}

// layerMessage is the layer, placed in the region of the running program, with a change.
func (s *suite) layerMessage(change func(*compute.Model, *plan.Plan)) (*compute.Model, *optable.Model, error) {
	p, m, err := s.build(optable.Layer())
	if err != nil {
		return nil, nil, err
	}
	if p.text != nil {
		if err := p.text.close(s.ctx); err != nil {
			return nil, nil, err
		}
	}
	if err := m.Place(6, p.room); err != nil {
		return nil, nil, err
	}
	msg, err := m.Bound.Message()
	if err != nil {
		return nil, nil, err
	}
	msg = proto.Clone(msg).(*compute.Model)
	before := msg.Plan
	change(msg, m.Bound.Plan)
	if string(msg.Plan) == string(before) {
		msg.Plan, err = proto.Marshal(m.Bound.Plan)
	}
	return msg, m, err
}

// kindIs wants the error of a control call to say something and to have one of these kinds.
func kindIs(err error, says string, kinds ...fault.Kind) error {
	switch {
	case err == nil:
		return errors.New("it was not refused")
	case errors.Is(err, errDied):
		return err
	case !slices.Contains(kinds, fault.KindOf(err)):
		return fmt.Errorf("refused as %v, expected %v: %w", fault.KindOf(err), kinds, err)
	case !strings.Contains(err.Error(), says):
		return fmt.Errorf("the error is %q, expected %q in it", err, says)
	}
	return nil
}

// goesOn wants the program to work as before, unless err says that something was wrong already.
func (s *suite) goesOn(err error) error {
	if err != nil {
		return err
	}
	pid := s.peer.cmd.Process.Pid
	t, want, err := s.layer()
	if err == nil {
		err = s.sameAgain(t, optable.NewHost(t.model), want)
	}
	if err != nil {
		return fmt.Errorf("afterwards: %w", err)
	}
	if s.peer.cmd.Process.Pid != pid {
		return fmt.Errorf("%w after it", errDied)
	}
	return nil
}

func (s *suite) badLoads() {
	for _, r := range []struct {
		name   string
		change func(msg *compute.LoadRequest, region []byte)
	}{
		{"a weight that ends outside the region", func(r *compute.LoadRequest, _ []byte) { r.Model.Weights[1].Offset = r.Layout.RegionBytes - 64 }},
		{"a weight far outside the region", func(r *compute.LoadRequest, _ []byte) { r.Model.Weights[1].Offset = math.MaxUint64 - 63 }},
		{"a layout that is larger than the region", func(r *compute.LoadRequest, _ []byte) { r.Layout.RegionBytes = regionBytes + 4096 }},
		{"a mailbox outside the region", func(r *compute.LoadRequest, _ []byte) { r.Layout.Mailbox = r.Layout.RegionBytes - 64 }},
		{"tokens outside the region", func(r *compute.LoadRequest, _ []byte) { r.Layout.Tokens = r.Layout.RegionBytes }},
		{"logits outside the region", func(r *compute.LoadRequest, _ []byte) { r.Layout.Logits = math.MaxUint64 - 63 }},
		{"readiness words outside the region", func(r *compute.LoadRequest, _ []byte) { r.Layout.Slots = math.MaxUint64 / 4 }},
		{"rows outside the region", func(r *compute.LoadRequest, _ []byte) { r.Layout.Rows = r.Layout.RegionBytes }},
		{"no room for the picks of a batch", func(r *compute.LoadRequest, _ []byte) { r.Layout.MaxRoute = 1 }},
		{"no layout", func(r *compute.LoadRequest, _ []byte) { r.Layout = nil }},
		{"a mailbox that is none", func(r *compute.LoadRequest, region []byte) { region[r.Layout.Mailbox]++ }},
		{"a newer mailbox", func(r *compute.LoadRequest, region []byte) { region[r.Layout.Mailbox+4]++ }},
	} {
		s.run("refusals", "load: "+r.name, func() error {
			msg, m, err := s.layerMessage(func(*compute.Model, *plan.Plan) {})
			if err != nil {
				return err
			}
			region := s.peer.memory.Bytes()
			if _, err := mailbox.Format(region[m.Layout.Mailbox:]); err != nil {
				return err
			}
			req := &compute.LoadRequest{Model: msg, Layout: m.Layout}
			r.change(req, region)
			return s.goesOn(kindIs(s.peer.loadRaw(s.ctx, req), "", fault.Bug))
		})
	}
	s.onLayer("refusals", "load: while another sequence is loaded", func(t *text, h *optable.Host, want []float32) error {
		msg, err := t.bound.Message()
		if err != nil {
			return err
		}
		if err := kindIs(s.peer.loadRaw(s.ctx, &compute.LoadRequest{Model: msg, Layout: t.model.Layout}), "", fault.Bug); err != nil {
			return err
		}
		return s.sameAgain(t, h, want)
	})
}

// refusedEval wants an evaluation to have been refused as a kind, and the next one, after a reset, to work.
func (s *suite) refusedEval(t *text, err error, kind fault.Kind, want []float32) error {
	if err := refusedAs(err, kind); err != nil {
		return err
	}
	return s.recovers(t, want, err, "")
}

func (s *suite) badBatches() {
	for _, r := range []struct {
		name string
		msg  mailbox.Message
		kind fault.Kind
	}{
		{"no tokens", mailbox.Message{}, fault.Bug},
		{"more tokens than a batch has", mailbox.Message{Tokens: optable.Tokens + 1}, fault.Bug},
		{"far more tokens", mailbox.Message{Tokens: math.MaxUint32, All: true}, fault.Bug},
		{"positions past the context", mailbox.Message{Tokens: optable.Tokens, Position: 1 << 40}, fault.Bug},
	} {
		s.onLayer("refusals", "eval: "+r.name, func(t *text, h *optable.Host, want []float32) error {
			r.msg.Kind = mailbox.Eval
			return s.refusedEval(t, t.request(s.ctx, &r.msg), r.kind, want)
		})
	}
	s.onLayer("refusals", "eval: more positions than the context", func(t *text, h *optable.Host, want []float32) error {
		if _, err := t.eval(s.ctx, h, true, optable.AllTokens()...); err != nil {
			return err
		}
		_, err := t.eval(s.ctx, h, true, 0)
		return s.refusedEval(t, err, fault.User, want)
	})
	s.onLayer("refusals", "eval: a token outside the vocabulary", func(t *text, h *optable.Host, want []float32) error {
		msg := t.place(t.model.Batch(0, true, 1))
		t.model.Region.Int32s(t.model.Layout.Tokens, 1)[0] = math.MaxInt32
		return s.refusedEval(t, t.request(s.ctx, msg), fault.User, want)
	})
	s.onLayer("refusals", "a message of an unknown kind ends the process with a word", func(t *text, _ *optable.Host, _ []float32) error {
		t.end.Send(&mailbox.Message{Kind: 77})
		if !t.peer.gone(exitTime) {
			return fmt.Errorf("still there after %v", exitTime)
		}
		if t.peer.said.String() == "" {
			return errors.New("it ended without a message on standard error")
		}
		return nil
	})
}
