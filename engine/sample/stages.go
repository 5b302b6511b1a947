package sample

import (
	"math"
	"slices"
)

// A stage changes logits or drops candidates; it leaves at least one whose logit is finite. The equations are those of
// specs/sampling.md section 4.
type stage func(s *Sampler)

// stages returns what the parameters leave on, in order, and how many of the best candidates the first stage can need.
// Penalties are not among them, they come before there are candidates; nor is adaptive_p, which is a choice.
func (p *Params) stages() (list []stage, best int) {
	best = math.MaxInt
	for _, name := range p.samplers() {
		switch {
		case name == "top_k" && p.TopK > 0:
			if len(list) == 0 {
				best = p.TopK
			}
			list = append(list, (*Sampler).topK)
		case name == "top_p" && p.TopP < 1:
			list = append(list, (*Sampler).topP)
		case name == "min_p" && p.MinP > 0:
			list = append(list, (*Sampler).minP)
		case name == "typ_p" && p.TypicalP < 1:
			list = append(list, (*Sampler).typical)
		case name == "top_n_sigma" && p.TopNSigma > 0:
			list = append(list, (*Sampler).topNSigma)
		case name == "xtc" && p.XTCProbability > 0 && p.XTCThreshold <= 0.5:
			list = append(list, (*Sampler).xtc)
		case name == "temperature":
			list = append(list, (*Sampler).temperature)
		}
	}
	return list, best
}

func (s *Sampler) topK() {
	k := min(s.p.TopK, len(s.c.list))
	s.c.sort(k)
	s.c.keep(k)
}

func (s *Sampler) topP() {
	s.c.softmax()
	var sum float32
	last := s.c.seek(func(i int) bool {
		sum += s.c.list[i].p
		return sum >= s.p.TopP && i+1 >= s.p.MinKeep
	})
	s.c.keep(min(last+1, len(s.c.list)))
}

func (s *Sampler) minP() {
	lowest := s.c.max() + float32(math.Log(float64(s.p.MinP)))
	kept := 0
	for i := range s.c.list {
		if s.c.list[i].logit >= lowest {
			kept++
		}
	}
	if kept >= max(1, s.p.MinKeep) {
		sorted := min(s.c.sorted, kept) // those kept of a sorted beginning are its beginning
		s.c.list = slices.DeleteFunc(s.c.list, func(x candidate) bool { return !(x.logit >= lowest) })
		s.c.sorted = sorted
		return
	}
	n := min(max(1, s.p.MinKeep), len(s.c.list))
	s.c.sort(n)
	s.c.keep(n)
}

// typical leaves its candidates in the order of how typical they are.
func (s *Sampler) typical() {
	s.c.softmax()
	entropy := s.c.entropy()
	s.rank = s.rank[:0]
	for i := range s.c.list {
		off := math.Inf(1) // an impossible candidate comes last
		if p := float64(s.c.list[i].p); p > 0 {
			off = math.Abs(-math.Log(p) - entropy)
		}
		s.rank = append(s.rank, ranked{s.c.list[i], float32(off)})
	}
	slices.SortFunc(s.rank, func(a, b ranked) int {
		if a.off != b.off {
			if a.off < b.off {
				return -1
			}
			return 1
		}
		return byRank(a.candidate, b.candidate)
	})
	var sum float32
	s.c.list, s.c.sorted = s.c.list[:0], 0
	for i, x := range s.rank {
		s.c.list = append(s.c.list, x.candidate)
		if sum += x.p; sum > s.p.TypicalP && i >= s.p.MinKeep-1 {
			break
		}
	}
}

type ranked struct {
	candidate
	off float32
}

// entropy returns -Σ p ln p in nats, of the probabilities of the last softmax.
func (c *candidates) entropy() float64 {
	var h float64
	for i := range c.list {
		if p := float64(c.list[i].p); p > 0 {
			h -= p * math.Log(p)
		}
	}
	return h
}

func (s *Sampler) topNSigma() {
	var n, sum, squares float64
	for i := range s.c.list {
		if l := float64(s.c.list[i].logit); !math.IsInf(l, -1) {
			n++
			sum += l
		}
	}
	mean := sum / n
	for i := range s.c.list {
		if l := float64(s.c.list[i].logit); !math.IsInf(l, -1) {
			squares += (l - mean) * (l - mean)
		}
	}
	lowest := float64(s.c.max()) - float64(s.p.TopNSigma)*math.Sqrt(squares/n)
	for i := range s.c.list {
		if float64(s.c.list[i].logit) < lowest {
			s.c.list[i].logit = float32(math.Inf(-1))
		}
	}
}

// xtc draws whether to exclude top choices, and if so leaves the least of the likely ones and all below.
func (s *Sampler) xtc() {
	if len(s.c.list) < 2 || s.xtcRNG.float32() > s.p.XTCProbability {
		return
	}
	s.c.sort(len(s.c.list))
	s.c.softmax()
	last := 0
	for i := range s.c.list {
		if p := s.c.list[i].p; p < s.p.XTCThreshold || p == 0 {
			break
		}
		last = i
	}
	if last > 0 && len(s.c.list)-last >= s.p.MinKeep {
		n := copy(s.c.list, s.c.list[last:])
		s.c.keep(n)
	}
}

func (s *Sampler) temperature() {
	t := float64(s.p.Temperature)
	if s.p.TemperatureRange > 0 && s.p.Mirostat == 0 {
		if len(s.c.list) < 2 {
			return
		}
		lo := max(0, t-float64(s.p.TemperatureRange))
		hi := t + float64(s.p.TemperatureRange)
		s.c.sort(len(s.c.list)) // llama.cpp does, and the choice walks the list in order
		s.c.softmax()
		spread := s.c.entropy() / math.Log(float64(len(s.c.list)))
		t = lo + (hi-lo)*math.Pow(spread, float64(s.p.TemperatureFactor))
	}
	highest := s.c.max()
	if scaled := float64(highest) / t; t <= 0 || math.Abs(scaled) > math.MaxFloat32 || math.IsNaN(scaled) {
		s.c.cool(highest)
		return
	}
	for i := range s.c.list {
		s.c.list[i].logit = float32(float64(s.c.list[i].logit) / t)
	}
}

// cool is the limit of a temperature of 0: only the first candidate with the highest logit stays possible.
func (c *candidates) cool(highest float32) {
	found := false
	for i := range c.list {
		if found || c.list[i].logit != highest {
			c.list[i].logit = float32(math.Inf(-1))
		} else {
			found = true
		}
	}
}
