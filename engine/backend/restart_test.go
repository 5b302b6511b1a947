package backend

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestRestarts(t *testing.T) {
	crash := errors.New("kernel exploded")
	r := Restarts{unit: time.Millisecond}
	start := time.Now()
	for range giveUpAfter {
		require.NoError(t, r.Begin(t.Context(), crash))
	}
	require.GreaterOrEqual(t, time.Since(start), (1+2+4+8+16)*time.Millisecond, "pauses double")
	r.unit = time.Minute
	err := r.Begin(t.Context(), crash)
	require.ErrorIs(t, err, crash)
	require.ErrorContains(t, err, "failed 6 times in a row and is not started again for")
	r.last = time.Now().Add(-restPauses * time.Minute)
	require.NoError(t, r.Begin(t.Context(), crash), "one more try after a rest")
	require.ErrorIs(t, r.Begin(t.Context(), crash), crash)
	r.Worked()
	require.NoError(t, r.Begin(t.Context(), crash))
}

// TestRestartsAreCancelled: a pause ends with the request that waits for it, and is no start.
func TestRestartsAreCancelled(t *testing.T) {
	r := Restarts{unit: time.Hour}
	require.NoError(t, r.Begin(t.Context(), nil))
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(10*time.Millisecond, cancel)
	require.ErrorIs(t, r.Begin(ctx, nil), context.Canceled)
	require.Equal(t, 1, r.failed)
}
