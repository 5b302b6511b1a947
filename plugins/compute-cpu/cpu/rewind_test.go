package cpu_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/plugins/compute-cpu/cpu"
	"github.com/bigmoe/bigmoe/sdk/compute"
	"github.com/bigmoe/bigmoe/sdk/compute/optable"
	"github.com/bigmoe/bigmoe/sdk/plan"
)

// TestRewind holds every op with a state, after going back, to a text that never went further, bit for bit. States that can
// be trimmed forget the end. Others refuse, change nothing by it, and are emptied and filled again.
func TestRewind(t *testing.T) {
	const keep = 7
	tokens := optable.AllTokens()
	rewound := map[string]bool{}
	for _, c := range optable.Cases() {
		if len(c.States) == 0 {
			continue
		}
		trims := true
		for _, s := range c.States {
			trims = trims && s.Rewind == plan.Rewind_TRIM
		}
		for _, kind := range c.Kinds() {
			rewound[kind] = true
		}
		t.Run(c.Name, func(t *testing.T) {
			m := build(t, c)
			for _, kernels := range cpu.Kernels() {
				backend, err := cpu.New(cpu.Options{Kernels: kernels})
				require.NoError(t, err)
				bound := m.Options(&compute.Options{Context: optable.Tokens, Batch: optable.Tokens, LogitRows: optable.Tokens, Threads: 2, KvType: m.Bound.Options.KvType})
				seq, err := backend.Load(bound, m.Region)
				require.NoError(t, err)
				defer seq.Close()
				h := optable.NewHost(m)
				eval := func(position int, tokens ...int32) []float32 {
					b := m.Batch(position, true, tokens...)
					require.NoError(t, seq.Eval(t.Context(), b, h))
					return b.Logits
				}
				start := eval(0, tokens[:keep]...)
				end := eval(keep, tokens[keep:]...)
				require.NoError(t, seq.Trim(0))
				require.Equal(t, start, eval(0, tokens[:keep]...), "from the start")
				eval(keep, 3, 12, 0, 5) // another end
				if trims {
					require.NoError(t, seq.Trim(keep))
				} else {
					require.ErrorContains(t, seq.Trim(keep), "can only be reset")
					eval(keep+4, 1)
					require.NoError(t, seq.Trim(0))
					require.Equal(t, start, eval(0, tokens[:keep]...), "reset")
				}
				require.Equal(t, end, eval(keep, tokens[keep:]...), "%s: on from where it went back to", kernels)
			}
		})
	}
	for _, kind := range newBackend(t).Describe().Ops {
		if spec, _ := plan.Lookup(kind); len(spec.States) > 0 {
			require.True(t, rewound[kind], "op %q has a state and no case", kind)
		}
	}
}
