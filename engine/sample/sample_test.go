package sample

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/sdk/fault"
)

var (
	inf = float32(math.Inf(1))
	nan = float32(math.NaN())
)

// TestTwister holds the table of specs/sampling.md section 5.
func TestTwister(t *testing.T) {
	tests := []struct {
		seed    uint32
		raw     []uint32
		doubles []float64
		floats  []float32
	}{
		{0, []uint32{2357136044, 2546248239, 3071714933, 3626093760}, []float64{0.59284461651668263, 0.84426574425659828, 0.85794561998982988},
			[]float32{0.548813522, 0.592844605, 0.715189338}},
		{42, []uint32{1608637542, 3421126067, 4083286876, 787846414}, []float64{0.79654298428784598, 0.18343478789336848, 0.77969099761266125},
			[]float32{0.37454012, 0.796543002, 0.95071429}},
		{4294967294, []uint32{2236247450, 437438088, 2243395601, 4071188816}, []float64{0.10184899170898529}, nil},
	}
	for _, tt := range tests {
		var r twister
		r.seed(tt.seed)
		for _, want := range tt.raw {
			require.Equal(t, want, r.uint32())
		}
		r.seed(tt.seed)
		for _, want := range tt.doubles {
			require.Equal(t, want, r.float64())
		}
		r.seed(tt.seed)
		for _, want := range tt.floats {
			require.Equal(t, want, r.float32())
		}
	}
	var r twister
	r.seed(5489)
	for range 9999 {
		r.uint32()
	}
	require.Equal(t, uint32(4123659995), r.uint32())
}

func build(t testing.TB, change func(*Params)) *Sampler {
	t.Helper()
	p := Default()
	p.Seed = 42
	change(&p)
	s, err := New(p)
	require.NoError(t, err)
	return s
}

func TestGreedy(t *testing.T) {
	tests := []struct {
		name   string
		logits []float32
		accept []int32
		change func(*Params)
		want   int32
	}{
		{"highest", []float32{1, 3, 2}, nil, func(*Params) {}, 1},
		{"lowest id of equals", []float32{-1, 7, 7, 7}, nil, func(*Params) {}, 1},
		{"not banned", []float32{-inf, -inf, -9, -inf}, nil, func(*Params) {}, 2},
		{"bias", []float32{1, 3, 2}, nil, func(p *Params) { p.LogitBias = map[int32]float32{1: -2.5, 9: 100} }, 2},
		{"ban", []float32{1, 3, 2}, nil, func(p *Params) { p.LogitBias = map[int32]float32{1: -inf} }, 2},
		{"repeat penalty divides", []float32{1, 3, 2}, []int32{1}, func(p *Params) { p.RepeatPenalty = 2 }, 2},
		{"repeat penalty multiplies", []float32{-9, -2, -3}, []int32{1}, func(p *Params) { p.RepeatPenalty = 2 }, 2},
		{"frequency counts", []float32{1, 3, 2}, []int32{1, 1, 1, 2}, func(p *Params) { p.FrequencyPenalty = 0.7 }, 2},
		{"presence does not", []float32{1, 3, 2}, []int32{1, 1, 1, 2}, func(p *Params) { p.PresencePenalty = 0.7 }, 1},
		{"window", []float32{1, 3, 2}, []int32{1, 2, 0}, func(p *Params) { p.PresencePenalty, p.PenaltyLastN = 5, 2 }, 1},
		{"window still", []float32{1, 3, 2}, []int32{2, 1, 0, 2, 1, 0}, func(p *Params) { p.PresencePenalty, p.PenaltyLastN = 5, 2 }, 2},
		{"ids outside", []float32{1, 3, 2}, []int32{-1, 3, 1 << 30}, func(p *Params) { p.PresencePenalty = 5 }, 1},
		{"penalties not listed", []float32{1, 3, 2}, []int32{1}, func(p *Params) { p.PresencePenalty, p.Samplers = 5, []string{"temperature"} }, 1},
		{"truncation is moot", []float32{1, 3, 2}, nil, func(p *Params) { p.TypicalP = 0.1 }, 1},
		{"mirostat too", []float32{1, 3, 2}, nil, func(p *Params) { p.Mirostat = 2 }, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := build(t, func(p *Params) { p.Temperature = 0; tt.change(p) })
			for _, id := range tt.accept {
				s.Accept(id)
			}
			original := slices.Clone(tt.logits)
			id, err := s.Sample(tt.logits)
			require.NoError(t, err)
			require.Equal(t, tt.want, id)
			require.Equal(t, original, tt.logits)
			require.Empty(t, s.c.list)
		})
	}
}

func TestBadLogits(t *testing.T) {
	ban := func(p *Params) { p.LogitBias = map[int32]float32{0: -inf, 1: -inf} }
	tests := []struct {
		name   string
		logits []float32
		change func(*Params)
		kind   fault.Kind
		say    string
	}{
		{"none", nil, func(*Params) {}, fault.Bug, "of 0"},
		{"NaN", []float32{1, nan}, func(*Params) {}, fault.Bug, "forward pass produced NaN at id 1"},
		{"NaN first", []float32{nan, 1}, func(*Params) {}, fault.Bug, "NaN at id 0"},
		{"NaN that is banned", []float32{1, nan}, ban, fault.Bug, "NaN at id 1"},
		{"infinite", []float32{1, inf}, func(*Params) {}, fault.Bug, "+Inf at id 1"},
		{"all impossible", []float32{-inf, -inf}, func(*Params) {}, fault.Bug, "-Inf"},
		{"all banned", []float32{1, 2}, ban, fault.User, "bias"},
		{"overflow", []float32{1, 3e38}, func(p *Params) { p.LogitBias = map[int32]float32{1: 3e38} }, fault.User, "+Inf at id 1"},
	}
	for _, tt := range tests {
		for _, temperature := range []float32{0, 0.8} {
			s := build(t, func(p *Params) { p.Temperature = temperature; tt.change(p) })
			_, err := s.Sample(tt.logits)
			require.ErrorContains(t, err, tt.say, tt.name)
			require.Equal(t, tt.kind, fault.KindOf(err), tt.name)
		}
	}
}

// setA are the logits of specs/sampling.md section 10.
var setA = []float32{2, 1, 0.5, 3, 0, -1, 2.5, 1}

// TestMirostatState holds the values of mu in specs/sampling.md section 10.
func TestMirostatState(t *testing.T) {
	tests := []struct {
		version int
		want    []struct {
			id   int32
			kept int
			mu   float32
		}
	}{
		{2, []struct {
			id   int32
			kept int
			mu   float32
		}{{6, 3, 4.14862}, {3, 5, 4.56523}, {0, 5, 4.2605}, {6, 5, 4.31644}, {6, 5, 4.37239}, {3, 5, 4.789}}},
		{1, []struct {
			id   int32
			kept int
			mu   float32
		}{{0, 5, 3.69527}, {3, 5, 4.11189}, {0, 6, 3.78125}, {6, 5, 3.83719}, {6, 5, 3.89314}, {3, 5, 4.30975}}},
	}
	for _, tt := range tests {
		s := build(t, func(p *Params) { p.Mirostat, p.MirostatTau, p.MirostatEta, p.Temperature = tt.version, 2, 0.5, 1 })
		for i, want := range tt.want {
			id, err := s.Sample(setA)
			require.NoError(t, err)
			require.Equal(t, want.id, id, "version %d step %d", tt.version, i)
			require.Len(t, s.c.list, want.kept, "version %d step %d", tt.version, i)
			require.InDelta(t, want.mu, s.choice.(*mirostat).mu, 1e-4)
		}
	}
}

// TestDefaultPicks holds the picks of specs/sampling.md section 10 with ties in the order of ids.
func TestDefaultPicks(t *testing.T) {
	for seed, want := range map[uint32][]int32{
		42: {0, 3, 0, 6, 3, 3, 3, 3, 3, 6, 3, 6, 7, 3, 2, 6},
		0:  {6, 0, 0, 0, 6, 3, 3, 3, 3, 3, 0, 3, 3, 0, 3, 6},
	} {
		s := build(t, func(p *Params) { p.Seed = seed })
		for range 2 {
			got := []int32{}
			for range want {
				id, err := s.Sample(setA)
				require.NoError(t, err)
				got = append(got, id)
			}
			require.Equal(t, want, got)
			s.Reset()
		}
	}
}

// TestBannedStayBanned: whatever bends the logits must not revive what has no probability.
func TestBannedStayBanned(t *testing.T) {
	logits := []float32{-inf, 0.5, -inf, 0.4, -inf}
	for name, change := range map[string]func(*Params){
		"adaptive_p": func(p *Params) { p.Samplers, p.AdaptiveTarget = []string{"adaptive_p"}, 0.1 },
		"typ_p":      func(p *Params) { p.Samplers, p.TypicalP, p.MinKeep = []string{"typ_p"}, 0.99, 5 },
		"xtc":        func(p *Params) { p.Samplers, p.XTCProbability, p.XTCThreshold = []string{"xtc"}, 1, 0 },
		"dynamic":    func(p *Params) { p.Samplers, p.Temperature, p.TemperatureRange = []string{"temperature"}, 0.1, 0.1 },
		"min_keep":   func(p *Params) { p.MinKeep = 5 },
		"mirostat 1": func(p *Params) { p.Mirostat = 1 },
		"mirostat 2": func(p *Params) { p.Mirostat = 2 },
	} {
		s := build(t, change)
		for range 50 {
			id, err := s.Sample(logits)
			require.NoError(t, err)
			require.Contains(t, []int32{1, 3}, id, name)
		}
	}
}

func TestTinyTemperatureIsGreedy(t *testing.T) {
	for _, logits := range [][]float32{{1, 3, 2}, {-3, -1, -2}, {0, 0, 0}, {-5, 0, -1}} {
		want, err := highest(logits)
		require.NoError(t, err)
		s := build(t, func(p *Params) { p.Temperature, p.MinP = 1e-42, 0 })
		for range 10 {
			id, err := s.Sample(logits)
			require.NoError(t, err)
			if slices.Max(logits) != 0 { // 0 stays 0 at any temperature: equal logits remain a choice
				require.Equal(t, want, id)
			}
			require.Equal(t, slices.Max(logits), logits[id])
		}
	}
}

func TestValidate(t *testing.T) {
	require.NoError(t, Default().Validate())
	tests := []struct {
		change func(*Params)
		say    string
	}{
		{func(p *Params) { p.Temperature = nan }, "temperature is NaN"},
		{func(p *Params) { p.TemperatureRange = inf }, "temperature range"},
		{func(p *Params) { p.TemperatureFactor = -1 }, "temperature factor"},
		{func(p *Params) { p.TopP = 1.5 }, "top_p is 1.5"},
		{func(p *Params) { p.TopP = -0.1 }, "top_p"},
		{func(p *Params) { p.MinP = -1 }, "min_p"},
		{func(p *Params) { p.TypicalP = 2 }, "typ_p"},
		{func(p *Params) { p.TopNSigma = nan }, "top_n_sigma"},
		{func(p *Params) { p.MinKeep = -1 }, "min_keep"},
		{func(p *Params) { p.XTCProbability = 2 }, "xtc probability"},
		{func(p *Params) { p.XTCThreshold = -1 }, "xtc threshold"},
		{func(p *Params) { p.RepeatPenalty = 0 }, "repeat penalty"},
		{func(p *Params) { p.RepeatPenalty = nan }, "repeat penalty"},
		{func(p *Params) { p.FrequencyPenalty = inf }, "frequency penalty"},
		{func(p *Params) { p.PresencePenalty = nan }, "presence penalty"},
		{func(p *Params) { p.PenaltyLastN = -1 }, "penalty window"},
		{func(p *Params) { p.Mirostat = 3 }, "mirostat is 3"},
		{func(p *Params) { p.MirostatTau = -1 }, "mirostat tau"},
		{func(p *Params) { p.MirostatEta = nan }, "mirostat eta"},
		{func(p *Params) { p.AdaptiveTarget = 2 }, "adaptive_p target"},
		{func(p *Params) { p.AdaptiveDecay = 2 }, "adaptive_p decay"},
		{func(p *Params) { p.Samplers = []string{"dry"} }, `"dry"`},
		{func(p *Params) { p.Samplers = []string{"top_k", "top_k"} }, "twice"},
		{func(p *Params) { p.Samplers = []string{"adaptive_p", "top_k"} }, "last"},
		{func(p *Params) { p.Samplers = []string{"top_k", "penalties"} }, "first"},
		{func(p *Params) { p.LogitBias = map[int32]float32{-1: 0} }, "token -1"},
		{func(p *Params) { p.LogitBias = map[int32]float32{7: inf} }, "token 7"},
	}
	all := Default()
	for _, tt := range tests {
		p := Default()
		tt.change(&p)
		_, err := New(p)
		require.ErrorContains(t, err, tt.say)
		require.Equal(t, fault.User, fault.KindOf(err))
	}
	all.TopP, all.MinKeep, all.Mirostat = 7, -1, 9
	err := all.Validate()
	for _, say := range []string{"top_p", "min_keep", "mirostat"} {
		require.ErrorContains(t, err, say)
	}
	require.Error(t, Params{}.Validate())
}

func TestRandomSeed(t *testing.T) {
	p := Default()
	a, err := New(p)
	require.NoError(t, err)
	b, err := New(p)
	require.NoError(t, err)
	require.NotEqual(t, a.Seed(), b.Seed()) // equal once in 4 billion runs
	require.Less(t, a.Seed(), uint32(RandomSeed))
	p.Seed = a.Seed()
	c, err := New(p)
	require.NoError(t, err)
	for range 20 {
		want, err := a.Sample(setA)
		require.NoError(t, err)
		got, err := c.Sample(setA)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
}

// random returns n logits of which some are equal.
func random(n int, seed uint64) []float32 {
	r := rand.New(rand.NewPCG(seed, 1))
	logits := make([]float32, n)
	for i := range logits {
		logits[i] = float32(math.Round(r.NormFloat64()*300) / 100)
	}
	return logits
}

// FuzzSelect holds partial selection against a full sort.
func FuzzSelect(f *testing.F) {
	f.Add(uint16(1000), uint16(10), uint64(1))
	f.Add(uint16(1000), uint16(900), uint64(2))
	f.Add(uint16(3), uint16(0), uint64(3))
	f.Fuzz(func(t *testing.T, n, k uint16, seed uint64) {
		logits := random(int(n), seed)
		var full, part, filled candidates
		full.fill(logits, math.MaxInt)
		slices.SortFunc(full.list, byRank)
		best := min(int(k), int(n))
		part.fill(logits, math.MaxInt)
		part.sort(int(k) / 3)
		part.sort(int(k))
		require.Equal(t, full.list[:best], part.list[:best])
		slices.SortFunc(part.list, byRank)
		require.Equal(t, full.list, part.list) // nothing is lost
		if k > 0 {
			filled.fill(logits, int(k))
			slices.SortFunc(filled.list, byRank)
			require.Equal(t, full.list[:best], filled.list)
		}
	})
}

// FuzzSample: no parameters and no logits make it panic, pick the impossible, or differ with the same seed.
func FuzzSample(f *testing.F) {
	f.Add([]byte{1, 2, 3, 255, 0, 9}, float32(0.8), float32(0.95), float32(0.05), float32(1.1), 40, uint32(1), uint16(0))
	f.Add([]byte{255, 255}, float32(0), float32(1), float32(0), float32(1), 0, uint32(2), uint16(0xFFFF))
	f.Add([]byte{254, 253, 9}, float32(1e-40), float32(0), float32(2), float32(1e-40), 1, uint32(3), uint16(0x5555))
	f.Add([]byte{9, 9, 9, 9}, float32(-1), float32(0.5), float32(0.5), float32(3e38), 2, uint32(4), uint16(0xAAAA))
	f.Fuzz(func(t *testing.T, data []byte, temperature, topP, minP, repeat float32, topK int, seed uint32, flags uint16) {
		flag := func(i int) bool { return flags>>i&1 == 1 }
		when := func(on bool, v, other float32) float32 {
			if on {
				return v
			}
			return other
		}
		p := Default()
		p.Seed, p.Temperature, p.TopP, p.MinP, p.RepeatPenalty, p.TopK = seed, temperature, topP, minP, repeat, topK
		p.TypicalP, p.TopNSigma = when(flag(0), topP, 1), when(flag(1), minP, -1)
		p.XTCProbability, p.XTCThreshold = when(flag(2), topP, 0), when(flag(3), minP, 0.1)
		p.TemperatureRange = when(flag(4), temperature, 0)
		p.FrequencyPenalty, p.PresencePenalty = when(flag(5), minP, 0), when(flag(6), temperature, 0)
		if flag(7) {
			p.Mirostat = 1 + int(flags>>8&1)
		}
		if flag(9) {
			p.MinKeep = topK & 7
		}
		if flag(10) {
			p.Samplers, p.AdaptiveTarget = []string{"top_k", "adaptive_p"}, topP
		}
		if flag(11) {
			p.LogitBias = map[int32]float32{0: -inf, 1: minP, 77: 5}
		}
		if p.Validate() != nil {
			return
		}
		p.Seed = min(p.Seed, RandomSeed-1)
		logits := make([]float32, len(data))
		possible := false
		for i, b := range data {
			switch b {
			case 255:
				logits[i] = -inf
			case 254:
				logits[i] = nan
			case 253:
				logits[i] = 3e38
			case 252:
				logits[i] = -3e38
			default:
				logits[i] = float32(b)/8 - 10
			}
			possible = possible || logits[i] > -inf
		}
		a, err := New(p)
		require.NoError(t, err)
		b, err := New(p)
		require.NoError(t, err)
		for range 5 {
			id, err := a.Sample(logits)
			again, errAgain := b.Sample(logits)
			require.Equal(t, err, errAgain)
			if err != nil {
				continue
			}
			require.Equal(t, id, again)
			require.True(t, possible)
			require.Greater(t, logits[id], -inf)
			require.False(t, p.LogitBias != nil && id == 0, "banned")
			a.Accept(id)
			b.Accept(id)
		}
	})
}

// chains are the shapes of parameters that differ in cost.
var chains = map[string]func(*Params){
	"greedy":           func(p *Params) { p.Temperature = 0 },
	"greedy-penalised": func(p *Params) { p.Temperature, p.RepeatPenalty = 0, 1.1 },
	"default":          func(p *Params) {},
	"top_p-only":       func(p *Params) { p.TopK, p.MinP = 0, 0 },
	"min_p-only":       func(p *Params) { p.TopK, p.TopP = 0, 1 },
	"temperature-only": func(p *Params) { p.TopK, p.TopP, p.MinP = 0, 1, 0 },
	"typ_p":            func(p *Params) { p.TypicalP = 0.9 },
	"xtc":              func(p *Params) { p.XTCProbability = 0.9 },
	"mirostat":         func(p *Params) { p.Mirostat = 2 },
	"adaptive_p":       func(p *Params) { p.Samplers, p.AdaptiveTarget = []string{"min_p", "adaptive_p"}, 0.3 },
}

func TestNoAllocation(t *testing.T) {
	logits := random(5000, 7)
	for name, change := range chains {
		s := build(t, change)
		step := func() {
			id, err := s.Sample(logits)
			if err != nil {
				t.Fatal(err)
			}
			s.Accept(id)
		}
		for range 100 { // until the window is full
			step()
		}
		require.Zero(t, testing.AllocsPerRun(50, step), name)
	}
}

func BenchmarkSample(b *testing.B) {
	logits := random(151936, 7)
	for name, change := range chains {
		b.Run(name, func(b *testing.B) {
			s := build(b, change)
			b.ReportAllocs()
			for b.Loop() {
				id, err := s.Sample(logits)
				if err != nil {
					b.Fatal(err)
				}
				s.Accept(id)
			}
		})
	}
}
