package dtype_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/sdk/dtype"
)

func TestRowBytes(t *testing.T) {
	tests := []struct {
		t     dtype.Type
		elems int64
		want  int64
	}{
		{dtype.Q4_K, 2048, 1152}, {dtype.Q6_K, 768, 630}, {dtype.Q8_0, 32, 34}, {dtype.MXFP4, 2880, 1530},
		{dtype.F32, 1, 4}, {dtype.BF16, 3, 6},
		{dtype.Q8_0, 33, -1}, {dtype.Q4_K, 0, -1}, {dtype.Type(4), 32, -1}, {dtype.F64, 1 << 62, -1},
	}
	for _, tt := range tests {
		got, err := tt.t.RowBytes(tt.elems)
		if tt.want < 0 {
			require.Error(t, err, "%v %d", tt.t, tt.elems)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, tt.want, got, "%v %d", tt.t, tt.elems)
	}
	require.Equal(t, "type 4", dtype.Type(4).String())
	got, ok := dtype.Parse("IQ4_XS")
	require.True(t, ok)
	require.Equal(t, dtype.IQ4_XS, got)
}
