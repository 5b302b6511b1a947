package outline_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/engine/gguf"
	"github.com/bigmoe/bigmoe/engine/gguf/gguftest"
	"github.com/bigmoe/bigmoe/engine/gguf/outline"
)

const golden = "../../../testdata/golden/"

func open(t *testing.T, path string) *gguf.File {
	f, err := gguf.Open(path)
	require.NoError(t, err)
	t.Cleanup(func() { f.Close() })
	return f
}

// TestThereAndBack: a file made from an outline has the same outline, and the tensors of the original.
func TestThereAndBack(t *testing.T) {
	for _, path := range []string{"qwen3moe/qwen3moe-f32.gguf", "qwen3moe/qwen3moe-split-00002-of-00003.gguf",
		"deepseek4/deepseek4-q4_k_m.gguf", "badgguf/files/ok-odd-types.gguf", "gemma4/gemma4-alt-f32.gguf"} {
		t.Run(filepath.Base(path), func(t *testing.T) {
			f := open(t, golden+path)
			o, err := outline.Of(f)
			require.NoError(t, err)
			text, err := o.MarshalJSON()
			require.NoError(t, err)
			require.Less(t, len(text), 20_000)

			parsed, err := outline.Parse(text)
			require.NoError(t, err)
			made := filepath.Join(t.TempDir(), "made.gguf")
			require.NoError(t, parsed.Write(made))
			g := open(t, made)
			require.Len(t, g.Tensors(), len(f.Tensors()))
			for i, want := range f.Tensors() {
				got := g.Tensors()[i]
				require.Equal(t, []any{want.Name, want.Type, want.Dims, want.Bytes}, []any{got.Name, got.Type, got.Dims, got.Bytes})
			}
			v, _ := g.Get("tokenizer.ggml.tokens")
			w, _ := f.Get("tokenizer.ggml.tokens")
			require.Equal(t, w.Len(), v.Len())

			again, err := outline.Of(g)
			require.NoError(t, err)
			twice, err := again.MarshalJSON()
			require.NoError(t, err)
			require.JSONEq(t, string(text), string(twice))
		})
	}
}

// Recipes read lists with a number for each layer, of which there may be many; the vocabulary they only count.
func TestLists(t *testing.T) {
	path := filepath.Join(t.TempDir(), "made.gguf")
	heads, windows, tokens := make([]int32, 94), make([]bool, 94), make([]string, 94)
	heads[93], windows[93], tokens[93] = 8, true, "token"
	b := gguftest.NewBuilder().Set("general.architecture", "a").Set("a.heads", heads).Set("a.windows", windows).Set("tokenizer.ggml.tokens", tokens)
	require.NoError(t, b.Write(path))
	o, err := outline.Of(open(t, path))
	require.NoError(t, err)
	text, err := o.MarshalJSON()
	require.NoError(t, err)
	require.Contains(t, string(text), `"tokenizer.ggml.tokens": {"strings":94}`)
	o, err = outline.Parse(text)
	require.NoError(t, err)
	require.NoError(t, o.Write(path))
	f := open(t, path)
	v, _ := f.Get("a.heads")
	got, err := v.Ints()
	require.NoError(t, err)
	require.Equal(t, int64(8), got[93])
	v, _ = f.Get("a.windows")
	flags, err := v.Bools()
	require.NoError(t, err)
	require.True(t, flags[93])
}

func TestRefuses(t *testing.T) {
	for _, c := range []struct{ text, say string }{
		{`{`, "unexpected EOF"},
		{`{"weights": []}`, "unknown field"},
		{`{"keys": {"a.b": null}}`, `key "a.b"`},
		{`{"keys": {"a.b": {"strings": 99999999}}}`, "0 to 1048576 elements"},
		{`{"keys": {"a": {"strings": 1000000}, "b": {"floats": 100000}}}`, "lists of more than 1048576 elements"},
		{`{"keys": {"a.b": {"strings": -1}}}`, "0 to"},
		{`{"keys": {"a.b": {"texts": 1}}}`, "unknown field"},
		{`{"keys": {"a.b": [[1]]}}`, "do not occur"},
		{`{"keys": {"a.b": [1, "x"]}}`, `key "a.b"`},
		{`{"tensors": ["t F32"]}`, "expected a name, a type and sizes"},
		{`{"tensors": ["t F33 [1]"]}`, "unknown type F33"},
		{`{"tensors": ["t F32 []"]}`, "1 to 4 sizes, found 0"},
		{`{"tensors": ["t F32 [0]"]}`, "bad size 0"},
		{`{"tensors": ["t F32 [1 2 3 4 5]"]}`, "found 5"},
	} {
		_, err := outline.Parse([]byte(c.text))
		require.ErrorContains(t, err, c.say, c.text)
	}
	o, err := outline.Parse([]byte(`{"tensors": ["t Q8_0 [33]"]}`))
	require.NoError(t, err)
	require.ErrorContains(t, o.Write(filepath.Join(t.TempDir(), "x.gguf")), `tensor "t"`)
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"keys": {"a": 1, "b": 1e-5, "c": ["x"], "d": {"floats": 3}, "e": -1, "f": true}, "tensors": ["t F32 [2 3]"]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		o, err := outline.Parse(text)
		if err != nil {
			return
		}
		if again, err := o.MarshalJSON(); err == nil {
			_, err = outline.Parse(again)
			require.NoError(t, err)
		}
	})
}

func TestExampleOfDoc(t *testing.T) {
	o, err := outline.Parse([]byte(`{"keys": {"general.architecture": "olmoe", "olmoe.block_count": 16, "olmoe.rope.freq_base": 10000.0,
		"tokenizer.ggml.tokens": {"strings": 50304}}, "tensors": ["token_embd.weight F32 [2048 50304]"]}`))
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "tiny.gguf")
	require.NoError(t, o.Write(path))
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Greater(t, info.Size(), int64(4*2048*50304))
	base, _ := open(t, path).Get("olmoe.rope.freq_base")
	require.Equal(t, "float32", base.TypeName())
}
