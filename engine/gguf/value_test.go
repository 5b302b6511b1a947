package gguf_test

import (
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/engine/gguf"
	"github.com/bigmoe/bigmoe/engine/gguf/gguftest"
	"github.com/bigmoe/bigmoe/sdk/fault"
)

func openBuilt(t *testing.T, b *gguftest.Builder) *gguf.File {
	t.Helper()
	path := filepath.Join(t.TempDir(), "m.gguf")
	require.NoError(t, b.Write(path))
	f, err := gguf.Open(path)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, f.Close()) })
	return f
}

func uintOf(v gguf.Value) (any, error)    { return v.Uint() }
func intOf(v gguf.Value) (any, error)     { return v.Int() }
func floatOf(v gguf.Value) (any, error)   { return v.Float() }
func boolOf(v gguf.Value) (any, error)    { return v.Bool() }
func stringOf(v gguf.Value) (any, error)  { return v.String() }
func uintsOf(v gguf.Value) (any, error)   { return v.Uints() }
func intsOf(v gguf.Value) (any, error)    { return v.Ints() }
func floatsOf(v gguf.Value) (any, error)  { return v.Floats() }
func boolsOf(v gguf.Value) (any, error)   { return v.Bools() }
func stringsOf(v gguf.Value) (any, error) { return v.Strings() }

func TestValueConverts(t *testing.T) {
	tests := []struct {
		stored any
		get    func(gguf.Value) (any, error)
		want   any
	}{
		{uint8(255), uintOf, uint64(255)}, {uint16(7), uintOf, uint64(7)}, {uint32(math.MaxUint32), uintOf, uint64(math.MaxUint32)},
		{uint64(math.MaxUint64), uintOf, uint64(math.MaxUint64)}, {int32(5), uintOf, uint64(5)}, {int64(5), uintOf, uint64(5)},
		{int8(-1), intOf, int64(-1)}, {int16(math.MinInt16), intOf, int64(math.MinInt16)}, {int32(-32), intOf, int64(-32)},
		{int64(math.MinInt64), intOf, int64(math.MinInt64)}, {uint32(math.MaxUint32), intOf, int64(math.MaxUint32)},
		{float32(1e-6), floatOf, float64(float32(1e-6))}, {1e-300, floatOf, 1e-300}, {uint32(10000), floatOf, 10000.0}, {int8(-3), floatOf, -3.0},
		{true, boolOf, true}, {false, boolOf, false}, {int32(1), boolOf, true}, {"a\xffb", stringOf, "a\xffb"}, {"", stringOf, ""},
		{[]uint32{4}, uintOf, uint64(4)}, {uint32(4), uintsOf, []uint64{4}}, {[]int32{1, 2}, uintsOf, []uint64{1, 2}},
		{[]int16{-1, 300}, intsOf, []int64{-1, 300}}, {[]float32{1, -2}, floatsOf, []float64{1, -2}}, {[]float64{0.1}, floatsOf, []float64{0.1}},
		{[]bool{true, false}, boolsOf, []bool{true, false}}, {[]int32{0, 1}, boolsOf, []bool{false, true}},
		{[]string{"a", "", "\xff"}, stringsOf, []string{"a", "", "\xff"}}, {"x", stringsOf, []string{"x"}}, {[]string{"x"}, stringOf, "x"},
		{[]uint8{}, uintsOf, []uint64{}}, {[]string{}, stringsOf, []string{}},
	}
	for _, tt := range tests {
		v, ok := openBuilt(t, gguftest.NewBuilder().Set("k", tt.stored)).Get("k")
		require.True(t, ok)
		got, err := tt.get(v)
		require.NoError(t, err, "%T", tt.stored)
		require.Equal(t, tt.want, got, "%T", tt.stored)
		require.Equal(t, "k", v.Key())
		elem, array := v.Type()
		name := strings.Replace(fmt.Sprintf("%T", tt.stored), "[]", "array of ", 1)
		require.Equal(t, name, v.TypeName())
		require.Equal(t, array, strings.HasPrefix(name, "array of "))
		require.Equal(t, elem.String(), strings.TrimPrefix(name, "array of "))
	}
}

func TestValueRefuses(t *testing.T) {
	tests := []struct {
		stored any
		get    func(gguf.Value) (any, error)
		say    []string
	}{
		{int32(-32), uintOf, []string{"-32", "negative", "range"}},
		{uint64(1 << 63), intOf, []string{"9223372036854775808", "range"}},
		{[]int64{1, -2}, uintsOf, []string{"element 1", "-2"}},
		{uint64(1<<53 + 1), floatOf, []string{"uint64", "range"}}, {int64(-1<<53 - 1), floatOf, []string{"int64", "range"}},
		{float32(1), uintOf, []string{"expected unsigned integer", "found float32"}}, {"1", intOf, []string{"found string"}},
		{uint32(7), stringOf, []string{"expected string", "found uint32", "type"}}, {true, uintOf, []string{"found bool"}},
		{[]int32{1, 2}, stringsOf, []string{"expected string", "found array of int32"}},
		{[]uint32{1, 2}, uintOf, []string{"array of uint32", "2 elements"}}, {[]uint32{}, uintOf, []string{"0 elements"}},
		{uint8(2), boolOf, []string{"2", "bool"}}, {"true", boolOf, []string{"found string"}}, {float64(1), boolsOf, []string{"float64"}},
		{[]string{"1"}, floatsOf, []string{"array of string"}},
	}
	for _, tt := range tests {
		f := openBuilt(t, gguftest.NewBuilder().Set("some.key", tt.stored))
		v, _ := f.Get("some.key")
		_, err := tt.get(v)
		require.Error(t, err, "%T %v", tt.stored, tt.stored)
		requireSays(t, err.Error(), append(tt.say, f.Path(), "some.key"))
		require.Equal(t, fault.Corrupt, fault.KindOf(err))
		require.NotErrorIs(t, err, gguf.ErrMissing)
	}
}

func TestMissingKey(t *testing.T) {
	f := openBuilt(t, gguftest.NewBuilder())
	v, ok := f.Get("general.architecture")
	require.False(t, ok)
	for _, get := range []func(gguf.Value) (any, error){
		uintOf, intOf, floatOf, boolOf, stringOf, uintsOf, intsOf, floatsOf, boolsOf, stringsOf,
	} {
		_, err := get(v)
		require.ErrorIs(t, err, gguf.ErrMissing)
		requireSays(t, err.Error(), []string{f.Path(), "general.architecture"})
	}
	require.Equal(t, "missing", v.Preview())
	require.Zero(t, v.Len())
}

func TestPreview(t *testing.T) {
	tests := map[string]any{
		`"a\x1b[2J\xff"`: "a\x1b[2J\xff", "-3": int8(-3), "18446744073709551615": uint64(math.MaxUint64), "0.1": float32(0.1), "true": true,
		"array of string, 2 elements": []string{"a", "b"},
	}
	for want, stored := range tests {
		v, _ := openBuilt(t, gguftest.NewBuilder().Set("k", stored)).Get("k")
		require.Equal(t, want, v.Preview())
	}
}
