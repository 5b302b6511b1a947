package engine_test

import (
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/engine/gguf"
	"github.com/bigmoe/bigmoe/engine/token"
	"github.com/bigmoe/bigmoe/recipes"
)

// tokenCase is a text of a golden, in the words of each of its three formats.
type tokenCase struct {
	Text string

	IDs      []int32
	Plain    []int32 `json:"ids_no_special"`          // README-a: ids has the control tokens of the text
	Hidden   *string `json:"decoded_without_control"` // of ids
	Bare     []int32 `json:"ids_plain"`               // README_b: ids has BOS as well
	Visible  string  `json:"visible_hex"`             // of ids, without control tokens
	BareText string  `json:"plain_all_hex"`           // of ids_plain, with them
	Special  []int32 `json:"ids_parse_special"`       // README_c: ids has no control token
}

// TestGoldenTokens goes there and back for every text that comes with the goldens of an architecture, with the vocabulary of each
// of its models.
func TestGoldenTokens(t *testing.T) {
	arithmetic(t)
	paths, err := filepath.Glob(filepath.Join(goldenDir, "*", "*.json"))
	require.NoError(t, err)
	seen := map[string]int{}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		var file struct {
			Tokenize, Tokenization, Cases []tokenCase
			Files                         []struct{ Name string }
			Model                         string
		}
		if json.Unmarshal(text, &file) != nil {
			continue // not of a model
		}
		folder := filepath.Dir(path)
		models := []string{filepath.Join(folder, file.Model)}
		switch {
		case len(file.Cases) > 0 && filepath.Base(path) == "text.json": // of every model of the folder
			models, err = filepath.Glob(filepath.Join(folder, "*.gguf"))
			require.NoError(t, err)
			models = slices.DeleteFunc(models, func(m string) bool { return strings.Contains(m, "-of-") })
		case len(file.Tokenize) > 0:
			models = []string{filepath.Join(folder, file.Files[0].Name)}
		case len(file.Tokenization) == 0:
			continue
		}
		require.NotEmpty(t, models)
		for _, model := range models {
			t.Run(strings.TrimSuffix(filepath.Base(path), ".json")+"/"+filepath.Base(model), func(t *testing.T) {
				f, err := gguf.Open(model)
				require.NoError(t, err)
				defer f.Close()
				tok, err := token.New(f)
				require.NoError(t, err)
				encode := func(want []int32, text string, o token.Options) {
					t.Helper()
					require.Equal(t, append([]int32{}, want...), append([]int32{}, tok.Encode(text, o)...), "%+v %q", o, text)
				}
				decode := func(want string, ids []int32, control bool) {
					t.Helper()
					got, err := tok.Decode(ids, control)
					require.NoError(t, err)
					require.Equal(t, want, string(got))
				}
				bytesOf := func(text string) string {
					raw, err := hex.DecodeString(text)
					require.NoError(t, err)
					return string(raw)
				}
				for _, c := range file.Tokenize {
					encode(c.IDs, c.Text, token.Options{ParseSpecial: true})
					encode(c.Plain, c.Text, token.Options{})
					decode(c.Text, c.IDs, true)
					decode(*c.Hidden, c.IDs, false)
				}
				for _, c := range file.Tokenization {
					encode(c.IDs, c.Text, token.Options{AddSpecial: true, ParseSpecial: true})
					encode(c.Bare, c.Text, token.Options{})
					decode(bytesOf(c.Visible), c.IDs, false)
					decode(bytesOf(c.BareText), c.Bare, true)
				}
				for _, c := range file.Cases {
					encode(c.IDs, c.Text, token.Options{AddSpecial: true}) // these vocabularies want no BOS
					encode(c.Special, c.Text, token.Options{ParseSpecial: true})
					decode(c.Text, c.Special, true)
				}
				seen[filepath.Base(folder)] += len(file.Tokenize) + len(file.Tokenization) + len(file.Cases)
			})
		}
	}
	for _, name := range recipes.Names() {
		if folder, err := os.Stat(filepath.Join(goldenDir, name)); err == nil && folder.IsDir() {
			require.Positive(t, seen[name], "no text of %s", name)
		}
	}
}
