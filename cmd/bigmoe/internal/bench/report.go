package bench

import (
	"fmt"
	"strings"
)

// Header is what the figures depend on beside the variants.
type Header struct {
	Machine   Machine `json:"machine"`
	Drive     *Drive  `json:"drive"` // nil if the model has no experts to read
	Memory    *Memory `json:"memory"`
	Model     string  `json:"model"`
	WarmUps   int     `json:"warm_ups"`
	PageCache string  `json:"page_cache"` // what became of the model's pages before each run
}

// Machine is what all variants share.
type Machine struct {
	CPU         string `json:"cpu"`
	Cores       int    `json:"cores"`
	MemoryBytes int64  `json:"memory_bytes"` // that a process may have: of the machine or its control group; 0 = not known
	System      string `json:"system"`       // kernel with its version
}

// Drive is how fast blocks of the model can be read at random: the yardstick for what the runs had to read.
type Drive struct {
	BytesPerSecond float64 `json:"bytes_per_second"`
	BlockBytes     int64   `json:"block_bytes"`
	Depth          int     `json:"depth"` // reads in flight
	IO             string  `json:"io"`    // direct or buffered
}

// Memory is how fast weights can be read that are there: the yardstick for decode where nothing is missed.
type Memory struct {
	BytesPerSecond float64 `json:"bytes_per_second"`
	TokenBytes     int64   `json:"token_bytes"` // of weights that a token touches
	Threads        int     `json:"threads"`
}

// Report collects runs and says what they come to.
type Report struct {
	header   Header
	variants []Variant
	setups   []Setup
	runs     [2][][]Run   // cold and warm, by variant, by round; no warm-ups
	texts    map[int]text // by variant if that is lossy, otherwise under exact

	promptTokens int
}

// exact is the key of the text that all variants have to write that are not lossy.
const exact = -1

// text is what others of its kind have to be equal to.
type text struct {
	where  string
	tokens []int32
}

// New returns a report without runs.
func New(h Header, variants []Variant) *Report {
	r := &Report{header: h, variants: variants, setups: make([]Setup, len(variants)), texts: map[int]text{}}
	for i := range r.runs {
		r.runs[i] = make([][]Run, len(variants))
	}
	return r
}

// Add takes the run of a step; within a state, cold or warm, in the order of the schedule. It refuses a run whose text
// differs from that of the others: other work, other time. A lossy variant, whose text may differ, is held only against
// itself.
func (r *Report) Add(s Step, run Run) error {
	where := r.name(s, run.Warm)
	group := exact
	if len(run.Lossy) > 0 {
		group = s.Variant
	}
	if reference, ok := r.texts[group]; !ok {
		r.texts[group] = text{where, run.Tokens}
	} else if at, differ := firstDifference(reference.tokens, run.Tokens); differ {
		return fmt.Errorf("the texts differ, so their speeds cannot be compared: token %d is %s in %s, but %s in %s",
			at, tokenAt(run.Tokens, at), where, tokenAt(reference.tokens, at), reference.where)
	}
	r.setups[s.Variant], r.promptTokens = run.Setup, run.PromptTokens
	if !s.WarmUp {
		runs := r.runs[state(run.Warm)]
		runs[s.Variant] = append(runs[s.Variant], run)
	}
	return nil
}

// name says which run it is.
func (r *Report) name(s Step, warm bool) string {
	kind := "run"
	if s.WarmUp {
		kind = "warm-up"
	}
	return fmt.Sprintf("%s (%s), %s %d, %s", Letter(s.Variant), r.variants[s.Variant], kind, s.Round+1, stateNames[state(warm)])
}

// Line says what a run came to, for those who wait.
func (r *Report) Line(s Step, run *Run) string {
	return fmt.Sprintf("%s: first token after %.2f s, prefill %.2f tok/s, decode %.2f tok/s",
		r.name(s, run.Warm), run.FirstTokenSeconds, run.Prefill.TokensPerSecond, run.Decode.TokensPerSecond)
}

func firstDifference(a, b []int32) (at int, differ bool) {
	for at < len(a) && at < len(b) && a[at] == b[at] {
		at++
	}
	return at, at < len(a) || at < len(b)
}

func tokenAt(tokens []int32, i int) string {
	if i >= len(tokens) {
		return "missing"
	}
	return fmt.Sprint(tokens[i])
}

var stateNames = [2]string{"cold", "warm"}

func state(warm bool) int {
	if warm {
		return 1
	}
	return 0
}

// values returns a figure of all runs of a variant in a state.
func (r *Report) values(f *figure, state, variant int) []float64 {
	var list []float64
	for i := range r.runs[state][variant] {
		list = append(list, f.of(&r.runs[state][variant][i]))
	}
	return list
}

// summary returns the statistics of a figure for a variant in a state.
func (r *Report) summary(f *figure, state, variant int) Summary {
	return summarize(r.values(f, state, variant), r.values(f, state, 0))
}

// Lossy says of each variant that changes the text how, in the words of the tables.
func (r *Report) Lossy() []string {
	var list []string
	for i, s := range r.setups {
		if len(s.Lossy) > 0 {
			list = append(list, fmt.Sprintf("%s is lossy (%s): its text was not compared with that of the others", Letter(i), strings.Join(s.Lossy, ", ")))
		}
	}
	return list
}
