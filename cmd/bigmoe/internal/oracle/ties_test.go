package oracle_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/cmd/bigmoe/internal/oracle"
)

// TestTies: where the router thinks the same of two experts, as far as the tolerance goes, the other one is no mistake. What
// comes after it is not compared.
func TestTies(t *testing.T) {
	other := func(layer, position int) func(g, run map[string]any) {
		return func(_, run map[string]any) {
			ids := run["routing"].(map[string]any)["experts"].([]any)[layer].([]any)[position].([]any)
			id := 0.0
			for slices.Contains(ids, any(id)) {
				id++
			}
			ids[len(ids)-1] = id
		}
	}
	loose := func(abs float64) func(g, run map[string]any) {
		return func(g, _ map[string]any) {
			g["tolerance"].(map[string]any)["f32"].(map[string]any)["routing_weight_abs"] = abs
		}
	}
	for _, c := range []struct {
		name   string
		change []func(g, run map[string]any)
		fails  string
		want   oracle.Result
	}{
		{"no tie", []func(g, run map[string]any){other(1, 30)}, "layer 1, position 30: experts [", oracle.Result{}},
		{"tie", []func(g, run map[string]any){other(1, 30), loose(1e6)}, "",
			oracle.Result{Positions: 30, Choices: 51 + 50 + 2*30, Layers: 4, Routed: 4, Logits: 30 * 9}},
		{"tie at once", []func(g, run map[string]any){other(0, 0), loose(1e6)}, "nothing is left to compare: layer 0, position 0: experts [", oracle.Result{}},
		{"order", []func(g, run map[string]any){func(_, run map[string]any) {
			ids := run["routing"].(map[string]any)["experts"].([]any)[2].([]any)[9].([]any)
			ids[0], ids[1] = ids[1], ids[0]
		}, loose(1e6)}, "", oracle.Result{Positions: 51, Greedy: 32, Choices: 4 * (51 + 31), Layers: 4, Routed: 4, Logits: 51*9 + 384}},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := changed(t, "qwen3moe-f32", c.change...)
			got, err := compare(t, "qwen3moe-f32", path)
			if c.fails != "" {
				require.ErrorContains(t, err, c.fails)
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.want.Greedy == 0, got.Tie != "", got.Tie)
			got.Largest, got.Allowed, got.Tie = 0, 0, ""
			require.Equal(t, &c.want, got)
		})
	}

	t.Run("quantised", func(t *testing.T) {
		got, err := compare(t, "qwen3moe-k-q8_0", changed(t, "qwen3moe-k-q8_0", other(1, 30), func(g, _ map[string]any) {
			g["tolerance"].(map[string]any)["quantised_activations"].(map[string]any)["routing_weight_abs"] = 1e6
		}))
		require.NoError(t, err)
		require.Equal(t, []int{30, 51 + 50, 0}, []int{got.Positions, got.Choices, got.Greedy})
		require.Contains(t, got.String(), "no text to compare; layer 1, position 30: experts [")
	})
}
