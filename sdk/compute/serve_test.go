package compute

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/sdk/compute/mailbox"
)

// asks is a sequence that predicts, routes and takes a second wave. What its evaluations saw is kept for the test.
type asks struct {
	ids     []int32
	weights []float32
	ctx     context.Context
	err     error
	rows    int
}

func (s *asks) Trim(int) error { return nil }
func (s *asks) Close() error   { return nil }

func (s *asks) Eval(ctx context.Context, b *Batch, host Host) error {
	s.ctx, s.rows = ctx, len(b.Rows)
	if s.err = host.(Predictor).Predict(0, s.ids); s.err != nil {
		return s.err
	}
	if _, s.err = host.Route(0, len(s.ids), s.ids, s.weights); s.err != nil {
		return s.err
	}
	_, s.err = host.Next()
	return s.err
}

// serving runs a sequence as in a backend process, and returns what the engine has of it.
func serving(t testing.TB, seq Sequence) (*mailbox.Mailbox, func(*mailbox.Message) mailbox.Message) {
	m := bound(t)
	l, err := NewLayout(m, 4)
	require.NoError(t, err)
	bytes := make([]byte, l.RegionBytes)
	box, err := mailbox.Format(bytes[l.Mailbox:])
	require.NoError(t, err)
	region, err := NewRegion(bytes, l.Ready, l.Slots)
	require.NoError(t, err)
	r := newRunner(seq, m, l, region, box)
	go r.run()
	end := box.Engine()
	ask := func(msg *mailbox.Message) mailbox.Message {
		end.Send(msg)
		for !end.Wait(time.Second) {
		}
		reply, err := end.Message()
		require.NoError(t, err)
		return reply
	}
	t.Cleanup(func() {
		require.Equal(t, mailbox.Done, ask(&mailbox.Message{Kind: mailbox.Close}).Kind)
		<-r.closed
	})
	return box, ask
}

// TestServeAllocations: a backend process allocates nothing for a token, either, if its backend does not.
func TestServeAllocations(t *testing.T) {
	seq := &asks{ids: []int32{1, 2, 3}, weights: make([]float32, 3)}
	_, ask := serving(t, seq)
	eval, wave := &mailbox.Message{Kind: mailbox.Eval, Tokens: 1}, &mailbox.Message{Kind: mailbox.Wave}
	kinds := [4]mailbox.Kind{}
	require.Zero(t, testing.AllocsPerRun(50, func() {
		kinds[0] = ask(eval).Kind
		for i := range 3 {
			kinds[i+1] = ask(wave).Kind
		}
	}))
	require.Equal(t, [4]mailbox.Kind{mailbox.Predict, mailbox.Route, mailbox.Next, mailbox.Done}, kinds)
	require.Equal(t, 2, seq.rows)
}

// TestServeCancelled: an evaluation that the engine does not want any more ends at its next question, with a context that has ended;
// the next one has a new one.
func TestServeCancelled(t *testing.T) {
	seq := &asks{ids: []int32{1, 2, 3}, weights: make([]float32, 3)}
	box, ask := serving(t, seq)
	for range 2 {
		require.Equal(t, mailbox.Predict, ask(&mailbox.Message{Kind: mailbox.Eval, Tokens: 1}).Kind)
		box.SetCancel(true)
		require.Equal(t, mailbox.Error, ask(&mailbox.Message{Kind: mailbox.Wave}).Kind)
		require.ErrorIs(t, seq.err, context.Canceled)
		require.Error(t, seq.ctx.Err())
		box.SetCancel(false)
		require.Equal(t, mailbox.Predict, ask(&mailbox.Message{Kind: mailbox.Eval, Tokens: 1}).Kind)
		require.NoError(t, seq.ctx.Err())
		for _, want := range []mailbox.Kind{mailbox.Route, mailbox.Next, mailbox.Done} {
			require.Equal(t, want, ask(&mailbox.Message{Kind: mailbox.Wave}).Kind)
		}
		require.NoError(t, errors.Join(seq.err, seq.ctx.Err()))
	}
}
