package engine_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/engine"
	"github.com/bigmoe/bigmoe/sdk/compute"
)

const gptOSS = "gpt-oss/gpt-oss-mxfp4"

// TestGPTOSSGolden covers MXFP4 experts with biases and clamps, sinks, windows and YaRN. The prompt is six windows long.
func TestGPTOSSGolden(t *testing.T) {
	arithmetic(t)
	g, model := loadGolden(t, gptOSS)
	for backend, chunks := range map[string][]int{"reference": {7}, "in process": {0, 1, 7, 64}, "child process": {0}} {
		t.Run(backend, func(t *testing.T) {
			for _, chunk := range chunks {
				g.compare(t, observe(t, config(model, backends()[backend]), g.Prompt.IDs, chunk, 32))
			}
		})
	}
}

// TestWindowedRewind: a text that goes on elsewhere keeps its start as long as the windows of that position are still there,
// and gives the tokens of a fresh session in either case.
func TestWindowedRewind(t *testing.T) {
	_, model := loadGolden(t, gptOSS) // windows of 8
	cfg := config(model, backends()["child process"])
	cfg.Batch, cfg.KV = 4, compute.KVType_F16
	e := open(t, cfg)
	text := make([]int32, 40)
	for i := range text {
		text[i] = int32(i * 37 % 300)
	}
	generate := func(s *engine.Session, prompt []int32) *engine.Result {
		res, err := s.Generate(t.Context(), greedy(prompt, 3), silent)
		require.NoError(t, err)
		return res
	}
	for _, test := range []struct{ same, reused int }{{39, 39}, {38, 38}, {30, 0}, {3, 0}} {
		s := e.NewSession()
		generate(s, text) // ends 2 tokens after the text
		other := append(append([]int32{}, text[:test.same]...), 301, 302)
		got := generate(s, other)
		require.Equal(t, test.reused, got.ReusedTokens)
		require.Equal(t, generate(e.NewSession(), other).Tokens, got.Tokens)
	}
}
