package bench

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
)

// Unknown is the value of a figure that was not measured, or that nothing defines, such as the hit rate of a model
// without experts. It is null in JSON, empty in CSV, a dash in tables, and no part of any statistic.
var Unknown = math.NaN()

// Run is what one text cost.
type Run struct {
	LoadSeconds       float64 // opening the engine
	FirstTokenSeconds float64 // from the start of the opening, or of the request if the engine was open, to the first token
	Prefill, Decode   Phase
	CacheBytes        float64 // the most that cached experts may take
	PeakBytes         float64 // both processes, shared memory once

	PromptTokens int
	Tokens       []int32 // the text
	Warm         bool    // the engine had written a text before
	Setup
}

// Phase is what one phase of a text cost.
type Phase struct {
	TokensPerSecond  float64
	DriveLimit       float64 // tokens per second at which the drive alone would deliver what this phase had to read
	MemoryLimit      float64 // tokens per second at which memory alone would deliver what a token touches; decode only
	MissMiBPerToken  float64 // experts that had to be read
	HitRate          float64 // experts found in the cache, 0 to 1
	ForeseenRate     float64 // experts prefetched before their layer asked, 0 to 1
	StallShare       float64 // of the time, waiting for reads, 0 to 1
	ReadMiBPerSecond float64 // bytes that reads returned ÷ wall time
	CPUShare         float64 // processor time of both processes ÷ wall time ÷ compute threads; readers can push it above 1
}

// Setup is what a variant turned out to be.
type Setup struct {
	Backend string   `json:"backend"`
	Kernels string   `json:"kernels"`
	Threads int      `json:"threads"`
	IO      string   `json:"io"` // achieved: direct, buffered or mixed; empty without experts
	Lossy   []string `json:"lossy,omitempty"`
}

// figure is one number of a run: the only list of them, from which all outputs are made.
type figure struct {
	key      string // in JSON and CSV
	title    string // in tables, with the unit
	scale    float64
	decimals int // in tables
	of       func(*Run) float64
}

var figures = slices.Concat(
	[]figure{
		{"load_seconds", "load, s", 1, 2, func(r *Run) float64 { return r.LoadSeconds }},
		{"first_token_seconds", "first token, s", 1, 2, func(r *Run) float64 { return r.FirstTokenSeconds }},
	},
	phaseFigures("prefill", func(r *Run) *Phase { return &r.Prefill }),
	phaseFigures("decode", func(r *Run) *Phase { return &r.Decode }),
	[]figure{
		{"cache_bytes", "cache, MiB", 1.0 / (1 << 20), 1, func(r *Run) float64 { return r.CacheBytes }},
		{"peak_bytes", "memory at peak, MiB", 1.0 / (1 << 20), 0, func(r *Run) float64 { return r.PeakBytes }},
	},
)

func phaseFigures(name string, phase func(*Run) *Phase) []figure {
	list := []figure{
		{"tokens_per_second", "tok/s", 1, 2, func(r *Run) float64 { return phase(r).TokensPerSecond }},
		{"drive_limit_tokens_per_second", "tok/s the drive allows", 1, 2, func(r *Run) float64 { return phase(r).DriveLimit }},
		{"memory_limit_tokens_per_second", "tok/s memory allows", 1, 2, func(r *Run) float64 { return phase(r).MemoryLimit }},
		{"miss_mib_per_token", "MiB missed per token", 1, 2, func(r *Run) float64 { return phase(r).MissMiBPerToken }},
		{"hit_rate", "hits, %", 100, 1, func(r *Run) float64 { return phase(r).HitRate }},
		{"foreseen_rate", "foreseen, %", 100, 1, func(r *Run) float64 { return phase(r).ForeseenRate }},
		{"stall_share", "stalled, %", 100, 1, func(r *Run) float64 { return phase(r).StallShare }},
		{"read_mib_per_second", "read, MiB/s", 1, 0, func(r *Run) float64 { return phase(r).ReadMiBPerSecond }},
		{"cpu_share", "CPU, %", 100, 0, func(r *Run) float64 { return phase(r).CPUShare }},
	}
	for i := range list {
		list[i].key, list[i].title = name+"_"+list[i].key, name+" "+list[i].title
	}
	return list
}

// text is a value as tables show it.
func (f *figure) text(v float64) string {
	if !known(v) {
		return "–"
	}
	return fmt.Sprintf("%.*f", f.decimals, v*f.scale)
}

func known(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }

// number is a figure in JSON.
type number float64

// MarshalJSON writes null for what is unknown.
func (n number) MarshalJSON() ([]byte, error) {
	if !known(float64(n)) {
		return []byte("null"), nil
	}
	return json.Marshal(float64(n))
}

// Summary is what the rounds of one variant make of a figure. A statistic of nothing known is [Unknown].
type Summary struct {
	Median, Min, Max float64
	Ratio            float64 // median over the rounds of: this variant ÷ the first one
}

// summarize compares the values of a variant with those that the first variant had in the same rounds.
func summarize(values, first []float64) Summary {
	var ratios []float64
	for i := range min(len(values), len(first)) {
		ratios = append(ratios, values[i]/first[i]) // of 0, or of what is unknown: unknown
	}
	s := Summary{Median: median(values), Min: Unknown, Max: Unknown, Ratio: median(ratios)}
	if values = onlyKnown(values); len(values) > 0 {
		s.Min, s.Max = slices.Min(values), slices.Max(values)
	}
	return s
}

// median of the known values; of an even number the mean of the middle two.
func median(values []float64) float64 {
	values = onlyKnown(values)
	if len(values) == 0 {
		return Unknown
	}
	slices.Sort(values)
	mid := len(values) / 2
	return (values[mid] + values[len(values)-1-mid]) / 2
}

// onlyKnown returns a copy without what is unknown.
func onlyKnown(values []float64) []float64 {
	return slices.DeleteFunc(slices.Clone(values), func(v float64) bool { return !known(v) })
}
