package replay

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/engine/expert/policy"
	"github.com/bigmoe/bigmoe/sdk/fault"
)

func open(t testing.TB, name string) *Trace {
	tr, err := Open(filepath.Join("../../../testdata/traces", name+".csv.gz"))
	require.NoError(t, err)
	return tr
}

// TestGolden fixes the hits of every policy on the recorded traces, in lookups, so that any change of a policy shows.
// The percentages beside them are published figures for the same traces. LRU and Belady reproduce them. For decayed
// frequency they come from a replay whose treatment of the prompt is not recorded; ours counts one use per expert for
// the whole prompt, which costs up to 1.7 points on gpt-oss, where the prompt is longer than what is decoded.
func TestGolden(t *testing.T) {
	type row struct {
		policy    string
		mib       int64
		hits      int64 // in decode
		published float64
	}
	for _, c := range []struct {
		trace   string
		lookups int64 // in decode
		within  map[string]float64
		rows    []row
	}{
		{"qwen3-30b-a3b-k6", 36864, map[string]float64{"lru": 0.6, "decayed": 1, "belady": 0.6}, []row{
			{"lru", 500, 0, 0}, {"lru", 1000, 13890, 38}, {"lru", 2000, 20845, 56}, {"lru", 4000, 29600, 80},
			{"decayed", 500, 10106, 28}, {"decayed", 1000, 15239, 42}, {"decayed", 2000, 22412, 61}, {"decayed", 4000, 30408, 83},
			{"belady", 500, 16687, 45}, {"belady", 1000, 23103, 63}, {"belady", 2000, 29253, 79}, {"belady", 4000, 34179, 93},
		}},
		{"gemma4-26b-a4b-k6", 23040, map[string]float64{"lru": 0.6, "decayed": 1, "belady": 0.6}, []row{
			{"lru", 500, 0, 0}, {"lru", 1000, 8312, 36}, {"lru", 2000, 14320, 62}, {"lru", 4000, 18871, 82},
			{"decayed", 500, 7021, 31}, {"decayed", 1000, 10560, 46}, {"decayed", 2000, 14813, 65}, {"decayed", 4000, 19308, 84},
			{"belady", 500, 11110, 48}, {"belady", 1000, 15137, 66}, {"belady", 2000, 18563, 81}, {"belady", 4000, 21406, 93},
		}},
		{"gpt-oss-120b-k2", 4608, map[string]float64{"lru": 0.6, "decayed": 1.7, "belady": 0.6}, []row{
			{"lru", 1000, 813, 18}, {"lru", 2000, 1423, 31}, {"lru", 3000, 2062, 45}, {"lru", 4000, 2382, 52},
			{"decayed", 1000, 1088, 24}, {"decayed", 2000, 1686, 38}, {"decayed", 3000, 2094, 47}, {"decayed", 4000, 2383, 53},
			{"belady", 1000, 2004, 44}, {"belady", 2000, 2760, 60}, {"belady", 3000, 3124, 68}, {"belady", 4000, 3364, 73},
		}},
	} {
		tr := open(t, c.trace)
		for _, r := range c.rows {
			var p policy.Policy
			if r.policy == "belady" {
				p = Belady(tr)
			} else {
				var err error
				p, err = policy.New(r.policy)
				require.NoError(t, err)
			}
			res := Run(tr, p, r.mib<<20)
			require.Equal(t, c.lookups, res.Decode.Lookups())
			require.Equal(t, r.hits, res.Decode.Hits, "%s, %s, %d MiB", c.trace, r.policy, r.mib)
			require.InDelta(t, r.published, 100*res.Decode.HitRate(), c.within[r.policy], "%s, %s, %d MiB", c.trace, r.policy, r.mib)
			require.Equal(t, len(tr.Batches), res.Waves, "every batch fits")
		}
	}
}

// TestForecast fixes the hits of the default policy in decode, and how what it reads compares with LRU. There is no cliff: no size
// at which it reads more than LRU, none at which a larger cache hits less.
func TestForecast(t *testing.T) {
	mib := []int64{250, 500, 1000, 1500, 2000, 3000, 4000, 6000, 8000}
	for _, c := range []struct {
		trace string
		hits  []int64   // by size
		ofLRU []float64 // bytes missed, as a share of LRU's
	}{
		{"qwen3-30b-a3b-k6", []int64{7284, 11763, 17578, 21507, 24331, 28373, 31296, 34458, 35552}, []float64{0.806, 0.685, 0.842, 0.788, 0.783, 0.785, 0.767, 0.829, 0.880}},
		{"gemma4-26b-a4b-k6", []int64{4684, 7872, 11743, 14291, 15957, 18150, 19757, 21717, 22188}, []float64{0.796, 0.658, 0.765, 0.776, 0.813, 0.788, 0.786, 0.849, 0.981}},
		{"gpt-oss-120b-k2", []int64{505, 809, 1255, 1598, 1887, 2317, 2608, 2946, 3200}, []float64{0.890, 0.824, 0.884, 0.796, 0.854, 0.900, 0.898, 0.890, 0.894}},
	} {
		tr := open(t, c.trace)
		var hits int64
		for i, size := range mib {
			got, lru := Run(tr, policy.NewForecast(), size<<20).Decode, Run(tr, policy.NewLRU(), size<<20).Decode
			require.Equal(t, c.hits[i], got.Hits, "%s, %d MiB", c.trace, size)
			require.InDelta(t, c.ofLRU[i], float64(got.MissBytes)/float64(lru.MissBytes), 0.0005, "%s, %d MiB", c.trace, size)
			require.LessOrEqual(t, got.MissBytes, lru.MissBytes, "%s, %d MiB", c.trace, size)
			require.Greater(t, got.Hits, hits, "%s, %d MiB", c.trace, size)
			hits = got.Hits
		}
	}
}

func TestQwen4000MiB(t *testing.T) {
	tr := open(t, "qwen3-30b-a3b-k6")
	require.Equal(t, "Qwen3-30B-A3B-Q4_K_M.gguf", tr.Model)
	require.Equal(t, 6, tr.TopK)
	require.Len(t, tr.ExpertBytes, 48)
	r := Run(tr, policy.NewLRU(), 4000<<20)
	all := r.Total()
	require.Equal(t, int64(39526), all.Lookups())
	require.InDelta(t, 74.887, 100*all.HitRate(), 0.0005)
	require.Equal(t, int64(28526874624), all.MissBytes) // 27205.35 MiB
	require.Equal(t, 128, r.Tokens)
	require.InDelta(t, 155.706, float64(r.Decode.MissBytes)/float64(r.Tokens)/(1<<20), 0.0005)
}

func TestWaves(t *testing.T) {
	tr := &Trace{Experts: 4, TopK: 2, ExpertBytes: []int64{10}, Batches: []Batch{
		{Prefill: true, K: 1, Experts: []int32{0, 1, 0, 2, 3}},
		{Step: 1, K: 2, Experts: []int32{3, 2}},
	}}
	r := Run(tr, policy.NewLRU(), 29) // two experts at a time
	require.Equal(t, Totals{Misses: 4, MissBytes: 40}, r.Prefill)
	require.Equal(t, Totals{Hits: 2, HitBytes: 20}, r.Decode)
	require.Equal(t, 3, r.Waves)
	require.Equal(t, Result{}, Run(tr, policy.NewLRU(), 9), "no expert fits")
}

func TestReadErrors(t *testing.T) {
	const head = "# model=m n_layer=2 n_expert=4 n_expert_used=2\n# layer=0 expert_bytes=10 dense_bytes=1\n" + columns + "\n"
	for _, c := range []struct{ name, text, say string }{
		{"empty", "", "no rows"},
		{"no rows", head, "no rows"},
		{"other columns", "a,b\n", "columns are"},
		{"layer", head + "0,0,0,2,0,1,0.5,0,10\n", "column 4: 2 is not between 0 and 1"},
		{"expert", head + "0,0,0,0,0,4,0.5,0,10\n", "column 6: 4 is not between 0 and 3"},
		{"negative", head + "0,0,0,0,0,-1,0.5,0,10\n", "line 4: column 6"},
		{"phase", head + "0,2,0,0,0,0,0.5,0,10\n", "column 2"},
		{"short row", head + "0,1,2\n", "3 columns"},
		{"uneven", head + "0,0,0,0,0,1,0.5,0,10\n0,0,0,0,1,2,0.5,0,10\n0,0,1,0,0,1,0.5,0,10\n", "3 rows, of 2 for each token"},
		{"unknown size", head + "0,0,0,1,0,1,0.5,0,10\n", "layer 1 has no expert_bytes"},
		{"size without layer", "# expert_bytes=4\n", "without a layer"},
		{"layers", "# n_layer=99999999\n", "n_layer"},
	} {
		_, err := Read(strings.NewReader(c.text))
		require.ErrorContains(t, err, c.say, c.name)
		require.Equal(t, fault.Corrupt, fault.KindOf(err), c.name)
	}
}

func FuzzRead(f *testing.F) {
	f.Add("# model=m n_layer=1 n_expert=4 n_expert_used=2\n# layer=0 expert_bytes=10\n" + columns + "\n0,0,0,0,0,1,0.5,0,10\n0,1,1,0,0,3,0.5,1,0\n")
	f.Add("# n_layer=1\n# layer=0 expert_bytes=10 layer=7 expert_bytes=3\n")
	f.Fuzz(func(t *testing.T, text string) {
		tr, err := Read(strings.NewReader(text))
		if err != nil {
			return
		}
		for _, b := range tr.Batches {
			for _, e := range b.Experts {
				require.Less(t, int(tr.Key(b.Layer, e)), tr.Keys())
			}
		}
	})
}
