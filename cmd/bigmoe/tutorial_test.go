package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTutorial does what docs/tutorial-recipe.md says: runs the commands of its code blocks, wants the output that
// follows them, applies its edits to olmoe/main.go, and arrives at the example.
func TestTutorial(t *testing.T) {
	text, err := os.ReadFile("../../docs/tutorial-recipe.md")
	require.NoError(t, err)
	reader := newReader(t)
	for _, block := range blocks(string(text)) {
		if block.edit {
			reader.edit(block.lines)
		} else {
			reader.session(block.lines)
		}
	}
	require.Greater(t, reader.commands, 20)
	const example = "../../docs/examples/olmoe/main.go"
	want, err := os.ReadFile(example)
	require.NoError(t, err)
	got, err := os.ReadFile(filepath.Join(reader.dir, "olmoe", "main.go"))
	require.NoError(t, err)
	require.Equal(t, code(string(want)), code(string(got)), "%s is not what the tutorial arrives at", example)
}

// code leaves out the comments that explain the template.
func code(source string) string {
	source = source[strings.Index(source, "package main"):]
	return regexp.MustCompile(`(?m)^\t// Keys are given without .*\n\t// out of range\.\n`).ReplaceAllString(source, "")
}

type block struct {
	edit  bool // the lines are a difference; else commands and their output
	lines []string
}

// blocks returns the blocks that are fenced as diff, and the indented ones that begin with a command.
func blocks(text string) (out []block) {
	var b block
	fenced := false
	flush := func() {
		if b.edit || len(b.lines) > 0 && strings.HasPrefix(b.lines[0], "$ ") {
			out = append(out, b)
		}
		b = block{}
	}
	for _, line := range strings.Split(text, "\n") {
		switch indented, is := strings.CutPrefix(line, "    "); {
		case strings.HasPrefix(line, "```"):
			flush()
			fenced = !fenced
			b.edit = fenced && line == "```diff"
		case fenced:
			b.lines = append(b.lines, line)
		case is:
			b.lines = append(b.lines, indented)
		default:
			flush()
		}
	}
	return out
}

// reader follows the tutorial in a folder.
type reader struct {
	t        *testing.T
	dir      string
	env      []string
	commands int
}

func newReader(t *testing.T) *reader {
	checkout, err := filepath.Abs("../..")
	require.NoError(t, err)
	cache := t.TempDir()
	return &reader{t: t, dir: t.TempDir(), env: append(os.Environ(), "BIGMOE="+checkout, "GOPROXY=off", "BIGMOE_THREADS=2",
		"HOME="+cache, "XDG_DATA_HOME="+cache, "GOCACHE="+goCache(t))}
}

func goCache(t *testing.T) string {
	out, err := exec.Command("go", "env", "GOCACHE").Output()
	require.NoError(t, err)
	return strings.TrimSpace(string(out))
}

// session runs commands. Each line of output that is shown has to come in that order; … stands for anything. A command
// may fail only where the output shown says so.
func (r *reader) session(lines []string) {
	for i := 0; i < len(lines); {
		command := strings.TrimPrefix(lines[i], "$ ")
		end := i + 1
		for end < len(lines) && !strings.HasPrefix(lines[end], "$ ") {
			end++
		}
		shown := lines[i+1 : end]
		i = end
		cmd := exec.Command("sh", "-c", command)
		cmd.Dir, cmd.Env = r.dir, r.env
		out, err := cmd.CombinedOutput()
		differs := strings.HasPrefix(command, "bigmoe recipe diff") && len(shown) > 0
		if len(shown) == 0 || !strings.HasPrefix(shown[0], "bigmoe: ") && !differs {
			require.NoError(r.t, err, "$ %s\n%s", command, out)
		} else {
			require.Error(r.t, err, "$ %s\n%s", command, out)
		}
		rest := string(out)
		for _, line := range shown {
			pattern := strings.ReplaceAll(regexp.QuoteMeta(line), "…", ".*")
			at := regexp.MustCompile("(?m)^" + pattern).FindStringIndex(rest)
			require.NotNil(r.t, at, "$ %s\nno line %q in what is left of\n%s", command, line, out)
			rest = rest[at[1]:]
		}
		r.commands++
	}
}

// edit changes olmoe/main.go: lines with - are replaced by those with +, others have to be there.
func (r *reader) edit(lines []string) {
	var from, to strings.Builder
	for _, line := range lines {
		mark, content := line[:1], line[1:]
		if mark != "+" {
			fmt.Fprintln(&from, content)
		}
		if mark != "-" {
			fmt.Fprintln(&to, content)
		}
	}
	path := filepath.Join(r.dir, "olmoe", "main.go")
	source, err := os.ReadFile(path)
	require.NoError(r.t, err)
	require.Equal(r.t, 1, strings.Count(string(source), from.String()), "in %s:\n%s", path, from.String())
	require.NoError(r.t, os.WriteFile(path, []byte(strings.Replace(string(source), from.String(), to.String(), 1)), 0o644))
}

// TestTutorialModel holds the committed model and its reference outputs against their generator.
func TestTutorialModel(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("another processor may round the last bit of a product differently")
	}
	dir := t.TempDir()
	out, err := exec.Command("go", "run", "../../testdata/gen/olmoe", "-out", dir).CombinedOutput()
	require.NoError(t, err, "%s", out)
	made, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, made, 4)
	for _, e := range made {
		want, err := os.ReadFile(filepath.Join(goldenDir, "olmoe", e.Name()))
		require.NoError(t, err)
		got, err := os.ReadFile(filepath.Join(dir, e.Name()))
		require.NoError(t, err)
		require.True(t, bytes.Equal(want, got), e.Name())
	}
}
