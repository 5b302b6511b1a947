package sample

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/bigmoe/bigmoe/sdk/fault"
)

// RandomSeed asks for a seed that nobody knows in advance; [Sampler.Seed] tells which one it was.
const RandomSeed = math.MaxUint32

// Params say how to pick a token. Start from [Default]: the zero value is not valid. Each field gives its default and
// what turns it off (specs/sampling.md section 3).
type Params struct {
	Seed uint32 // RandomSeed

	// Samplers are the stages by name, in order; nil means [DefaultSamplers]. A stage that is not listed is off
	// whatever its parameters say.
	Samplers []string

	Temperature       float32 // 0.8; 1 leaves the logits alone, 0 or less takes the highest (greedy)
	TemperatureRange  float32 // 0; above 0 the temperature follows the entropy, within Temperature ± range
	TemperatureFactor float32 // 1; the exponent of that dependence

	TopK      int     // 40: keep the K highest; 0 or less is off
	TopP      float32 // 0.95: keep the highest whose probabilities add up to P; 1 is off
	MinP      float32 // 0.05: keep those at least P times as probable as the highest; 0 is off
	TypicalP  float32 // 1: keep those of most typical information, up to probability P; 1 is off
	TopNSigma float32 // -1: ban what is more than N standard deviations below the highest; 0 or less is off
	MinKeep   int     // 0: TopP, MinP, TypicalP and XTC leave at least so many

	XTCProbability float32 // 0: how often to drop all but the least of the likely tokens; 0 is off
	XTCThreshold   float32 // 0.1: the probability that makes a token likely; above 0.5 is off

	PenaltyLastN     int     // 64: the penalties look back so many accepted tokens; 0 is off
	RepeatPenalty    float32 // 1 (off): divides positive logits of tokens seen, multiplies negative ones
	FrequencyPenalty float32 // 0 (off): subtracted once for each time a token was seen
	PresencePenalty  float32 // 0 (off): subtracted from tokens seen

	Mirostat    int     // 0 (off); 1 or 2 replaces every stage but temperature by that version of Mirostat
	MirostatTau float32 // 5: the surprise aimed at, in bits
	MirostatEta float32 // 0.1: how fast to approach it

	AdaptiveTarget float32 // -1: the probability aimed at when adaptive_p is listed; below 0 is off
	AdaptiveDecay  float32 // 0.9: how slowly past choices are forgotten

	LogitBias map[int32]float32 // added to the logits of these ids; -Inf bans, ids outside the vocabulary are ignored
}

// Default returns the defaults.
func Default() Params {
	return Params{
		Seed: RandomSeed, Temperature: 0.8, TemperatureFactor: 1, TopK: 40, TopP: 0.95, MinP: 0.05, TypicalP: 1, TopNSigma: -1,
		XTCThreshold: 0.1, PenaltyLastN: 64, RepeatPenalty: 1, MirostatTau: 5, MirostatEta: 0.1, AdaptiveTarget: -1, AdaptiveDecay: 0.9,
	}
}

// Greedy returns parameters that always take the highest logit.
func Greedy() Params {
	p := Default()
	p.Temperature = 0
	return p
}

// DefaultSamplers returns the stages in their default order (specs/sampling.md section 2).
func DefaultSamplers() []string {
	return []string{"penalties", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"}
}

// samplers returns the stages that apply.
func (p *Params) samplers() []string {
	switch {
	case p.Mirostat > 0:
		return []string{"temperature"}
	case p.Samplers == nil:
		return DefaultSamplers()
	}
	return p.Samplers
}

// greedy says whether the highest logit wins.
func (p *Params) greedy() bool {
	return p.Temperature <= 0 && slices.Contains(p.samplers(), "temperature")
}

// penalised says whether accepted tokens matter.
func (p *Params) penalised() bool {
	return slices.Contains(p.samplers(), "penalties") && p.PenaltyLastN > 0 &&
		(p.RepeatPenalty != 1 || p.FrequencyPenalty != 0 || p.PresencePenalty != 0)
}

// maxPenaltyLastN bounds the history that is kept: 4 bytes a token.
const maxPenaltyLastN = 1 << 24

// Validate returns an error of kind [fault.User] that lists everything wrong with p, or nil.
func (p Params) Validate() error {
	var wrong []string
	complain := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	inRange := func(name string, v, lo, hi float32) {
		if !(v >= lo && v <= hi) { // NaN fails too
			complain("%s is %v: expected %v to %v", name, v, lo, hi)
		}
	}
	const most = math.MaxFloat32
	inRange("temperature", p.Temperature, -most, most)
	inRange("temperature range", p.TemperatureRange, -most, most)
	inRange("temperature factor", p.TemperatureFactor, 0, most)
	inRange("top_p", p.TopP, 0, 1)
	inRange("min_p", p.MinP, 0, most)
	inRange("typ_p", p.TypicalP, 0, 1)
	inRange("top_n_sigma", p.TopNSigma, -most, most)
	inRange("xtc probability", p.XTCProbability, 0, 1)
	inRange("xtc threshold", p.XTCThreshold, 0, 1)
	inRange("frequency penalty", p.FrequencyPenalty, -most, most)
	inRange("presence penalty", p.PresencePenalty, -most, most)
	inRange("mirostat tau", p.MirostatTau, 0, most)
	inRange("mirostat eta", p.MirostatEta, 0, most)
	inRange("adaptive_p target", p.AdaptiveTarget, -most, 1)
	inRange("adaptive_p decay", p.AdaptiveDecay, 0, 1)
	if !(p.RepeatPenalty > 0 && p.RepeatPenalty <= most) {
		complain("repeat penalty is %v: expected a number above 0", p.RepeatPenalty)
	}
	if p.PenaltyLastN < 0 || p.PenaltyLastN > maxPenaltyLastN {
		complain("penalty window is %d: expected 0 to %d tokens", p.PenaltyLastN, maxPenaltyLastN)
	}
	if p.MinKeep < 0 {
		complain("min_keep is %d: expected 0 or more", p.MinKeep)
	}
	if p.Mirostat < 0 || p.Mirostat > 2 {
		complain("mirostat is %d: expected 0, 1 or 2", p.Mirostat)
	}
	for i, name := range p.Samplers {
		switch {
		case name == "adaptive_p":
			if i != len(p.Samplers)-1 {
				complain("sampler adaptive_p is number %d of %d: expected last", i+1, len(p.Samplers))
			}
		case name == "penalties":
			if i != 0 {
				complain("sampler penalties is number %d: expected first", i+1)
			}
		case !slices.Contains(DefaultSamplers(), name):
			complain("sampler %q is not supported: there are %s, adaptive_p", name, strings.Join(DefaultSamplers(), ", "))
		case slices.Contains(p.Samplers[:i], name):
			complain("sampler %s is listed twice", name)
		}
	}
	for id, bias := range p.LogitBias {
		if id < 0 {
			complain("logit bias for token %d: ids are not negative", id)
		}
		if math.IsNaN(float64(bias)) || math.IsInf(float64(bias), 1) {
			complain("logit bias of token %d is %v: expected a number or -Inf", id, bias)
		}
	}
	if wrong == nil {
		return nil
	}
	slices.Sort(wrong)
	return fault.Userf("sampling: %s", strings.Join(wrong, "; "))
}
