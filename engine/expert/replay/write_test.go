package replay

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/engine/expert/policy"
	"github.com/bigmoe/bigmoe/sdk/fault"
)

var small = Header{Model: "my model.gguf", Architecture: "qwen3moe", Experts: 4, TopK: 2, ExpertBytes: []int64{0, 10, 20}}

// write writes batches whose even experts are in the cache.
func write(t *testing.T, batches []Batch) string {
	var out strings.Builder
	w := NewWriter(&out, small)
	for i := range batches {
		weights := make([]float32, len(batches[i].Experts))
		for j := range weights {
			weights[j] = 1 / float32(j+1)
		}
		require.NoError(t, w.Write(&batches[i], weights, func(e int32) bool { return e%2 == 1 }))
	}
	require.NoError(t, w.Flush())
	return out.String()
}

func TestWrite(t *testing.T) {
	batches := []Batch{
		{Prefill: true, Layer: 1, K: 2, Experts: []int32{0, 1, 1, 2}},
		{Prefill: true, Step: 1, Layer: 2, K: 2, Experts: []int32{3, 1}}, // of the last layer, only the last token
		{Prefill: true, Step: 2, Layer: 1, K: 2, Experts: []int32{1, 2}}, // the rest of the prompt
		{Prefill: true, Step: 2, Layer: 2, K: 2, Experts: []int32{0, 1}},
		{Step: 3, Layer: 1, K: 2, Experts: []int32{2, 0}},
		{Step: 3, Layer: 2, K: 2, Experts: []int32{1, 3}},
	}
	text := write(t, batches)
	require.Equal(t, `# route_trace v1
# model=my_model.gguf arch=qwen3moe n_layer=3 n_expert=4 n_expert_used=2
# layer=1 expert_bytes=10
# layer=2 expert_bytes=20
turn,phase,step,layer,slot,expert,weight,residency,expert_bytes
0,0,0,1,0,0,1,1,0
0,0,0,1,1,1,0.5,0,10
0,0,1,1,0,1,0.333333,0,0
0,0,1,1,1,2,0.25,1,0
0,0,1,2,0,3,1,0,20
0,0,1,2,1,1,0.5,0,20
0,0,2,1,0,1,1,0,10
0,0,2,1,1,2,0.5,1,0
0,0,2,2,0,0,1,1,0
0,0,2,2,1,1,0.5,0,20
0,1,3,1,0,2,1,1,0
0,1,3,1,1,0,0.5,1,0
0,1,3,2,0,1,1,0,20
0,1,3,2,1,3,0.5,0,20
`, text)

	tr, err := Read(strings.NewReader(text))
	require.NoError(t, err)
	require.Equal(t, batches, tr.Batches)
	require.Equal(t, &Trace{Model: "my_model.gguf", Experts: 4, TopK: 2, ExpertBytes: []int64{0, 10, 20}, Batches: batches}, tr)
	starts := 0
	for i := range tr.Batches {
		if tr.StartsStep(i) {
			starts++
		}
	}
	require.Equal(t, 3, starts, "two parts of a prompt and a token")
	r := Run(tr, policy.NewLRU(), 1000)
	require.Equal(t, 3, r.PromptTokens)
	require.Equal(t, 1, r.Tokens)
}

func TestWriteErrors(t *testing.T) {
	w := NewWriter(&strings.Builder{}, small)
	for name, b := range map[string]Batch{
		"layer":  {Layer: 3, K: 2, Experts: []int32{0, 1}},
		"expert": {Layer: 1, K: 2, Experts: []int32{0, 4}},
		"picks":  {Layer: 1, Experts: []int32{0, 1}},
		"lost":   {Layer: 1, K: 1, Experts: []int32{0}},
	} {
		err := w.Write(&b, []float32{1, 1}, func(int32) bool { return false })
		require.Equal(t, fault.Bug, fault.KindOf(err), name)
	}
	full := errors.New("disk full")
	w = NewWriter(failing{full}, small)
	require.NoError(t, w.Write(&Batch{Layer: 1, K: 1, Experts: []int32{0}}, []float32{1}, func(int32) bool { return false }))
	require.ErrorIs(t, w.Flush(), full)
}

type failing struct{ error }

func (f failing) Write([]byte) (int, error) { return 0, f.error }
