package engine_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/engine"
	"github.com/bigmoe/bigmoe/sdk/compute"
)

// TestGuessesWhileSomethingIsRead looks at which evaluations are told that guesses are welcome.
func TestGuessesWhileSomethingIsRead(t *testing.T) {
	g, model := loadGolden(t, "qwen3moe/qwen3moe-f32")
	var welcome []bool
	backend := lying{
		Backend: newCPU(""),
		wrap:    func(h compute.Host) compute.Host { return struct{ compute.Host }{h} }, // which no guess reaches: what is read is what was asked for
		after:   func(b *compute.Batch) { welcome = append(welcome, b.Predict) },
	}
	text := func(e *engine.Engine) (of []bool, missBytes int64) {
		welcome = nil
		res, err := e.NewSession().Generate(t.Context(), greedy(g.Prompt.IDs[:3], 24), silent)
		require.NoError(t, err)
		return welcome, res.Prefill.MissBytes + res.Decode.MissBytes
	}
	cfg := config(model, engine.Backend{InProcess: backend})
	cfg.ExpertsUsed = 1 // so that some are never asked for
	small := cfg
	small.CacheBytes = leastCache(t, cfg)

	e := open(t, small)
	for range 2 {
		of, missed := text(e)
		require.NotContains(t, of, false, "every token misses something")
		require.NotZero(t, missed)
	}
	cfg.CacheBytes = e.Model.ExpertBytes() - 1 // or all experts are read between requests
	e = open(t, cfg)
	of, _ := text(e)
	require.True(t, of[0])
	of, missed := text(e)
	require.Zero(t, missed)
	require.True(t, of[0], "a prompt may be about something else")
	require.NotContains(t, of[8:], true)
}
