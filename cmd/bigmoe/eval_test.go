package main

import (
	"encoding/json"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/sdk/fault"
)

func TestSummarise(t *testing.T) {
	p, err := summarise([]float32{1, 3, 2, 3, -5, 0, 0, 0, 0, 2.5})
	require.NoError(t, err)
	require.Equal(t, []topLogit{{1, 3}, {3, 3}, {9, 2.5}, {2, 2}, {0, 1}, {5, 0}, {6, 0}, {7, 0}}, p.Top, "equal logits by id")
	var sum float64
	for _, l := range []float64{1, 3, 2, 3, -5, 0, 0, 0, 0, 2.5} {
		sum += math.Exp(l)
	}
	require.InDelta(t, math.Log(sum), p.LSE, 1e-12)

	p, err = summarise([]float32{1e4, -1e4})
	require.NoError(t, err)
	require.Equal(t, 1e4, p.LSE, "no overflow")
	require.Len(t, p.Top, 2)
	text, err := json.Marshal(p.Top)
	require.NoError(t, err)
	require.Equal(t, "[[0,10000],[1,-10000]]", string(text))

	for _, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		_, err := summarise([]float32{0, float32(bad)})
		require.ErrorContains(t, err, "the logit of token 1 is ")
	}
}

func TestRouterLayout(t *testing.T) {
	var r router
	r.init(3)
	r.add(1, 2, []int32{5, 6, 7, 8}, []float32{.5, .5, .75, .25})
	r.add(2, 1, []int32{9, 9}, []float32{1, 1})
	r.add(1, 2, []int32{1, 2}, []float32{.5, .5})
	text, err := json.Marshal(r)
	require.NoError(t, err)
	require.Equal(t, `{"ids":[null,[[5,6],[7,8],[1,2]],[[9],[9]]],"weights":[null,[[0.5,0.5],[0.75,0.25],[0.5,0.5]],[[1],[1]]]}`, string(text))
}

func TestParseIDs(t *testing.T) {
	for text, want := range map[string][]int32{
		"": nil, " \n": nil, "[]": {}, "[1, 2]\n": {1, 2}, "1 2\n3\t4": {1, 2, 3, 4}, "2147483647": {2147483647},
	} {
		got, err := parseIDs(text)
		require.NoError(t, err, "%q", text)
		require.Equal(t, want, got, "%q", text)
	}
	for _, text := range []string{"[1", "[1.5]", `["1"]`, "[-1]", "[null]", "[2147483648]", "{}", "1,2", "-1", "2147483648", "0x10", "[1] 2"} {
		_, err := parseIDs(text)
		require.Error(t, err, "%q", text)
		require.Equal(t, fault.User, fault.KindOf(err), "%q", text)
	}
}

func FuzzParseIDs(f *testing.F) {
	for _, text := range []string{"[1, 2]", "1 2\n3", "[null]", "[-1]", "[1e9]", "[[1]]", "0x10", "2147483648"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		ids, err := parseIDs(text)
		if err != nil {
			require.Equal(t, fault.User, fault.KindOf(err))
		}
		for _, id := range ids {
			require.GreaterOrEqual(t, id, int32(0))
		}
	})
}
