package oracle_test

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/cmd/bigmoe/internal/oracle"
	"github.com/bigmoe/bigmoe/engine"
	"github.com/bigmoe/bigmoe/recipes"
	"github.com/bigmoe/bigmoe/registry"
	"github.com/bigmoe/bigmoe/sdk/fault"
)

const fixtures = "../../../../testdata/golden/qwen3moe/"

func compare(t *testing.T, model, path string) (*oracle.Result, error) {
	g, err := oracle.Read(path)
	require.NoError(t, err)
	r := registry.New(registry.Config{BuiltIn: recipes.Names(), Lookup: recipes.Lookup})
	return g.Compare(context.Background(), engine.Config{Model: fixtures + model + ".gguf", Recipes: r})
}

func TestAgrees(t *testing.T) {
	for model, choices := range map[string]int{"qwen3moe-f32": 4 * (51 + 31), "qwen3moe-k-q4_k_m": 2 * 51} {
		result, err := compare(t, model, fixtures+model+".json")
		require.NoError(t, err)
		require.Equal(t, []int{51, 32, choices}, []int{result.Positions, result.Greedy, result.Choices})
		require.Less(t, result.Largest, result.Allowed)
		require.Positive(t, result.Largest)
	}
}

// changed is a reference with something else in it, of its run f32 or elsewhere.
func changed(t *testing.T, name string, changes ...func(g, run map[string]any)) (path string) {
	text, err := os.ReadFile(fixtures + name + ".json")
	require.NoError(t, err)
	var g map[string]any
	require.NoError(t, json.Unmarshal(text, &g))
	for _, change := range changes {
		change(g, g["runs"].(map[string]any)["f32"].(map[string]any))
	}
	text, err = json.Marshal(g)
	require.NoError(t, err)
	path = filepath.Join(t.TempDir(), "changed.json")
	require.NoError(t, os.WriteFile(path, text, 0o600))
	return path
}

// TestNamesWhatDiffers changes one thing of a reference at a time.
func TestNamesWhatDiffers(t *testing.T) {
	for _, c := range []struct {
		name, say string
		change    func(g, run map[string]any)
	}{
		{"logit", "logits differ by up to 1 where 0.00044 is allowed (position 50, token 3: ", func(_, run map[string]any) {
			logits := run["final_logits"].([]any)
			logits[3] = logits[3].(float64) + 1
		}},
		{"position", "(position 7, log-sum-exp: ", func(_, run map[string]any) {
			run["positions"].([]any)[7].(map[string]any)["lse"] = 99.0
		}},
		{"greedy", "token 2 after the prompt is ", func(_, run map[string]any) {
			run["greedy"].(map[string]any)["ids"].([]any)[2] = 1.0
		}},
		{"experts", "layer 1, position 0: experts [", func(_, run map[string]any) {
			run["routing"].(map[string]any)["experts"].([]any)[1].([]any)[0].([]any)[0] = 77.0
		}},
		{"experts without a tolerance", "has no routing_weight_abs: without it, no other expert counts as a tie", func(g, run map[string]any) {
			run["routing"].(map[string]any)["experts"].([]any)[1].([]any)[0].([]any)[0] = 77.0
			delete(g["tolerance"].(map[string]any)["f32"].(map[string]any), "routing_weight_abs")
		}},
		{"nothing", "nothing is left to compare: no position has lse or top", func(_, run map[string]any) {
			for i := range run["positions"].([]any) {
				run["positions"].([]any)[i] = map[string]any{}
			}
			delete(run, "final_logits")
			delete(run, "greedy")
		}},
		{"weights", "layer 2, position 1: expert ", func(_, run map[string]any) {
			run["routing"].(map[string]any)["weights"].([]any)[2].([]any)[1].([]any)[0] = 0.5
		}},
		{"tolerance", "tolerance.f32.logit_abs is missing; the largest difference is ", func(g, _ map[string]any) { delete(g, "tolerance") }},
		{"root mean square", "on average (root mean square) where 1e-12 is allowed", func(g, _ map[string]any) {
			g["tolerance"].(map[string]any)["f32"].(map[string]any)["logit_rms"] = 1e-12
		}},
		{"vocabulary", "the vocabulary has 384 tokens, expected 2", func(_, run map[string]any) { run["final_logits"] = []any{1.0, 2.0} }},
		{"token", "position 0: token 384 of 384", func(_, run map[string]any) {
			run["positions"].([]any)[0].(map[string]any)["top"] = []any{[]any{384, 1.0}}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := changed(t, "qwen3moe-f32", c.change)
			_, err := compare(t, "qwen3moe-f32", path)
			require.ErrorContains(t, err, "not what "+path+" says:\n")
			require.ErrorContains(t, err, c.say)
			require.Equal(t, fault.Unknown, fault.KindOf(err))
		})
	}
}

// TestSaysWhatWasCompared: a reference that holds less than it seems to is told from one that agrees.
func TestSaysWhatWasCompared(t *testing.T) {
	for _, c := range []struct {
		say    string
		change func(g, run map[string]any)
	}{
		{"; the same 328 choices of experts; 32 tokens of text", func(_, _ map[string]any) {}},
		{"no logits to compare; no choices of experts to compare; 32 tokens of text", func(_, run map[string]any) {
			delete(run, "positions")
			delete(run, "final_logits")
			delete(run, "routing")
		}},
		{"; the same 102 choices of experts in 2 of 4 layers; no text to compare", func(_, run map[string]any) {
			delete(run, "greedy")
			routing := run["routing"].(map[string]any)
			routing["experts"] = routing["experts"].([]any)[:2]
		}},
	} {
		result, err := compare(t, "qwen3moe-f32", changed(t, "qwen3moe-f32", c.change))
		require.NoError(t, err)
		require.Contains(t, result.String(), c.say)
	}
}

// TestPythonExample: what the example of docs writes for a llama-like model is what the engine computes.
func TestPythonExample(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no python3 in PATH")
	}
	written, err := exec.Command(python, "../../../../docs/examples/golden.py", fixtures+"qwen3moe-f32.gguf", "368", "5", "261", "77", "300", "12").Output()
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "golden.json")
	require.NoError(t, os.WriteFile(path, written, 0o600))
	result, err := compare(t, "qwen3moe-f32", path)
	require.NoError(t, err)
	require.Equal(t, []int{6, 8, 4 * (6 + 7), 4}, []int{result.Positions, result.Greedy, result.Choices, result.Layers})
}

// TestQuantised: a model with quantised weights needs a tolerance for it, and that is what is said, not that the recipe is wrong.
func TestQuantised(t *testing.T) {
	strict := func(g, _ map[string]any) { delete(g["tolerance"].(map[string]any), "quantised_activations") }
	_, err := compare(t, "qwen3moe-k-q8_0", changed(t, "qwen3moe-k-q8_0", strict))
	require.ErrorContains(t, err, "This need not be the recipe: the model is quantised")
	require.ErrorContains(t, err, "tolerance.quantised_activations is missing")
	wrong := func(_, run map[string]any) { run["final_logits"].([]any)[3] = 99.0 }
	_, err = compare(t, "qwen3moe-k-q8_0", changed(t, "qwen3moe-k-q8_0", wrong))
	require.ErrorContains(t, err, "logits differ by up to ")
	require.NotContains(t, err.Error(), "This need not be the recipe")
}

func TestRead(t *testing.T) {
	for _, c := range []struct{ text, say string }{
		{`{`, "unexpected end"},
		{`{"prompt": {"ids": []}}`, "prompt.ids is missing or empty"},
		{`{"prompt": {"ids": [1]}}`, "runs.f32 is missing"},
		{`{"prompt": {"ids": [1]}, "runs": {"f32": {}}}`, "none of positions, final_logits and greedy"},
		{`{"prompt": {"ids": [1]}, "runs": {"f32": {"positions": [{}, {}]}}}`, "2 entries for a prompt of 1 tokens"},
		{`{"prompt": {"ids": [1]}, "runs": {"f32": {"final_logit": [1]}}}`, `runs: json: unknown field "final_logit"`},
		{`{"prompt": {"ids": [1]}, "runs": {"f64": {}}}`, `runs: json: unknown field "f64"`},
		{`{"prompt": {"id": [1]}, "runs": {}}`, `prompt: json: unknown field "id"`},
		{`{"prompt": {"ids": [1]}, "tolerance": {"f32": {"logits_abs": 1}}, "runs": {}}`, `tolerance: json: unknown field "logits_abs"`},
	} {
		path := filepath.Join(t.TempDir(), "g.json")
		require.NoError(t, os.WriteFile(path, []byte(c.text), 0o600))
		_, err := oracle.Read(path)
		require.ErrorContains(t, err, c.say)
		require.Equal(t, fault.Corrupt, fault.KindOf(err))
	}
	require.True(t, oracle.Is([]byte(`{"runs": {}}`)))
	require.False(t, oracle.Is([]byte(`{"keys": {}, "tensors": []}`)))
}
