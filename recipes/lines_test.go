package recipes_test

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/recipes"
)

// TestLines holds the table of README.md to the sources, and recipes that needed nothing new to 150 lines in all.
func TestLines(t *testing.T) {
	text, err := os.ReadFile("README.md")
	require.NoError(t, err)
	row := regexp.MustCompile(`(?m)^\| ([a-z0-9-]+|\[olmoe\]\(([^)]+)\)[^|]*) \| (\d+) \| (\d*) ?\| (.*) \|$`)
	listed := map[string]bool{}
	for _, m := range row.FindAllStringSubmatch(string(text), -1) {
		folder, lines := m[1], map[bool]int{}
		if m[2] != "" {
			folder = filepath.Dir(m[2])
		}
		listed[folder] = true
		files, err := filepath.Glob(filepath.Join(folder, "*.go"))
		require.NoError(t, err)
		for _, file := range files {
			source, err := os.ReadFile(file)
			require.NoError(t, err)
			lines[filepath.Base(file) == "main.go"] += bytes.Count(source, []byte("\n"))
		}
		main, err := strconv.Atoi(m[3])
		require.NoError(t, err)
		beside, _ := strconv.Atoi(m[4])
		require.Equal(t, map[bool]int{true: main, false: beside}, map[bool]int{true: lines[true], false: lines[false]}, folder)
		if m[5] == "none" {
			require.Less(t, main+beside, 150, folder)
		}
	}
	for _, name := range recipes.Names() {
		require.True(t, listed[name], "%s is not in the table", name)
	}
}
