package fault_test

import (
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/sdk/fault"
)

func TestKindSurvivesWrapping(t *testing.T) {
	tests := []struct {
		err  error
		kind fault.Kind
		exit int
	}{
		{nil, fault.Unknown, 1},
		{io.EOF, fault.Unknown, 1},
		{fault.Corruptf("a.gguf: %w", io.ErrUnexpectedEOF), fault.Corrupt, 3},
		{fmt.Errorf("open: %w", fault.Userf("no such file")), fault.User, 2},
		{fault.Unsupportedf("op %q", "x"), fault.Unsupported, 4},
		{fault.Bugf("slot"), fault.Bug, 70},
		{fault.As(fault.Bug, fault.Userf("x")), fault.User, 2},
		{fault.As(fault.Corrupt, io.EOF), fault.Corrupt, 3},
	}
	for _, tt := range tests {
		require.Equal(t, tt.kind, fault.KindOf(tt.err), "%v", tt.err)
		require.Equal(t, tt.exit, fault.KindOf(tt.err).ExitCode(), "%v", tt.err)
	}
	require.True(t, errors.Is(fault.Corruptf("a: %w", io.EOF), io.EOF))
	require.NoError(t, fault.As(fault.Bug, nil))
}
