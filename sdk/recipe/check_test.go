package recipe

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRefuseKeys(t *testing.T) {
	m := newModel()
	m.keys = map[string]any{"general.architecture": "test", "test.int": -3, "test.big": uint64(math.MaxUint64), "test.float": 0.5,
		"test.bool": true, "test.text": "yarn", "test.list": []int{1, 2}}
	_, failed := runs(m, func(b *Builder) {
		b.RefuseKeys(Unsupported, "is why", "int", "big", "float", "bool", "text", "list", "none", "general.architecture")
	})
	require.Equal(t, &failure{Unsupported, `test.int -3, test.big 18446744073709551615, test.float 0.5, test.bool true, test.text "yarn", ` +
		`test.list array of 2 int64, test.none missing, general.architecture "test": is why`}, failed)
}

func TestRequire(t *testing.T) {
	m := newModel()
	m.keys["test.kind"] = 2
	_, failed := runs(m, func(b *Builder) {
		b.RequireMultiple("heads", 6, "kv_heads", 2)
		b.RequireOnly("kind", 2)
		b.RequireOnly("missing", 7)
	})
	require.Nil(t, failed)
	for _, test := range []struct {
		build func(*Builder)
		want  failure
	}{
		{func(b *Builder) { b.RequireMultiple("heads", 6, "kv_heads", 4) }, failure{Corrupt, "test.heads 6 is not a multiple of kv_heads 4"}},
		{func(b *Builder) { b.RequireMultiple("heads", 6, "kv_heads", 0) }, failure{Corrupt, "test.heads 6 is not a multiple of kv_heads 0"}},
		{func(b *Builder) { b.RequireOnly("kind", 1) }, failure{Unsupported, `key "test.kind": expected 1, found 2`}},
	} {
		_, failed := runs(m, test.build)
		require.Equal(t, &test.want, failed)
	}
}

func TestPerLayerBoolOr(t *testing.T) {
	m := newModel()
	odd := func(i int) bool { return i%2 == 1 }
	_, failed := runs(m, func(b *Builder) {
		require.Equal(t, []bool{false, true, false}, b.PerLayerBoolOr("kinds", 3, odd))
		m.keys["test.kinds"] = []int{1, 1, 0}
		require.Equal(t, []bool{true, true, false}, b.PerLayerBoolOr("kinds", 3, odd))
	})
	require.Nil(t, failed)
}
