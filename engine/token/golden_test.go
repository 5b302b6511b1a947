package token_test

import (
	"compress/gzip"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/engine/gguf"
	"github.com/bigmoe/bigmoe/engine/token"
)

// vocabularies are the real ones that the goldens come with. They are their vendors' and not part of this repository.
var vocabularies = []string{"qwen2", "qwen35", "gpt-2", "llama-bpe", "gpt-oss", "deepseek-v3", "deepseek-llm", "gemma-4", "llama-spm"}

// shared returns a path in the folder of specs and goldens beside the repository.
func shared(t testing.TB, elem ...string) string {
	t.Helper()
	root := os.Getenv("BIGMOE_SHARED")
	if root == "" {
		root = filepath.Join("..", "..", "..", "shared")
	}
	path := filepath.Join(append([]string{root}, elem...)...)
	if _, err := os.Stat(path); err != nil {
		t.Skipf("no goldens here (%v); set BIGMOE_SHARED", err)
	}
	return path
}

// file opens a compressed vocabulary.
func file(t testing.TB, name string) *gguf.File {
	t.Helper()
	zipped, err := os.Open(shared(t, "golden", "tokenizer", name+".gguf.gz"))
	require.NoError(t, err)
	defer zipped.Close()
	r, err := gzip.NewReader(zipped)
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), name+".gguf")
	plain, err := os.Create(path)
	require.NoError(t, err)
	_, err = io.Copy(plain, r)
	require.NoError(t, err)
	require.NoError(t, plain.Close())
	f, err := gguf.Open(path)
	require.NoError(t, err)
	return f
}

// open builds the tokenizer of a compressed vocabulary.
func open(t testing.TB, name string) *token.Tokenizer {
	t.Helper()
	f := file(t, name)
	defer f.Close()
	tok, err := token.New(f)
	require.NoError(t, err)
	return tok
}

// raw is text in a golden: as it is, or in base64 if it is not UTF-8.
type raw struct {
	Text string `json:"text"`
	B64  []byte `json:"b64"`
}

func (r raw) String() string {
	if r.B64 != nil {
		return string(r.B64)
	}
	return r.Text
}

type golden struct {
	Info struct {
		N      int     `json:"n"`
		BOS    int32   `json:"bos"`
		EOS    int32   `json:"eos"`
		AddBOS int     `json:"add_bos"`
		EOG    []int32 `json:"eog"`
	} `json:"info"`
	Control int `json:"n_control"`
	Cases   []struct {
		Name string `json:"name"`
		raw
		IDs       map[string][]int32 `json:"ids"`
		Roundtrip bool               `json:"roundtrip"`
		Plain     *raw               `json:"decoded_plain"`
		Hidden    *raw               `json:"decoded_hidden"`
		Shown     *raw               `json:"decoded_shown"`
		Pieces    [][]byte           `json:"pieces"`
	} `json:"cases"`
	Pieces []struct {
		ID     int32    `json:"id"`
		Text   string   `json:"text"`
		Attr   []string `json:"attr"`
		Hidden []byte   `json:"hidden"`
		Shown  []byte   `json:"shown"`
	} `json:"pieces"`
}

var modes = map[string]token.Options{
	"plain":     {},
	"add":       {AddSpecial: true},
	"parse":     {ParseSpecial: true},
	"add_parse": {AddSpecial: true, ParseSpecial: true},
}

var typeNames = map[token.Type]string{token.Normal: "normal", token.Unknown: "unknown", token.Control: "control",
	token.UserDefined: "user_defined", token.Unused: "unused", token.Byte: "byte"}

func TestGolden(t *testing.T) {
	files, err := filepath.Glob(shared(t, "golden", "tokenizer") + "/*.gguf.gz")
	require.NoError(t, err)
	var names []string
	for _, path := range files {
		names = append(names, strings.TrimSuffix(filepath.Base(path), ".gguf.gz"))
	}
	require.ElementsMatch(t, names, vocabularies)
	for _, name := range vocabularies {
		t.Run(name, func(t *testing.T) {
			data, err := os.ReadFile(shared(t, "golden", "tokenizer", name+".json"))
			require.NoError(t, err)
			var g golden
			require.NoError(t, json.Unmarshal(data, &g))
			tok := open(t, name)

			require.Equal(t, g.Info.N, tok.Vocab())
			require.Equal(t, g.Info.BOS, tok.BOS())
			require.Equal(t, g.Info.EOS, tok.EOS())
			require.Equal(t, g.Info.AddBOS == 1, tok.AddsBOS())
			require.Equal(t, g.Info.EOG, tok.EOGs())
			control := 0
			for id := range int32(tok.Vocab()) {
				if tok.Type(id) == token.Control {
					control++
				}
			}
			require.Equal(t, g.Control, control)

			for _, p := range g.Pieces {
				// What ends a generation can be a normal or user-defined token as well in llama.cpp.
				attr := p.Attr[0]
				if slices.Contains(p.Attr, "control") {
					attr = "control"
				}
				require.Equal(t, attr, typeNames[tok.Type(p.ID)], "token %d %q", p.ID, p.Text)
				require.Equal(t, string(p.Hidden), string(tok.AppendPiece(nil, p.ID, false)), "token %d %q", p.ID, p.Text)
				require.Equal(t, string(p.Shown), string(tok.Piece(p.ID)), "token %d %q", p.ID, p.Text)
				id, ok := tok.Lookup(p.Text)
				require.True(t, ok)
				require.Equal(t, p.ID, id)
			}

			require.Len(t, g.Cases, 151)
			for _, c := range g.Cases {
				input := c.raw.String()
				for mode, want := range c.IDs {
					var got []int32
					took := time.Hour
					for try := 0; try < 3 && took > slow; try++ { // a busy machine is no quadratic loop
						start := time.Now()
						got = tok.Encode(input, modes[mode])
						took = min(took, time.Since(start))
					}
					require.LessOrEqual(t, took, slow, "%s %s", c.Name, mode)
					require.Equal(t, want, got, "%s %s %q", c.Name, mode, input)
				}
				plain := input
				if !c.Roundtrip {
					plain = c.Plain.String()
				}
				require.Equal(t, plain, decode(t, tok, c.IDs["plain"], true), c.Name)
				if c.Hidden != nil {
					require.Equal(t, c.Hidden.String(), decode(t, tok, c.IDs["add_parse"], false), c.Name)
					require.Equal(t, c.Shown.String(), decode(t, tok, c.IDs["add_parse"], true), c.Name)
				}
				for i, want := range c.Pieces {
					require.Equal(t, want, tok.Piece(c.IDs["plain"][i]), "%s piece %d", c.Name, i)
				}
				checkStream(t, tok, c.IDs["plain"])
			}
		})
	}
}

func decode(t testing.TB, tok *token.Tokenizer, ids []int32, showControl bool) string {
	t.Helper()
	out, err := tok.Decode(ids, showControl)
	require.NoError(t, err)
	return string(out)
}

// TestBadFiles loads the files of the golden set whose vocabulary is at fault.
func TestBadFiles(t *testing.T) {
	data, err := os.ReadFile(shared(t, "golden", "badgguf", "cases.json"))
	require.NoError(t, err)
	var doc struct {
		Cases []struct {
			ID, Entry, Must string
			Say             []string
		}
	}
	require.NoError(t, json.Unmarshal(data, &doc))
	reject := map[string]bool{"tokens-missing": true, "tokens-i32": true, "scores-short": true, "token-type-short": true,
		"token-duplicate": true, "merge-no-space": true, "eos-out-of-range": true, "pre-unknown": true, "tokenizer-unknown": true,
		"ok-base": false, "ok-token-bytes": false, "ok-odd-types": false}
	found := 0
	for _, c := range doc.Cases {
		refused, ours := reject[c.ID]
		if !ours {
			continue
		}
		found++
		t.Run(c.ID, func(t *testing.T) {
			f, err := gguf.Open(shared(t, "golden", "badgguf", "files", c.Entry))
			require.NoError(t, err)
			defer f.Close()
			_, err = token.New(f)
			if !refused {
				require.NoError(t, err)
				return
			}
			requireSays(t, err, append(c.Say, c.Entry))
		})
	}
	require.Equal(t, len(reject), found)
}
