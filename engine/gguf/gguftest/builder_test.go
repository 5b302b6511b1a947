package gguftest_test

import (
	"encoding/hex"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/engine/gguf/gguftest"
	"github.com/bigmoe/bigmoe/sdk/dtype"
)

// TestExampleOfSpec builds the file that specs/gguf.md 5 gives in hex.
func TestExampleOfSpec(t *testing.T) {
	spec := "47475546 03000000 0100000000000000 0100000000000000" +
		"1400000000000000" + hex.EncodeToString([]byte("general.architecture")) + "08000000 0400000000000000" + hex.EncodeToString([]byte("test")) +
		"0100000000000000" + hex.EncodeToString([]byte("t")) + "01000000 0200000000000000 00000000 0000000000000000" +
		strings.Repeat("00", 128-101) + "0000803f 000000c0" + strings.Repeat("00", 24)
	want, err := hex.DecodeString(strings.ReplaceAll(spec, " ", ""))
	require.NoError(t, err)
	require.Len(t, want, 160)

	b := gguftest.NewBuilder().Set("general.architecture", "test").Tensor("t", dtype.F32, []uint64{2}, gguftest.Float32s(1, -2))
	got, err := b.Bytes()
	require.NoError(t, err)
	require.Equal(t, want, got)

	again, err := b.Clone().Set("general.architecture", "x").Set("extra", []int32{1}).Drop("extra").Drop("t").
		Set("general.architecture", "test").Tensor("t", dtype.F32, []uint64{2}, gguftest.Float32s(1, -2)).Bytes()
	require.NoError(t, err)
	require.Equal(t, want, again)
	same, err := b.Bytes()
	require.NoError(t, err)
	require.Equal(t, want, same, "Clone shares entries")
}

func TestRefuses(t *testing.T) {
	_, err := gguftest.NewBuilder().Set("k", 1).Bytes()
	require.ErrorContains(t, err, `"k": values of type int`)
	require.Error(t, gguftest.NewBuilder().Set("k", nil).Write(filepath.Join(t.TempDir(), "m.gguf")))
	_, err = gguftest.NewBuilder().Tensor("t", dtype.F32, nil, nil).WriteSplit(t.TempDir(), "m", 1, 1)
	require.ErrorContains(t, err, "add up")
}
