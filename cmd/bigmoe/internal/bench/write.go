package bench

import (
	"bufio"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/bigmoe/bigmoe/engine/budget"
)

// WriteMarkdown writes medians and ratios for people.
func (r *Report) WriteMarkdown(to io.Writer) error {
	w := bufio.NewWriter(to)
	m, h := r.header.Machine, &r.header
	memory := "memory unknown"
	if m.MemoryBytes > 0 {
		memory = budget.Size(m.MemoryBytes) + " of memory"
	}
	fmt.Fprintf(w, "- machine: %s, %d cores, %s, %s\n", m.CPU, m.Cores, memory, m.System)
	if d := h.Drive; d != nil {
		fmt.Fprintf(w, "- drive: %.0f MiB/s, %s reads of %s at random, %d in flight\n", d.BytesPerSecond/(1<<20), d.IO, budget.Size(d.BlockBytes), d.Depth)
	}
	if m := h.Memory; m != nil {
		fmt.Fprintf(w, "- memory: %.0f MiB/s, read by %d threads; a token touches %s of weights\n", m.BytesPerSecond/(1<<20), m.Threads, budget.Size(m.TokenBytes))
	}
	fmt.Fprintf(w, "- text: %s, prompt of %d tokens, %d written\n", h.Model, r.promptTokens, r.written())
	fmt.Fprintf(w, "- runs: %d of each variant in turn, %d to warm up before; page cache: %s\n", len(r.runs[0][0]), h.WarmUps, h.PageCache)
	for i, v := range r.variants {
		s := &r.setups[i]
		fmt.Fprintf(w, "- %s: `%s`; %s (%s), %d threads", Letter(i), v, s.Backend, s.Kernels, s.Threads)
		if s.IO != "" {
			fmt.Fprintf(w, ", %s I/O", s.IO)
		}
		fmt.Fprintln(w)
	}
	for _, line := range r.Lossy() {
		fmt.Fprintf(w, "- %s\n", line)
	}
	for state, name := range stateNames {
		if len(r.runs[state][0]) == 0 {
			continue
		}
		head, rule := "| "+name, "|---"
		for i := range r.variants {
			head, rule = head+" | "+Letter(i), rule+"|--:"
		}
		for i := 1; i < len(r.variants); i++ {
			head, rule = head+" | "+Letter(i)+" ÷ A", rule+"|--:"
		}
		fmt.Fprintf(w, "\n%s |\n%s|\n", head, rule)
		for i := range figures {
			r.writeRow(w, &figures[i], state)
		}
	}
	fmt.Fprintln(w, "\nFigures: median (least to most). Ratios: median of the ratios round by round.")
	return w.Flush()
}

// writeRow writes a figure of all variants, unless nobody knows it.
func (r *Report) writeRow(w io.Writer, f *figure, state int) {
	cells, ratios, any := []string{f.title}, []string{}, false
	for i := range r.variants {
		s := r.summary(f, state, i)
		cell := f.text(s.Median)
		if any = any || known(s.Median); s.Min != s.Max && known(s.Min) {
			cell += " (" + f.text(s.Min) + " to " + f.text(s.Max) + ")"
		}
		cells = append(cells, cell)
		if i > 0 {
			ratios = append(ratios, (&figure{scale: 1, decimals: 2}).text(s.Ratio))
		}
	}
	if any {
		fmt.Fprintf(w, "| %s |\n", strings.Join(append(cells, ratios...), " | "))
	}
}

// written is the length of the texts.
func (r *Report) written() int {
	n := 0
	for _, t := range r.texts {
		n = max(n, len(t.tokens))
	}
	return n
}

// WriteCSV writes one line per run, for other programs' statistics.
func (r *Report) WriteCSV(to io.Writer) error {
	w := csv.NewWriter(to)
	head := []string{"variant", "settings", "state", "run", "backend", "kernels", "threads", "io", "lossy", "tokens"}
	for i := range figures {
		head = append(head, figures[i].key)
	}
	w.Write(head) // errors stay with the writer
	for state, name := range stateNames {
		for v := range r.variants {
			for n := range r.runs[state][v] {
				run := &r.runs[state][v][n]
				row := []string{Letter(v), r.variants[v].String(), name, strconv.Itoa(n + 1), run.Backend, run.Kernels, strconv.Itoa(run.Threads),
					run.IO, strings.Join(run.Lossy, ", "), strconv.Itoa(len(run.Tokens))}
				for i := range figures {
					cell := ""
					if x := figures[i].of(run); known(x) {
						cell = strconv.FormatFloat(x, 'g', -1, 64)
					}
					row = append(row, cell)
				}
				w.Write(row)
			}
		}
	}
	w.Flush()
	return w.Error()
}

// statistics is a summary in JSON.
type statistics struct {
	Median number  `json:"median"`
	Min    number  `json:"min"`
	Max    number  `json:"max"`
	Ratio  *number `json:"ratio,omitempty"` // absent for the first variant
}

type variantJSON struct {
	Settings map[string]string `json:"settings"`
	Setup
	Cold *stateJSON `json:"cold,omitempty"`
	Warm *stateJSON `json:"warm,omitempty"`
}

type stateJSON struct {
	Summary map[string]statistics `json:"summary"`
	Runs    []map[string]number   `json:"runs"`
}

// MarshalJSON writes everything: the header, and for each variant its statistics and its runs by the names of the figures.
func (r *Report) MarshalJSON() ([]byte, error) {
	out := struct {
		Header
		PromptTokens int           `json:"prompt_tokens"`
		Tokens       int           `json:"tokens"` // written by each run
		Variants     []variantJSON `json:"variants"`
	}{r.header, r.promptTokens, r.written(), nil}
	for i, v := range r.variants {
		variant := variantJSON{Settings: map[string]string{}, Setup: r.setups[i], Cold: r.stateJSON(0, i), Warm: r.stateJSON(1, i)}
		for _, s := range v.Settings {
			variant.Settings[s.Flag] = s.Value
		}
		out.Variants = append(out.Variants, variant)
	}
	return json.Marshal(out)
}

// stateJSON returns what a variant did in a state, or nil if that was not measured.
func (r *Report) stateJSON(state, variant int) *stateJSON {
	runs := r.runs[state][variant]
	if len(runs) == 0 {
		return nil
	}
	out := &stateJSON{Summary: map[string]statistics{}, Runs: make([]map[string]number, len(runs))}
	for i := range figures {
		f := &figures[i]
		s := r.summary(f, state, variant)
		stat := statistics{Median: number(s.Median), Min: number(s.Min), Max: number(s.Max)}
		if variant > 0 {
			ratio := number(s.Ratio)
			stat.Ratio = &ratio
		}
		out.Summary[f.key] = stat
		for n := range runs {
			if out.Runs[n] == nil {
				out.Runs[n] = map[string]number{}
			}
			out.Runs[n][f.key] = number(f.of(&runs[n]))
		}
	}
	return out
}
