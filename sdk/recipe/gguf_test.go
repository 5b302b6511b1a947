package recipe

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/bigmoe/bigmoe/sdk/plan"
)

// planOf is the plan that a recipe makes of a model that it must not refuse.
func planOf(t *testing.T, m *model, build func(*Builder)) *plan.Plan {
	t.Helper()
	raw, failed := runs(m, build)
	require.Nil(t, failed)
	p := &plan.Plan{}
	require.NoError(t, proto.Unmarshal(raw, p))
	return p
}

func TestTableAndHead(t *testing.T) {
	m := newModel()
	m.tensor("token_embd.weight", 8, 3)
	var table, head Weight
	build := func(b *Builder) { table, head = b.TableAndHead(8, 3) }
	p := planOf(t, m, build)
	require.Equal(t, []Weight{"token_embd.weight", "token_embd.weight"}, []Weight{table, head})
	require.Len(t, p.Weights, 1)
	require.Equal(t, plan.Residency_RESIDENT, p.Weights[0].Residency)

	m.tensor("output.weight", 8, 3)
	p = planOf(t, m, build)
	require.Equal(t, []Weight{"token_embd.weight", "output.weight"}, []Weight{table, head})
	require.Equal(t, plan.Residency_ROWS, p.Weights[0].Residency)
	require.Equal(t, plan.Residency_RESIDENT, p.Weights[1].Residency)
}

func TestStackedBank(t *testing.T) {
	m := newModel()
	for _, part := range []string{"1.ffn_gate", "1.ffn_up", "2.ffn_gate_up"} {
		rows := map[bool]uint64{true: 12, false: 6}[part == "2.ffn_gate_up"]
		m.tensor("blk."+part+"_exps.weight", 8, rows, 4)
	}
	m.tensor("blk.1.ffn_down_exps.weight", 6, 8, 4)
	m.tensor("blk.2.ffn_down_exps.weight", 6, 8, 4)
	p := planOf(t, m, func(b *Builder) { b.StackedBank(1, 4, 8, 6); b.StackedBank(2, 4, 8, 6) })
	part := func(role plan.Role, tensor string, in, out uint64) *plan.Part {
		return &plan.Part{Role: role, Tensors: []string{tensor}, In: in, Out: out}
	}
	for i, want := range []*plan.Bank{
		{Name: "l1.experts", Layer: 1, Experts: 4, Parts: []*plan.Part{part(plan.Role_GATE, "blk.1.ffn_gate_exps.weight", 8, 6),
			part(plan.Role_UP, "blk.1.ffn_up_exps.weight", 8, 6), part(plan.Role_DOWN, "blk.1.ffn_down_exps.weight", 6, 8)}},
		{Name: "l2.experts", Layer: 2, Experts: 4, Parts: []*plan.Part{part(plan.Role_GATE_UP, "blk.2.ffn_gate_up_exps.weight", 8, 12),
			part(plan.Role_DOWN, "blk.2.ffn_down_exps.weight", 6, 8)}},
	} {
		require.True(t, proto.Equal(want, p.Banks[i]), "%v", p.Banks[i])
	}
	_, failed := runs(m, func(b *Builder) { b.StackedBank(0, 4, 8, 6) })
	require.Contains(t, fmt.Sprint(failed), `"blk.0.ffn_gate_exps.weight" is missing`)
}

func TestTrunk(t *testing.T) {
	for name, test := range map[string]struct {
		counted int
		tensors []string
		layers  int
		unused  []string
	}{
		"none":     {0, []string{"blk.3.x"}, 4, nil},
		"one":      {1, []string{"blk.2.x", "blk.3.x", "blk.3.nextn.eh_proj.weight", "blk.30.x"}, 3, []string{"blk.3.x", "blk.3.nextn.eh_proj.weight"}},
		"two":      {2, []string{"blk.3.x", "blk.2.nextn.eh_proj.weight"}, 2, []string{"blk.3.x", "blk.2.nextn.eh_proj.weight"}},
		"left out": {1, []string{"blk.2.x"}, 3, nil},
		"stale":    {1, []string{"blk.2.x", "blk.3.x"}, 4, nil},
	} {
		t.Run(name, func(t *testing.T) {
			m := newModel()
			if test.counted > 0 {
				m.keys["test.nextn_predict_layers"] = test.counted
			}
			for _, tensor := range test.tensors {
				m.tensor(tensor, 1)
			}
			p := planOf(t, m, func(b *Builder) { require.Equal(t, test.layers, b.Trunk(4)) })
			var unused []string
			for _, u := range p.Unused {
				unused = append(unused, u.Tensor)
			}
			require.Equal(t, test.unused, unused)
		})
	}
}

func TestUnusedUnder(t *testing.T) {
	m := newModel()
	for _, name := range []string{"v.a", "x", "mm.b", "vx"} {
		m.tensor(name, 1)
	}
	p := planOf(t, m, func(b *Builder) { b.UnusedUnder("why", "mm.", "v.", "v"); b.UnusedUnder("none", "a.") })
	require.Len(t, p.Unused, 3)
	require.True(t, proto.Equal(&plan.Unused{Tensor: "v.a", Reason: "why"}, p.Unused[0]))
	require.Equal(t, []string{"mm.b", "vx"}, []string{p.Unused[1].Tensor, p.Unused[2].Tensor})
}

func TestFirstTensor(t *testing.T) {
	m := newModel()
	m.tensor("new", 1)
	m.tensor("newer", 1)
	planOf(t, m, func(b *Builder) {
		require.Equal(t, "new", b.FirstTensor("old", "new", "newer"))
		require.Equal(t, "old", b.FirstTensor("old", "older"))
		require.Equal(t, "blk.12.", b.Layer(12))
	})
}
