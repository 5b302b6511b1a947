package program

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/plugins/compute-cpu/internal/kernel"
	"github.com/bigmoe/bigmoe/sdk/fault"
	"github.com/bigmoe/bigmoe/sdk/plan"
)

func glued(t *testing.T, attrs ...*plan.Attr) (gluing, error) {
	t.Helper()
	spec, ok := plan.Lookup("glu")
	require.True(t, ok)
	a, err := spec.Attributes(&plan.Op{Kind: "glu", In: []string{"x"}, Out: []string{"y"}, Attrs: attrs})
	require.NoError(t, err)
	return newGluing(a)
}

func number(name string, v float64) *plan.Attr {
	return &plan.Attr{Name: name, Value: &plan.Attr_F{F: v}}
}

func activation(name string) *plan.Attr {
	return &plan.Attr{Name: "activation", Value: &plan.Attr_S{S: name}}
}

// TestGluing compares with the formulas of docs/ops.md from where they bend to where nothing but their limits is left.
func TestGluing(t *testing.T) {
	clamp := func(x, limit float64) float64 { return min(max(x, -limit), limit) }
	for _, test := range []struct {
		name  string
		attrs []*plan.Attr
		want  func(g, u float64) float64
	}{
		{"gelu_tanh", []*plan.Attr{activation("gelu_tanh")}, func(g, u float64) float64 { return geluTanh(g) * u }},
		{"silu, limited", []*plan.Attr{number("limit", 7)}, func(g, u float64) float64 { return silu(min(g, 7)) * clamp(u, 7) }},
		{"silu, then limited", []*plan.Attr{activation("silu_clamped"), number("limit", 0.5)}, func(g, u float64) float64 {
			return min(silu(g), 0.5) * clamp(u, 0.5)
		}},
		{"silu_clamped without a limit", []*plan.Attr{activation("silu_clamped")}, func(g, u float64) float64 { return silu(g) * u }},
		{"swiglu_oai", []*plan.Attr{activation("swiglu_oai"), number("limit", 7), number("alpha", 1.702)}, func(g, u float64) float64 {
			g = min(g, 7)
			return g * sigmoid(1.702*g) * (clamp(u, 7) + 1)
		}},
		{"swiglu_oai, falling", []*plan.Attr{activation("swiglu_oai"), number("alpha", -0.5)}, func(g, u float64) float64 {
			return g * sigmoid(-0.5*g) * (u + 1)
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			prepare, err := glued(t, test.attrs...)
			require.NoError(t, err)
			var gate, up []float32
			for g := -40.0; g <= 40; g += 0.37 {
				gate, up = append(gate, float32(g), float32(g*g*g)), append(up, float32(17*math.Sin(g)), float32(g))
			}
			gate, up = append(gate, 0, 1e30, -1e30, 1e-30), append(up, 3, 1e-3, 1e-3, 2)
			for _, set := range kernel.Sets() {
				g, u := append([]float32{}, gate...), append([]float32{}, up...)
				prepare(g, u, g, u)
				set.SwiGLU(g, g, u)
				for i, got := range g {
					want := test.want(float64(gate[i]), float64(up[i]))
					require.InDelta(t, want, got, 2e-6*math.Abs(want)+1e-6*math.Abs(float64(up[i])), "%s: gate %v, up %v", set.Name, gate[i], up[i])
				}
			}
		})
	}
	prepare, err := glued(t)
	require.NoError(t, err)
	require.Nil(t, prepare)
	_, err = glued(t, activation("swiglu_oai"), number("alpha", 0))
	require.Equal(t, fault.Unsupported, fault.KindOf(err))
}
