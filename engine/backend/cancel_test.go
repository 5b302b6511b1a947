package backend

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestCancelIsRaised: a backend that computes for long without asking the host can see that nobody wants the result, and the
// evaluation after that is not cancelled.
func TestCancelIsRaised(t *testing.T) {
	h := newBench(t)
	seq := h.load(t, h.start(t, func(o *Options) { o.HangTimeout = 2 * time.Second }))
	box := seq.(*sequence).box
	box.SetCancel(true)
	require.NoError(t, seq.Eval(t.Context(), h.batch(0, false, 1), h))
	require.False(t, box.Cancelled())

	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	beat := box.Heartbeat().Load()
	go func() { done <- seq.Eval(ctx, h.batch(1, false, tokenWork), h) }()
	until := func(what string, is func() bool) {
		for !is() {
			select {
			case err := <-done:
				require.FailNow(t, what, "%v", err)
			case <-time.After(time.Millisecond):
			}
		}
	}
	until("it never worked", func() bool { return box.Heartbeat().Load() != beat })
	cancel()
	until("it was never told", box.Cancelled)
	require.Equal(t, context.Canceled, <-done)
}
