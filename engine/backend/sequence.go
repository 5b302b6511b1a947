package backend

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/bigmoe/bigmoe/sdk/compute"
	"github.com/bigmoe/bigmoe/sdk/compute/mailbox"
	"github.com/bigmoe/bigmoe/sdk/fault"
)

// sequence is a sequence in another process.
type sequence struct {
	process *Process
	model   *compute.Bound
	layout  *compute.Layout
	region  *compute.Region
	box     *mailbox.Mailbox
	end     *mailbox.End
	closed  bool
	doing   doing

	rowAt, rowBytes []uint64 // of the by-row weights
}

func newSequence(p *Process, m *compute.Bound, l *compute.Layout, region *compute.Region, box *mailbox.Mailbox) *sequence {
	return &sequence{process: p, model: m, layout: l, region: region, box: box, end: box.Engine(), rowAt: l.RowOffsets(m), rowBytes: m.RowBytes()}
}

// Eval implements compute.Sequence. Inputs and logits that already are slices of the region are not copied.
func (s *sequence) Eval(ctx context.Context, b *compute.Batch, host compute.Host) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	logits, err := s.place(b)
	if err != nil {
		return err
	}
	s.box.SetCancel(false)
	s.doing = doing{tokens: len(b.Tokens), position: b.Position, bank: -1}
	msg := mailbox.Message{Kind: mailbox.Eval, Tokens: uint32(len(b.Tokens)), Position: uint64(b.Position), All: b.All, Predict: b.Predict}
	var hostErr error
	for {
		reply, err := s.ask(ctx, &msg)
		if err != nil {
			return err
		}
		switch reply.Kind {
		case mailbox.Done:
			copyTo(b.Logits, logits)
			b.Stall = time.Duration(reply.Stall)
			return nil
		case mailbox.Error:
			if err := ctx.Err(); err != nil {
				return err
			}
			if hostErr != nil {
				return &remoteError{text: reply.Text, cause: hostErr}
			}
			return compute.Fault(reply.Fault, reply.Text)
		case mailbox.Route, mailbox.Next, mailbox.Predict:
			wave, err := s.serve(ctx, &reply, host)
			if err != nil {
				hostErr = err
				wave = compute.Wave{}
			}
			msg = mailbox.Message{Kind: mailbox.Wave, Slots: uint32(len(wave.Slots)), More: wave.More}
			copyTo(s.region.Slots(s.layout.Wave, len(wave.Slots)), wave.Slots)
			if err != nil {
				msg.Fault, msg.Text = uint32(fault.KindOf(err)), err.Error()
			}
		default:
			return s.process.kill("it answered %v with %v", msg.Kind, reply.Kind)
		}
	}
}

// place checks b against the layout and puts it into the region. It returns where the logits will be.
func (s *sequence) place(b *compute.Batch) (logits []float32, err error) {
	n, o, vocabulary := len(b.Tokens), s.model.Options, int(s.model.Plan.Model.Vocabulary)
	rows := 1
	if b.All {
		rows = n
	}
	switch {
	case s.closed:
		return nil, fault.Bugf("evaluation of a closed sequence")
	case n == 0 || n > int(o.Batch) || rows > int(o.LogitRows) || b.Position < 0:
		return nil, fault.Bugf("batch of %d tokens at %d with %d rows of logits: at most %d and %d", n, b.Position, rows, o.Batch, o.LogitRows)
	case len(b.Logits) != rows*vocabulary:
		return nil, fault.Bugf("room for %d logits, expected %d x %d", len(b.Logits), rows, vocabulary)
	case len(b.Rows) != len(s.rowAt):
		return nil, fault.Bugf("rows of %d weights, the plan reads %d by row", len(b.Rows), len(s.rowAt))
	}
	for i, raw := range b.Rows {
		size := uint64(n) * s.rowBytes[i]
		if uint64(len(raw)) != size {
			return nil, fault.Bugf("by-row weight %d: %d bytes, expected %d x %d", i, len(raw), n, s.rowBytes[i])
		}
		copyTo(s.region.Bytes[s.rowAt[i]:s.rowAt[i]+size], raw)
	}
	copyTo(s.region.Int32s(s.layout.Tokens, n), b.Tokens)
	return s.region.Float32s(s.layout.Logits, len(b.Logits)), nil
}

// copyTo copies unless both are the same memory.
func copyTo[T any](to, from []T) {
	if len(from) > 0 && &to[0] != &from[0] {
		copy(to, from)
	}
}

// serve lets the host answer a route, next or predict.
func (s *sequence) serve(ctx context.Context, m *mailbox.Message, host compute.Host) (compute.Wave, error) {
	if err := ctx.Err(); err != nil {
		return compute.Wave{}, err
	}
	var wave compute.Wave
	var err error
	if m.Kind == mailbox.Next {
		s.doing.wave++
		wave, err = host.Next()
	} else {
		n := uint64(m.Tokens) * uint64(m.K)
		if int(m.Bank) >= len(s.model.Banks) || n == 0 || n > s.layout.MaxRoute {
			return wave, fault.Bugf("backend routes %d x %d experts of bank %d: at most %d of %d banks", m.Tokens, m.K, m.Bank, s.layout.MaxRoute, len(s.model.Banks))
		}
		ids := s.region.Int32s(s.layout.Routes, int(n))
		if m.Kind == mailbox.Predict {
			p, ok := host.(compute.Predictor)
			if !ok {
				return wave, fault.Bugf("backend predicts, the engine did not ask for that")
			}
			return wave, p.Predict(int(m.Bank), ids)
		}
		weights := s.region.Float32s(s.layout.Routes+4*s.layout.MaxRoute, int(n))
		s.doing.bank, s.doing.wave = int(m.Bank), 1
		wave, err = host.Route(int(m.Bank), int(m.K), ids, weights)
	}
	if err == nil && uint64(len(wave.Slots)) > s.layout.MaxWave {
		err = fault.Bugf("wave of %d slots, at most %d fit", len(wave.Slots), s.layout.MaxWave)
	}
	if err != nil && err.Error() == "" {
		err = errors.New("the host failed without a message")
	}
	return wave, err
}

// doing is how far an evaluation has come.
type doing struct {
	tokens, position int
	bank             int // routed last; -1: none yet
	wave             int // of it, from 1 on
}

// during says what the backend does after msg.
func (s *sequence) during(msg *mailbox.Message) string {
	if msg.Kind != mailbox.Eval && msg.Kind != mailbox.Wave {
		return msg.Kind.String()
	}
	text := fmt.Sprintf("eval of %d tokens at position %d", s.doing.tokens, s.doing.position)
	if s.doing.bank >= 0 {
		text += fmt.Sprintf(", after wave %d of the experts of layer %d", s.doing.wave, s.model.Plan.Banks[s.doing.bank].Layer)
	}
	return text
}

// ask posts msg and waits for the next message of the backend, as long as it is alive and well. It tells the backend that ctx has ended
// within a tick: a backend that sends a message sooner learns it from the answer.
func (s *sequence) ask(ctx context.Context, msg *mailbox.Message) (mailbox.Message, error) {
	p := s.process
	if err := p.Dead(); err != nil {
		return mailbox.Message{}, err
	}
	pulse, ignored := newPulse(s.box), time.Duration(0)
	s.end.Send(msg)
	for {
		since := time.Now()
		if s.end.Wait(tick) {
			reply, err := s.end.Message()
			if err != nil {
				err = p.kill("%v", err)
			}
			return reply, err
		}
		looked := min(time.Since(since), tick)
		if err := p.Dead(); err != nil {
			return mailbox.Message{}, err
		}
		if pulse.quiet(looked) >= p.opts.HangTimeout {
			return mailbox.Message{}, p.kill("no sign of life for %v during %s", p.opts.HangTimeout, s.during(msg))
		}
		if ctx.Err() != nil {
			s.box.SetCancel(true)
			if grace := min(cancelGrace, p.opts.HangTimeout); ignored+looked >= grace {
				_ = p.kill("it did not stop within %v of being cancelled", grace)
				return mailbox.Message{}, ctx.Err()
			}
			ignored += looked
		}
	}
}

// Trim implements compute.Sequence.
func (s *sequence) Trim(position int) error {
	if s.closed || position < 0 {
		return fault.Bugf("trim of a sequence to %d, closed: %v", position, s.closed)
	}
	return s.request(&mailbox.Message{Kind: mailbox.Trim, Position: uint64(position)})
}

// Close implements compute.Sequence. A dead backend has nothing to free.
func (s *sequence) Close() error {
	if s.closed || s.process.Dead() != nil {
		s.closed = true
		return nil
	}
	s.closed = true
	return s.request(&mailbox.Message{Kind: mailbox.Close})
}

func (s *sequence) request(msg *mailbox.Message) error {
	reply, err := s.ask(context.Background(), msg)
	switch {
	case err != nil:
		return err
	case reply.Kind == mailbox.Done:
		return nil
	case reply.Kind == mailbox.Error:
		return compute.Fault(reply.Fault, reply.Text)
	}
	return s.process.kill("it answered %v with %v", msg.Kind, reply.Kind)
}

// remoteError is the backend's account of a failure of the host, with the failure itself inside.
type remoteError struct {
	text  string
	cause error
}

func (e *remoteError) Error() string { return e.text }
func (e *remoteError) Unwrap() error { return e.cause }
