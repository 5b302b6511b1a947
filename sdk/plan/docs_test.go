package plan

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// sections splits a page at its level-3 headings.
func sections(page string) map[string]string {
	out := map[string]string{}
	for _, part := range strings.Split(page, "\n### ")[1:] {
		name, text, _ := strings.Cut(part, "\n")
		text, _, _ = strings.Cut(text, "\n## ")
		out[name] = text
	}
	return out
}

// TestOpsPage holds docs/ops.md against the specs: one section for each op, in it one line for each operand and
// attribute, with the type and default.
func TestOpsPage(t *testing.T) {
	page, err := os.ReadFile("../../docs/ops.md")
	require.NoError(t, err)
	all := sections(string(page))
	shared := map[string]string{"rotation": all["rotation"], "gating": all["gating"]}
	for name := range shared {
		require.NotEmpty(t, all[name])
		delete(all, name)
	}
	line := func(text, start string) bool { return strings.Contains(text, "\n"+start) }
	for _, spec := range Ops() {
		text, ok := all[spec.Kind]
		require.True(t, ok, "no section for %s", spec.Kind)
		delete(all, spec.Kind)
		for name, more := range shared {
			if strings.Contains(text, "["+name+"](#"+name+")") {
				text += more
			}
		}
		has := func(kind, name string, optional bool) {
			start := fmt.Sprintf("| %s `%s` |", kind, name)
			if optional {
				start = fmt.Sprintf("| *%s `%s`* |", kind, name)
			}
			require.True(t, line(text, start), "%s: no line %q", spec.Kind, start)
		}
		operands, attributes := len(spec.Out), len(spec.Attrs)
		for _, o := range spec.In {
			has("in", o.Name, o.Optional)
			operands++
		}
		for _, o := range spec.Weights {
			has("weight", o.Name, o.Optional)
			operands++
		}
		for _, o := range spec.States {
			has("state", o.Name, o.Optional)
			operands++
		}
		for _, o := range spec.Out {
			has("out", o.Name, false)
		}
		require.Len(t, regexp.MustCompile("(?m)^\\| \\*?(in|weight|state|out) `").FindAllString(text, -1), operands, spec.Kind)
		require.Equal(t, spec.Bank, line(text, "| bank |"), spec.Kind)
		for _, a := range spec.Attrs {
			def := fmt.Sprint(a.Default)
			switch {
			case a.Required:
				def = "required"
			case a.Type == Text:
				def = "`" + def + "`"
			}
			start := fmt.Sprintf("| `%s` | %s | %s |", a.Name, []string{"integer", "number", "text", "flag"}[a.Type], def)
			require.True(t, line(text, start), "%s: no line %q", spec.Kind, start)
			for _, choice := range a.OneOf {
				require.Contains(t, text, "`"+choice+"`", "%s %s", spec.Kind, a.Name)
			}
		}
		own := regexp.MustCompile("(?m)^\\| `").FindAllString(text, -1)
		require.GreaterOrEqual(t, len(own), attributes, spec.Kind)
	}
	require.Empty(t, all, "sections for what is no op")
}

// TestEquationsPage: docs/equations.md has one row for every numbered equation of the specifications, names ops that
// exist, and says that the CPU backend has a row exactly if it has the ops of the row.
func TestEquationsPage(t *testing.T) {
	raw, err := os.ReadFile("../../docs/equations.md")
	require.NoError(t, err)
	page := string(raw)
	numbers := func(prefix string, last int) (out []string) {
		for i := 1; i <= last; i++ {
			out = append(out, fmt.Sprint(prefix, i))
		}
		return out
	}
	join := func(lists ...[]string) (out []string) {
		for _, l := range lists {
			out = append(out, l...)
		}
		return out
	}
	names := regexp.MustCompile("`([a-z0-9_]+)`")
	_, list, _ := strings.Cut(page, "It has the ops\n")
	list, _, _ = strings.Cut(list, "with these limits")
	onCPU := map[string]bool{}
	for _, m := range names.FindAllStringSubmatch(list, -1) {
		onCPU[m[1]] = true
	}
	require.NotEmpty(t, onCPU)
	for spec, want := range map[string][]string{
		"qwen3moe":  join(numbers("E", 13), numbers("R", 7)),
		"gpt-oss":   join(numbers("E", 11), numbers("Y", 6), numbers("R", 7)),
		"lfm2moe":   numbers("", 24),
		"gemma4":    numbers("", 34),
		"qwen35moe": join(numbers("T", 8), numbers("A", 8), numbers("D", 16), numbers("C", 5), numbers("M", 4), numbers("P", 4)),
		"deepseek4": numbers("", 49),

		"deepseek2":   numbers("", 15),
		"bailingmoe3": numbers("", 9),
	} {
		_, section, ok := strings.Cut(page, "\n## "+spec+"\n")
		require.True(t, ok, spec)
		section, _, _ = strings.Cut(section, "\n## ")
		rows := map[string]int{}
		for _, row := range regexp.MustCompile(`(?m)^\| ([^|]+) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$`).FindAllStringSubmatch(section, -1)[1:] {
			equation, ops, cpu := row[1], row[3], row[4]
			rows[equation]++
			all := true
			for _, m := range names.FindAllStringSubmatch(ops, -1) {
				_, known := Lookup(m[1])
				require.True(t, known, "%s %s: no op %s", spec, equation, m[1])
				all = all && onCPU[m[1]]
			}
			if cpu == "yes" {
				require.True(t, all, "%s %s: an op is not on the list", spec, equation)
			} else {
				require.Regexp(t, "^(not yet: |not expressible: )", cpu)
			}
		}
		for _, equation := range want {
			require.Equal(t, 1, rows[equation], "%s %s", spec, equation)
		}
	}
}
