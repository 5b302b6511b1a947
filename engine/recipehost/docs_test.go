package recipehost

import (
	"context"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/tetratelabs/wazero/api"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/bigmoe/bigmoe/engine/gguf/gguftest"
	"github.com/bigmoe/bigmoe/sdk/plan"
)

func page(t *testing.T) string {
	text, err := os.ReadFile("../../docs/recipe-abi.md")
	require.NoError(t, err)
	return string(text)
}

// TestPageHasEveryCall holds the table of imports against the functions that are offered.
func TestPageHasEveryCall(t *testing.T) {
	text := page(t)
	require.Contains(t, text, fmt.Sprintf("# The recipe ABI, version %d\n", ABIVersion))
	for _, f := range functions {
		row := regexp.MustCompile("(?m)^\\| `" + f.name + "` \\| (.*?) \\| .*\\|$").FindStringSubmatch(text)
		require.NotNil(t, row, f.name)
		params, result, ok := strings.Cut(row[1], "→")
		require.True(t, ok, f.name)
		require.Equal(t, types(f.params), spelled(params), f.name)
		require.Equal(t, types(f.results), spelled(result), f.name)
	}
	for _, f := range wasi {
		require.Contains(t, text, "`"+f.name+"`")
	}
}

func types(list []api.ValueType) string {
	names := []string{}
	for _, t := range list {
		names = append(names, api.ValueTypeName(t))
	}
	return strings.Join(names, " ")
}

// spelled reads "index, buffer: i32, i32" and "handle: i32 × 3".
func spelled(cell string) string {
	if _, after, ok := strings.Cut(cell, ":"); ok {
		cell = after
	}
	cell = strings.TrimSpace(cell)
	if one, times, ok := strings.Cut(cell, " × "); ok {
		return strings.TrimSpace(strings.Repeat(one+" ", int(times[0]-'0')))
	}
	return strings.ReplaceAll(cell, ",", "")
}

// TestPageHasEveryField holds the table of messages against the schema.
func TestPageHasEveryField(t *testing.T) {
	text := page(t)
	rows := map[string]string{} // message to the cells of its fields
	message := ""
	for _, row := range regexp.MustCompile(`(?m)^\| ([A-Z][a-z]+)? ?\| ((?:one of )?\d+ [^|]*) \|`).FindAllStringSubmatch(text, -1) {
		if row[1] != "" {
			message = row[1]
		}
		rows[message] += ", " + strings.TrimPrefix(row[2], "one of ")
	}
	named := map[protoreflect.Name]string{"i": "integer", "f": "number", "s": "text", "b": "flag"}
	messages := (&plan.Plan{}).ProtoReflect().Descriptor().ParentFile().Messages()
	require.Len(t, rows, messages.Len())
	for i := range messages.Len() {
		m := messages.Get(i)
		for k := range m.Fields().Len() {
			f := m.Fields().Get(k)
			name := string(f.Name())
			if m.Name() == "Attr" && named[f.Name()] != "" {
				name = named[f.Name()]
			}
			require.Contains(t, rows[string(m.Name())]+",", fmt.Sprintf(", %d %s,", f.Number(), name), "message %s", m.Name())
		}
	}
}

// example returns the bytes of the page's example.
func example(t *testing.T) []byte {
	_, text, ok := strings.Cut(page(t), "### An example\n")
	require.True(t, ok)
	text, _, _ = strings.Cut(text, "And a whole module")
	var digits string
	for _, line := range strings.Split(text, "\n") {
		if bytes, ok := strings.CutPrefix(line, "    "); ok {
			digits += regexp.MustCompile(`^(?: *[0-9a-f]{2})+(?:  |$)`).FindString(bytes)
		}
	}
	out, err := hex.DecodeString(strings.ReplaceAll(digits, " ", ""))
	require.NoError(t, err)
	return out
}

func TestExampleOfPage(t *testing.T) {
	p := &plan.Plan{}
	require.NoError(t, proto.Unmarshal(example(t), p))
	require.Empty(t, p.ProtoReflect().GetUnknown())
	_, err := plan.Validate(p)
	require.NoError(t, err)
	require.Equal(t, []any{"bigram", uint32(300), 2, 2}, []any{p.Architecture, p.Model.Vocabulary, len(p.Weights), len(p.Blocks)})
	require.Equal(t, 2.0, p.Blocks[0].Ops[0].Attrs[0].GetF())
}

// TestModuleOfPage assembles the module of the page, with the bytes of its example in place of the dots.
func TestModuleOfPage(t *testing.T) {
	wat2wasm, err := exec.LookPath("wat2wasm")
	if err != nil {
		t.Skip("wat2wasm is not installed")
	}
	source := regexp.MustCompile(`(?s)    \(module\n.*?\)\)\)\)\n`).FindString(page(t))
	bytes := example(t)
	var escaped strings.Builder
	for _, b := range bytes {
		fmt.Fprintf(&escaped, "\\%02x", b)
	}
	require.Contains(t, source, fmt.Sprintf("(i32.const 0) (i32.const %d)", len(bytes)))
	source = regexp.MustCompile(`"\\08.*…"`).ReplaceAllLiteralString(source, `"`+escaped.String()+`"`)
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "module.wat"), []byte(source), 0o600))
	cmd := exec.Command(wat2wasm, "module.wat", "-o", "module.wasm")
	cmd.Dir = dir
	said, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", said)
	module, err := os.ReadFile(filepath.Join(dir, "module.wasm"))
	require.NoError(t, err)
	path := filepath.Join(dir, "empty.gguf")
	require.NoError(t, gguftest.NewBuilder().Set("general.architecture", "bigram").Write(path))
	p, _, err := New(Options{}).Plan(context.Background(), "bigram", module, File(openPath(t, path)))
	require.NoError(t, err)
	require.Equal(t, "bigram", p.Architecture)
}
