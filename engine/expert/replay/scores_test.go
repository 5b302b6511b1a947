package replay

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/sdk/fault"
)

func scored() []Batch {
	return []Batch{
		{Prefill: true, Layer: 1, K: 1, Experts: []int32{0, 1}, Scores: []float32{3, 2, 1, 0, 0, 1, 0.5, -2}},
		{Prefill: true, Step: 1, Layer: 2, K: 1, Experts: []int32{3}, Scores: []float32{0, 1, 2, 3}},
		{Step: 2, Layer: 1, K: 1, Experts: []int32{2}, Scores: []float32{1, 2, 3.25, 0}},
		{Step: 2, Layer: 2, K: 1, Experts: []int32{0}, Scores: []float32{4, 1, 2, 3}},
		{Step: 3, Layer: 1, K: 1, Experts: []int32{2}, Scores: []float32{0, 2, 3, 0}},
		{Step: 3, Layer: 2, K: 1, Experts: []int32{3}, Scores: []float32{0, 1, 2, 3}},
	}
}

func writeScores(t *testing.T, batches []Batch) string {
	var out strings.Builder
	w := NewScoreWriter(&out, small)
	for i := range batches {
		require.NoError(t, w.Write(&batches[i]))
	}
	require.NoError(t, w.Flush())
	return out.String()
}

func TestScores(t *testing.T) {
	text := writeScores(t, scored())
	require.Equal(t, `# route_scores v1
# model=my_model.gguf arch=qwen3moe n_layer=3 n_expert=4 n_expert_used=2
turn,phase,step,layer,scores
0,0,0,1,3 2 1 0
0,0,1,1,0 1 0.5 -2
0,0,1,2,0 1 2 3
0,1,2,1,1 2 3.25 0
0,1,2,2,4 1 2 3
0,1,3,1,0 2 3 0
0,1,3,2,0 1 2 3
`, text)
	tr := &Trace{Experts: 4, TopK: 1, Batches: scored()}
	for i := range tr.Batches {
		tr.Batches[i].Scores = nil
	}
	require.Empty(t, tr.ScoreBands())
	require.NoError(t, tr.ReadScores(strings.NewReader(text)))
	require.Equal(t, scored(), tr.Batches)
	require.Equal(t, []Band{{1, 1, 0.5}, {2, 2, 0.5}, {3, 4, 0}}, tr.ScoreBands(), "layer 1 picks its best again, layer 2 its second")
}

func TestScoreErrors(t *testing.T) {
	text := writeScores(t, scored())
	for _, c := range []struct{ name, from, to, say string }{
		{"columns", "turn,", "turns,", "columns are"},
		{"short", "0,1,3,2,0 1 2 3\n", "", "unexpected EOF"},
		{"long", "0,1,3,2,0 1 2 3\n", "0,1,3,2,0 1 2 3\n0,1,4,1,0 1 2 3\n", "beyond the end"},
		{"other trace", "0,1,2,2,", "0,1,2,1,", "in the trace 0,1,2,2"},
		{"fields", "0,1,2,2,4 1 2 3", "0,1,2,2", "4 columns"},
		{"too many", "4 1 2 3", "4 1 2 3 4", "5 scores"},
		{"uneven", "0 1 0.5 -2", "0 1 0.5", "3 scores, 4 for the token before"},
		{"not a number", "3.25", "NaN", "score NaN"},
		{"no number", "3.25", "x", "invalid syntax"},
	} {
		tr := &Trace{Experts: 4, TopK: 1, Batches: scored()}
		err := tr.ReadScores(strings.NewReader(strings.Replace(text, c.from, c.to, 1)))
		require.ErrorContains(t, err, c.say, c.name)
		require.Equal(t, fault.Corrupt, fault.KindOf(err), c.name)
	}
	w := NewScoreWriter(&strings.Builder{}, small)
	require.Equal(t, fault.Bug, fault.KindOf(w.Write(&Batch{K: 1, Experts: []int32{1, 2}, Scores: []float32{1}})))
}

func FuzzReadScores(f *testing.F) {
	f.Add("turn,phase,step,layer,scores\n0,0,0,1,3 2 1 0\n")
	f.Fuzz(func(t *testing.T, text string) {
		tr := &Trace{Experts: 4, TopK: 1, Batches: scored()[:1]}
		if tr.ReadScores(strings.NewReader(text)) == nil {
			require.Zero(t, len(tr.Batches[0].Scores)%2)
		}
	})
}
