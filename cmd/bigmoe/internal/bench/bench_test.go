package bench

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/sdk/fault"
)

func TestVariants(t *testing.T) {
	for _, c := range []struct {
		name          string
		vary, configs []string
		want          []string
	}{
		{"none", nil, nil, []string{"as given"}},
		{"one flag", []string{"cache=1M,2M"}, nil, []string{"cache=1M", "cache=2M"}},
		{"two flags", []string{"cache=1M,2M", "policy=lru,frequency"}, nil,
			[]string{"cache=1M policy=lru", "cache=1M policy=frequency", "cache=2M policy=lru", "cache=2M policy=frequency"}},
		{"one value", []string{"mem=6G", "io=direct,buffered"}, nil, []string{"mem=6G io=direct", "mem=6G io=buffered"}},
		{"whole", nil, []string{"", " mem=6G   policy=lru ", "backend=./a=b"}, []string{"as given", "mem=6G policy=lru", "backend=./a=b"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			list, err := Variants(c.vary, c.configs)
			require.NoError(t, err)
			var names []string
			for _, v := range list {
				names = append(names, v.String())
			}
			require.Equal(t, c.want, names)
		})
	}
}

func TestVariantsRefused(t *testing.T) {
	many := strings.Repeat("1,", MaxVariants) + "1"
	for _, c := range []struct {
		name          string
		vary, configs []string
		say           string
	}{
		{"no value", []string{"cache"}, nil, `--vary "cache": "cache": expected flag=value`},
		{"no name", []string{"=1M"}, nil, "expected flag=value"},
		{"empty value", nil, []string{"cache="}, "expected flag=value"},
		{"not a setting", nil, []string{"mem=6G lru"}, `--config "mem=6G lru": "lru": expected flag=value`},
		{"same twice", []string{"cache=1M,1M"}, nil, `variant "cache=1M" is there twice`},
		{"empty twice", nil, []string{"", " "}, `variant "as given" is there twice`},
		{"flag twice", []string{"cache=1M,2M", "cache=3M"}, nil, "sets cache twice"},
		{"too many", []string{"ctx=" + many}, nil, "more than 26 variants"},
		{"too many whole", nil, make([]string, MaxVariants+1), "27 variants"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Variants(c.vary, c.configs)
			require.ErrorContains(t, err, c.say)
			require.Equal(t, fault.User, fault.KindOf(err))
		})
	}
}

func TestSchedule(t *testing.T) {
	require.Equal(t, []Step{
		{0, 0, true}, {1, 0, true},
		{0, 0, false}, {1, 0, false},
		{0, 1, false}, {1, 1, false},
	}, Schedule(2, 1, 2))
	require.Equal(t, []Step{{0, 0, false}}, Schedule(1, 0, 1))
}

func TestSummarize(t *testing.T) {
	inf := math.Inf(1)
	for _, c := range []struct {
		name          string
		values, first []float64
		want          Summary
	}{
		{"odd", []float64{3, 1, 2}, []float64{1, 1, 1}, Summary{2, 1, 3, 2}},
		{"even", []float64{4, 1, 2, 3}, []float64{2, 2, 2, 2}, Summary{2.5, 1, 4, 1.25}},
		// The machine slows down by half each round: the medians say 1.5, the pairs know better.
		{"drift", []float64{12, 6, 3}, []float64{8, 4, 2}, Summary{6, 3, 12, 1.5}},
		{"one round differs", []float64{12, 6, 3}, []float64{8, 6, 1}, Summary{6, 3, 12, 1.5}},
		{"pairs, not medians", []float64{10, 1, 1}, []float64{1, 10, 1}, Summary{1, 1, 10, 1}},
		{"unknown rounds", []float64{Unknown, 4, inf}, []float64{1, 2, 3}, Summary{4, 4, 4, 2}},
		{"first unknown", []float64{1, 4}, []float64{Unknown, 2}, Summary{2.5, 1, 4, 2}},
		{"of zero", []float64{1, 0}, []float64{0, 0}, Summary{0.5, 0, 1, Unknown}},
		{"fewer", []float64{4}, []float64{2, 1}, Summary{4, 4, 4, 2}},
		{"nothing known", []float64{Unknown}, []float64{Unknown}, Summary{Unknown, Unknown, Unknown, Unknown}},
		{"nothing", nil, nil, Summary{Unknown, Unknown, Unknown, Unknown}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := summarize(c.values, c.first)
			for i, pair := range [][2]float64{{c.want.Median, got.Median}, {c.want.Min, got.Min}, {c.want.Max, got.Max}, {c.want.Ratio, got.Ratio}} {
				if math.IsNaN(pair[0]) {
					require.True(t, math.IsNaN(pair[1]), "%d: %v", i, got)
				} else {
					require.Equal(t, pair[0], pair[1], "%d: %v", i, got)
				}
			}
		})
	}
}

func TestTextsMustAgree(t *testing.T) {
	variants, err := Variants([]string{"cache=1M,2M", "experts-used=2,3"}, nil)
	require.NoError(t, err)
	whole := func(tokens ...int32) Run { return Run{Tokens: tokens} }
	lossy := func(tokens ...int32) Run { return Run{Tokens: tokens, Setup: Setup{Lossy: []string{"experts-used 2"}}} }
	for _, c := range []struct {
		name string
		a, b Run
		from Step // of b; a is the warm-up of the first variant
		say  string
	}{
		{"equal", whole(1, 2), whole(1, 2), Step{1, 0, false}, ""},
		{"other token", whole(1, 2, 3), whole(1, 5, 3), Step{1, 2, false},
			"the texts differ, so their speeds cannot be compared: token 1 is 5 in B (cache=1M experts-used=3), run 3, cold, but 2 in A (cache=1M experts-used=2), warm-up 1, cold"},
		{"shorter", whole(1, 2), whole(1), Step{1, 0, false}, "token 1 is missing in B (cache=1M experts-used=3), run 1, cold, but 2 in A"},
		{"longer", whole(1), whole(1, 7), Step{1, 0, false}, "token 1 is 7 in B (cache=1M experts-used=3), run 1, cold, but missing in A"},
		{"same variant", whole(1), whole(2), Step{0, 0, false}, "token 0 is 2 in A (cache=1M experts-used=2), run 1, cold, but 1 in A"},
		{"lossy", whole(1), lossy(2), Step{1, 0, false}, ""},
		{"lossy first", lossy(1), whole(2), Step{1, 0, false}, ""},
		{"two lossy ones", lossy(1), lossy(2), Step{1, 0, false}, ""},
		{"lossy and not itself", lossy(1), lossy(2), Step{0, 0, false}, "token 0 is 2 in A"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := New(Header{}, variants)
			require.NoError(t, r.Add(Step{0, 0, true}, c.a))
			err := r.Add(c.from, c.b)
			if c.say == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, c.say)
			require.Equal(t, fault.Unknown, fault.KindOf(err), "neither the file nor the request is to blame")
		})
	}
	r := New(Header{}, variants)
	require.NoError(t, r.Add(Step{0, 0, false}, whole(1)))
	require.NoError(t, r.Add(Step{1, 0, false}, lossy(2)))
	require.ErrorContains(t, r.Add(Step{2, 0, false}, whole(2)), "but 1 in A", "a lossy run in between is no reference")
	require.Equal(t, []string{"B is lossy (experts-used 2): its text was not compared with that of the others"}, r.Lossy())
}

// sampleReport has two variants, two rounds, cold and warm, a figure that nobody knows and one that is known in part.
func sampleReport(t *testing.T) *Report {
	variants, err := Variants(nil, []string{"", "cache=4000M policy=lru"})
	require.NoError(t, err)
	r := New(Header{
		Machine: Machine{CPU: "A Processor", Cores: 2, MemoryBytes: 16 << 30, System: "Linux 6.1"},
		Drive:   &Drive{BytesPerSecond: 1000 << 20, BlockBytes: 1 << 20, Depth: 8, IO: "direct"}, Memory: &Memory{BytesPerSecond: 20000 << 20, TokenBytes: 1647 << 20, Threads: 2},
		Model: "model.gguf", WarmUps: 1, PageCache: "dropped",
	}, variants)
	for _, s := range Schedule(2, 1, 2) {
		for _, warm := range []bool{false, true} {
			x := float64(1 + s.Variant + s.Round)
			phase := Phase{TokensPerSecond: x, DriveLimit: 2 * x, MemoryLimit: 4 * x, MissMiBPerToken: 100 / x, HitRate: x / 10, ForeseenRate: Unknown, StallShare: 0.5, ReadMiBPerSecond: 700, CPUShare: 0.9}
			run := Run{LoadSeconds: 0.5, FirstTokenSeconds: 1.5, Prefill: phase, Decode: phase, CacheBytes: 1 << 30, PeakBytes: Unknown,
				PromptTokens: 28, Tokens: []int32{1, 2, 3}, Warm: warm, Setup: Setup{Backend: "cpu", Kernels: "avx2", Threads: 2, IO: "direct"}}
			if s.Variant == 0 {
				run.PeakBytes = 2 << 30
			}
			if warm {
				run.LoadSeconds = Unknown
			}
			require.NoError(t, r.Add(s, run))
		}
	}
	return r
}

// TestMarkdown compares with a file that a person has read.
func TestMarkdown(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, sampleReport(t).WriteMarkdown(&out))
	want, err := os.ReadFile(filepath.Join("testdata", "report.md"))
	require.NoError(t, err)
	require.Equal(t, string(want), out.String())
}

func TestCSV(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, sampleReport(t).WriteCSV(&out))
	rows, err := csv.NewReader(&out).ReadAll()
	require.NoError(t, err)
	require.Len(t, rows, 1+2*2*2)
	column := map[string]int{}
	for i, name := range rows[0] {
		require.NotContains(t, column, name)
		column[name] = i
	}
	cell := func(row int, name string) string {
		require.Contains(t, column, name)
		return rows[row][column[name]]
	}
	require.Equal(t, "cold 1 as given A 3", strings.Join([]string{cell(1, "state"), cell(1, "run"), cell(1, "settings"), cell(1, "variant"), cell(1, "tokens")}, " "))
	require.Equal(t, "warm 2 cache=4000M policy=lru B 3", strings.Join([]string{cell(8, "state"), cell(8, "run"), cell(8, "settings"), cell(8, "variant"), cell(8, "tokens")}, " "))
	require.Equal(t, "3", cell(8, "decode_tokens_per_second"))
	require.Equal(t, "0.5", cell(1, "load_seconds"))
	require.Empty(t, cell(8, "load_seconds"), "unknown")
	require.Empty(t, cell(1, "prefill_foreseen_rate"), "unknown")
}

func TestJSON(t *testing.T) {
	raw, err := json.Marshal(sampleReport(t))
	require.NoError(t, err)
	type stats struct{ Median, Min, Max, Ratio *float64 }
	type state struct {
		Summary map[string]stats
		Runs    []map[string]*float64
	}
	var out struct {
		Machine      Machine
		Drive        Drive
		PromptTokens int `json:"prompt_tokens"`
		Tokens       int
		Variants     []struct {
			Settings   map[string]string
			Backend    string
			Cold, Warm state
		}
	}
	require.NoError(t, json.Unmarshal(raw, &out))
	require.Equal(t, "A Processor", out.Machine.CPU)
	require.Equal(t, 8, out.Drive.Depth)
	require.Equal(t, 28, out.PromptTokens)
	require.Equal(t, 3, out.Tokens)
	require.Len(t, out.Variants, 2)
	require.Empty(t, out.Variants[0].Settings)
	require.Equal(t, map[string]string{"cache": "4000M", "policy": "lru"}, out.Variants[1].Settings)
	require.Equal(t, "cpu", out.Variants[1].Backend)

	a, b := out.Variants[0].Cold, out.Variants[1].Cold
	require.Len(t, b.Runs, 2)
	require.Equal(t, 3.0, *b.Runs[1]["decode_tokens_per_second"])
	require.Equal(t, 2.5, *b.Summary["decode_tokens_per_second"].Median)
	require.Equal(t, 1.75, *b.Summary["decode_tokens_per_second"].Ratio, "median of 2÷1 and 3÷2")
	require.Nil(t, a.Summary["decode_tokens_per_second"].Ratio, "there is nothing to compare the first with")
	require.Nil(t, b.Runs[0]["peak_bytes"])
	require.Contains(t, b.Runs[0], "peak_bytes", "unknown is null, not absent")
	require.Nil(t, out.Variants[0].Warm.Runs[0]["load_seconds"])
}
