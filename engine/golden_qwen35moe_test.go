package engine_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/engine/gguf"
	"github.com/bigmoe/bigmoe/engine/gguf/gguftest"
	"github.com/bigmoe/bigmoe/sdk/dtype"
)

// qwen35Golden reads a file of the format of shared/golden/README_c.md.
func qwen35Golden(t testing.TB, name string) (g *golden, model string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(goldenDir, "qwen35moe", name+".json"))
	require.NoError(t, err)
	var file struct {
		recordedRun
		Model     string
		Prompt    []int32
		Reference struct {
			Weight float64 `json:"router_weight_max_abs"` // what rounding did to the weights there
		} `json:"f64_reference"`
		Tolerance struct {
			Logit  float64 `json:"logit_abs"`
			Weight float64 `json:"router_weight_abs"`
			Oracle float64 `json:"logit_abs_vs_oracle"`
		}
	}
	require.NoError(t, json.Unmarshal(text, &file))
	g = &golden{Name: name, Types: map[string]int{"F32": 1}, Runs: map[string]*goldenRun{"f32": file.as()}}
	g.Prompt.IDs = file.Prompt
	g.Tolerance.F32.LogitAbs, g.Tolerance.F32.WeightAbs = file.Tolerance.Logit, file.Tolerance.Weight
	if file.Tolerance.Oracle > 0 {
		g.Types = map[string]int{"quantised": 1}
		require.NoError(t, json.Unmarshal([]byte(`{"quantised_activations": {}}`), &g.Tolerance))
		q := g.Tolerance.Quantised
		q.LogitAbs, q.LogitRMS, q.WeightAbs = file.Tolerance.Oracle, file.Tolerance.Oracle/4, 2*file.Reference.Weight
	}
	return g, filepath.Join(goldenDir, "qwen35moe", file.Model)
}

var qwen35Goldens = []string{"qwen35moe-f32", "qwen35moe-mtp", "qwen35moe-q8_0", "qwen35moe-q4_k_m"}

// TestQwen35MoEGoldens covers delta nets with tiled heads, gated attention and a gated shared expert. The mtp file also
// holds a block that drafts tokens, of which only the trunk before it is run.
func TestQwen35MoEGoldens(t *testing.T) {
	arithmetic(t)
	for _, name := range qwen35Goldens {
		t.Run(name, func(t *testing.T) {
			g, model := qwen35Golden(t, name)
			requireGolden(t, g, model, 32)
		})
	}
}

// TestQwen3Next runs a twin of the golden in the layouts of qwen3next (specs/qwen35moe.md 5.4 and 5.5): the value heads of
// a key head lie together, beta and alpha are one matrix, and in older files so are q, k, v and z. No golden of the
// architecture itself exists.
func TestQwen3Next(t *testing.T) {
	arithmetic(t)
	g, model := qwen35Golden(t, "qwen35moe-f32")
	for _, layout := range []string{"separate", "ssm_in"} {
		t.Run(layout, func(t *testing.T) {
			twin := asQwen3Next(t, model, layout == "ssm_in")
			for _, backend := range []string{"reference", "in process"} {
				g.compare(t, observe(t, config(twin, backends()[backend]), g.Prompt.IDs, 7, 32))
			}
		})
	}
}

// asQwen3Next writes a copy of a qwen35moe file of F32 tensors as qwen3next.
func asQwen3Next(t *testing.T, model string, oneMatrix bool) string {
	t.Helper()
	f, err := gguf.Open(model)
	require.NoError(t, err)
	defer f.Close()
	raw, err := os.ReadFile(model)
	require.NoError(t, err)
	size := func(key string) int {
		v, ok := f.Get("qwen35moe." + key)
		require.True(t, ok)
		n, err := v.Uint()
		require.NoError(t, err)
		return int(n)
	}
	keys, values, dim := size("ssm.group_count"), size("ssm.time_step_rank"), size("ssm.state_size")
	shared := values / keys
	b := gguftest.NewBuilder()
	for _, key := range f.Keys() {
		v, _ := f.Get(key)
		value, err := gguftest.Value(v)
		require.NoError(t, err)
		switch name, ok := strings.CutPrefix(key, "qwen35moe."); {
		case key == "general.architecture":
			b.Set(key, "qwen3next")
		case ok && name != "rope.dimension_sections":
			b.Set("qwen3next."+name, value)
		case !ok:
			b.Set(key, value)
		}
	}
	// part returns n rows, from first on, of rows of so many bytes.
	part := func(data []byte, row, first, n int) []byte { return data[row*first:][:row*n] }
	// grouped reorders units of so many bytes, one for each value head: the shared heads of key head g follow each other.
	grouped := func(data []byte, unit int) (out []byte) {
		for head := range values {
			out = append(out, part(data, unit, head%shared*keys+head/shared, 1)...)
		}
		require.Len(t, data, len(out))
		return out
	}
	data := map[string][]byte{} // of the layer
	for _, ts := range f.Tensors() {
		require.Equal(t, dtype.F32, ts.Type)
		data[ts.Name] = raw[ts.Offset:][:ts.Bytes]
	}
	for _, ts := range f.Tensors() {
		blk, name, _ := strings.Cut(ts.Name, ".ssm_")
		d, row := data[ts.Name], 4*int(ts.Dims[0])
		if _, recurrent := data[strings.TrimSuffix(strings.TrimSuffix(ts.Name, ".attn_qkv.weight"), ".attn_gate.weight")+".ssm_a"]; recurrent {
			blk = ts.Name[:strings.LastIndex(ts.Name, ".attn_")]
			qkv, z := data[blk+".attn_qkv.weight"], grouped(data[blk+".attn_gate.weight"], dim*row)
			v := grouped(qkv[2*keys*dim*row:], dim*row)
			if !oneMatrix {
				if strings.HasSuffix(ts.Name, "gate.weight") {
					b.Tensor(ts.Name, dtype.F32, ts.Dims, z)
				} else {
					b.Tensor(ts.Name, dtype.F32, ts.Dims, slices.Concat(qkv[:2*keys*dim*row], v))
				}
			} else if strings.HasSuffix(ts.Name, "gate.weight") {
				var in []byte
				for g := range keys {
					in = slices.Concat(in, part(qkv, row, g*dim, dim), part(qkv, row, (keys+g)*dim, dim),
						part(v, row, g*shared*dim, shared*dim), part(z, row, g*shared*dim, shared*dim))
				}
				b.Tensor(blk+".ssm_in.weight", dtype.F32, []uint64{ts.Dims[0], uint64(len(in) / row)}, in)
			}
			continue
		}
		switch name {
		case "alpha.weight":
			alpha, beta := grouped(d, row), grouped(data[blk+".ssm_beta.weight"], row)
			var ba []byte
			for g := range keys {
				ba = slices.Concat(ba, part(beta, row, g*shared, shared), part(alpha, row, g*shared, shared))
			}
			b.Tensor(blk+".ssm_ba.weight", dtype.F32, []uint64{ts.Dims[0], uint64(2 * values)}, ba)
			continue
		case "beta.weight":
			continue
		case "a", "dt.bias":
			d = grouped(d, 4)
		case "conv1d.weight":
			at := 2 * keys * dim * row
			d = slices.Concat(d[:at], grouped(d[at:], dim*row))
		case "out.weight":
			var rows []byte
			for ; len(d) > 0; d = d[row:] {
				rows = append(rows, grouped(d[:row], 4*dim)...)
			}
			d = rows
		}
		b.Tensor(ts.Name, dtype.F32, ts.Dims, d)
	}
	path := filepath.Join(t.TempDir(), "qwen3next.gguf")
	require.NoError(t, b.Write(path))
	return path
}
