package usage

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/sdk/fault"
)

var shape = Shape{0, 4, 3}

func counted() *Count {
	c := NewCount(shape)
	c.Add(1, 2, []int32{0, 1, 0, 2, 0, 1, 0, 3})
	c.Add(2, 1, []int32{2})
	return c
}

func TestBest(t *testing.T) {
	var none *Profile
	require.Empty(t, none.Best())
	require.Nil(t, none.Merge(NewCount(shape)), "nothing is known")
	p := none.Merge(counted())
	require.Equal(t, []Expert{{1, 0, 1}, {2, 2, 1}, {1, 1, 0.5}, {1, 2, 0.25}, {1, 3, 0.25}}, p.Best())
	require.Equal(t, p.Best(), p.Merge(NewCount(shape)).Best(), "a run without a token changes nothing")
}

func TestMergeFades(t *testing.T) {
	var none *Profile
	p := none.Merge(counted())
	c := NewCount(shape)
	c.Add(1, 1, []int32{3})
	q := p.Merge(c)
	require.Equal(t, Expert{2, 2, 1}, q.Best()[0], "one token changes little")
	require.InDelta(t, 1, q.Best()[1].Rate, 0.001)
	for range memoryTokens * 4 {
		c.Add(1, 1, []int32{3})
	}
	q = p.Merge(c)
	require.Equal(t, int32(3), q.Best()[1].Expert)
	require.InDelta(t, 1, q.Best()[1].Rate, 0.02, "many tokens change everything")
}

func TestSaveLoad(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "made", "here")
	p, err := Load(dir, "model", shape)
	require.NoError(t, err)
	require.Nil(t, p)
	require.NoError(t, Save(dir, "model", p.Merge(counted())))
	p, err = Load(dir, "model", shape)
	require.NoError(t, err)
	require.Len(t, p.Best(), 5)
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 1, "nothing temporary is left")
}

func TestLoadRefuses(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "model"+suffix)
	var none *Profile
	require.NoError(t, Save(dir, "model", none.Merge(counted())))
	good, err := os.ReadFile(name)
	require.NoError(t, err)
	for i := range good { // every byte
		bad := append([]byte(nil), good...)
		bad[i] ^= 0x40
		require.NoError(t, os.WriteFile(name, bad, 0o600))
		_, err := Load(dir, "model", shape)
		require.Equal(t, fault.Corrupt, fault.KindOf(err), "byte %d", i)
	}
	for _, bad := range [][]byte{nil, good[:len(good)-1], append(append([]byte(nil), good...), 0), []byte("bigmoe usage 9\n")} {
		require.NoError(t, os.WriteFile(name, bad, 0o600))
		_, err := Load(dir, "model", shape)
		require.Equal(t, fault.Corrupt, fault.KindOf(err))
	}
	require.NoError(t, os.WriteFile(name, good, 0o600))
	_, err = Load(dir, "model", Shape{0, 3, 4})
	require.ErrorContains(t, err, "layer 1: 4 experts, the model has 3")
	_, err = Load(dir, "model", Shape{4, 4})
	require.Error(t, err)

	require.NoError(t, os.WriteFile(filepath.Join(dir, "file"), nil, 0o600))
	require.Error(t, Save(filepath.Join(dir, "file", "under"), "model", none.Merge(counted())), "a folder that cannot be")
}

func FuzzParse(f *testing.F) {
	want := len(magic) + 4*(1+len(shape)+shape.experts()) + 4
	f.Add(make([]byte, want))
	f.Add([]byte(magic))
	f.Fuzz(func(t *testing.T, raw []byte) {
		if p, err := parse(raw, want, shape); err == nil {
			for _, e := range p.Best() {
				require.True(t, e.Rate > 0 && e.Rate <= 1)
			}
		}
	})
}

func TestPrune(t *testing.T) {
	dir := t.TempDir()
	var none *Profile
	p := none.Merge(counted())
	for i := range MaxFiles + 3 {
		id := fmt.Sprint(i)
		require.NoError(t, Save(dir, id, p))
		at := time.Unix(int64(1000+i), 0)
		require.NoError(t, os.Chtimes(filepath.Join(dir, id+suffix), at, at))
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "not ours"), nil, 0o600))
	require.NoError(t, Save(dir, "last", p))
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, MaxFiles+1)
	_, err = os.Stat(filepath.Join(dir, "3"+suffix))
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestIdentity(t *testing.T) {
	base := Tensor{"a", 1, []uint64{2, 3}, 64}
	id := Identity([]Tensor{base}, []int64{100})
	require.Len(t, id, 32)
	require.Equal(t, id, Identity([]Tensor{base}, []int64{100}))
	for _, other := range []Tensor{{"b", 1, []uint64{2, 3}, 64}, {"a", 2, []uint64{2, 3}, 64}, {"a", 1, []uint64{3, 2}, 64}, {"a", 1, []uint64{2, 3}, 96}} {
		require.NotEqual(t, id, Identity([]Tensor{other}, []int64{100}))
	}
	require.NotEqual(t, id, Identity([]Tensor{base}, []int64{101}))
}
