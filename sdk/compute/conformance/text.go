package conformance

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/bigmoe/bigmoe/sdk/compute"
	"github.com/bigmoe/bigmoe/sdk/compute/mailbox"
	"github.com/bigmoe/bigmoe/sdk/compute/optable"
	"github.com/bigmoe/bigmoe/sdk/fault"
)

// text is a loaded model and the engine's end of its mailbox.
type text struct {
	peer  *peer
	model *optable.Model
	bound *compute.Bound
	box   *mailbox.Mailbox
	end   *mailbox.End
	at    int // positions so far

	last *mailbox.Message // what the backend sent last
}

// prepare asks whether the model can be run.
func (p *peer) prepare(ctx context.Context, msg *compute.Model) (needs *compute.Needs, err error) {
	err = p.call(ctx, "Prepare", func(ctx context.Context) error {
		needs, err = p.control.Prepare(ctx, msg)
		return err
	})
	return needs, err
}

// load prepares and loads a model, placed in the region. Options that are nil are the model's.
func (p *peer) load(ctx context.Context, m *optable.Model, o *compute.Options) (*text, error) {
	if err := m.Place(6, p.room); err != nil {
		return nil, err
	}
	if o == nil {
		o = m.Bound.Options
	}
	return p.loadPlaced(ctx, m, o)
}

// room is the memory for a model.
func (p *peer) room(n uint64) ([]byte, error) {
	if bytes := p.memory.Bytes(); n <= uint64(len(bytes)) {
		return bytes, nil
	}
	return nil, fmt.Errorf("the suite's region of %d bytes is too small for %d", regionBytes, n)
}

// loadPlaced is load of a model that lies in the region already.
func (p *peer) loadPlaced(ctx context.Context, m *optable.Model, o *compute.Options) (*text, error) {
	bound := m.Options(o)
	msg, err := bound.Message()
	if err != nil {
		return nil, err
	}
	if _, err := p.prepare(ctx, msg); err != nil {
		if fault.KindOf(err) == fault.Unsupported {
			return nil, unsupported{err}
		}
		return nil, fmt.Errorf("Prepare: %w", err)
	}
	if p.text != nil {
		if err := p.text.close(ctx); err != nil {
			return nil, err
		}
	}
	box, err := mailbox.Format(p.memory.Bytes()[m.Layout.Mailbox:])
	if err != nil {
		return nil, err
	}
	if err := p.loadRaw(ctx, &compute.LoadRequest{Model: msg, Layout: m.Layout}); err != nil {
		return nil, fmt.Errorf("Load: %w", err)
	}
	p.text = &text{peer: p, model: m, bound: bound, box: box, end: box.Engine()}
	return p.text, nil
}

func (p *peer) loadRaw(ctx context.Context, req *compute.LoadRequest) error {
	return p.call(ctx, "Load", func(ctx context.Context) error {
		_, err := p.control.Load(ctx, req)
		return err
	})
}

// refused is an ERROR of the backend.
type refused struct{ error }

func (r refused) Unwrap() error { return r.error }

// ask sends a message and waits for what the backend answers.
func (t *text) ask(ctx context.Context, msg *mailbox.Message) (*mailbox.Message, error) {
	t.end.Send(msg)
	return t.receive(ctx, msg.Kind)
}

func (t *text) receive(ctx context.Context, during mailbox.Kind) (*mailbox.Message, error) {
	deadline := time.Now().Add(t.peer.o.Patience)
	for !t.end.Wait(10 * time.Millisecond) {
		switch {
		case !t.peer.alive():
			return nil, t.peer.died(fmt.Sprintf("instead of answering %v", during))
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case time.Now().After(deadline):
			return nil, fmt.Errorf("no answer to %v within %v", during, t.peer.o.Patience)
		}
	}
	m, err := t.end.Message()
	t.last = &m
	return &m, err
}

// request is for messages that Done or Error answers.
func (t *text) request(ctx context.Context, msg *mailbox.Message) error {
	reply, err := t.ask(ctx, msg)
	if err != nil {
		return err
	}
	return t.ended(msg.Kind, reply)
}

// ended turns the last answer into an error or nil.
func (t *text) ended(asked mailbox.Kind, reply *mailbox.Message) error {
	switch {
	case reply.Kind == mailbox.Done:
		return nil
	case reply.Kind != mailbox.Error:
		return fmt.Errorf("%v answers %v", reply.Kind, asked)
	case reply.Text == "":
		return errors.New("an error without a text")
	case reply.Fault > uint32(fault.Bug):
		return fmt.Errorf("an error of kind %d", reply.Fault)
	}
	return refused{compute.Fault(reply.Fault, reply.Text)}
}

func (t *text) trim(ctx context.Context, position int) error {
	err := t.request(ctx, &mailbox.Message{Kind: mailbox.Trim, Position: uint64(position)})
	if err == nil {
		t.at = position
	}
	return err
}

func (t *text) close(ctx context.Context) error {
	t.peer.text = nil
	return t.request(ctx, &mailbox.Message{Kind: mailbox.Close})
}

// place writes the inputs of a batch into the region and returns the request.
func (t *text) place(b *compute.Batch) *mailbox.Message {
	l, region := t.model.Layout, t.model.Region
	copy(region.Int32s(l.Tokens, len(b.Tokens)), b.Tokens)
	for i, at := range l.RowOffsets(t.bound) {
		copy(region.Bytes[at:], b.Rows[i])
	}
	return &mailbox.Message{Kind: mailbox.Eval, Tokens: uint32(len(b.Tokens)), Position: uint64(b.Position), All: b.All}
}

// eval runs tokens at the end of the text and returns their logits, or those of the last.
func (t *text) eval(ctx context.Context, host compute.Host, all bool, tokens ...int32) ([]float32, error) {
	b := t.model.Batch(t.at, all, tokens...)
	logits := t.model.Region.Float32s(t.model.Layout.Logits, len(b.Logits))
	for i := range logits {
		logits[i] = float32(math.NaN()) // a row that is not written does not go unnoticed
	}
	reply, err := t.ask(ctx, t.place(b))
	for err == nil && (reply.Kind == mailbox.Route || reply.Kind == mailbox.Next) {
		var wave *mailbox.Message
		if wave, err = t.serve(reply, host); err == nil {
			reply, err = t.ask(ctx, wave)
		}
	}
	if err == nil {
		err = t.ended(mailbox.Eval, reply)
	}
	if err != nil {
		return nil, err
	}
	t.at += len(tokens)
	return append([]float32(nil), logits...), nil
}

// serve lets the host answer a ROUTE or NEXT. Its error goes to the backend.
func (t *text) serve(m *mailbox.Message, host compute.Host) (*mailbox.Message, error) {
	l, region := t.model.Layout, t.model.Region
	var wave compute.Wave
	var err error
	if m.Kind == mailbox.Next {
		wave, err = host.Next()
	} else {
		n := uint64(m.Tokens) * uint64(m.K)
		if int(m.Bank) >= len(t.bound.Banks) || n == 0 || n > l.MaxRoute {
			return nil, fmt.Errorf("route of %d x %d experts of bank %d: at most %d of %d banks", m.Tokens, m.K, m.Bank, l.MaxRoute, len(t.bound.Banks))
		}
		ids := region.Int32s(l.Routes, int(n))
		for _, id := range ids {
			if id < 0 || uint32(id) >= t.bound.Plan.Banks[m.Bank].Experts {
				return nil, fmt.Errorf("route of expert %d of %d", id, t.bound.Plan.Banks[m.Bank].Experts)
			}
		}
		wave, err = host.Route(int(m.Bank), int(m.K), ids, region.Float32s(l.Routes+4*l.MaxRoute, int(n)))
	}
	if err != nil {
		return &mailbox.Message{Kind: mailbox.Wave, Text: err.Error(), Fault: uint32(fault.KindOf(err))}, nil
	}
	copy(region.Slots(l.Wave, len(wave.Slots)), wave.Slots)
	return &mailbox.Message{Kind: mailbox.Wave, Slots: uint32(len(wave.Slots)), More: wave.More}, nil
}
