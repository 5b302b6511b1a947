package main

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/bigmoe/bigmoe/engine/gguf"
	"github.com/bigmoe/bigmoe/engine/sample"
	"github.com/bigmoe/bigmoe/sdk/fault"
)

// samplingFlags say how tokens are picked. A flag that was not given leaves the choice to the model's file, and then
// to sample.Default.
type samplingFlags struct {
	given  sample.Params
	seed   int64
	greedy bool
}

func (f *samplingFlags) add(fs *pflag.FlagSet) {
	d := sample.Default()
	p := &f.given
	fs.BoolVar(&f.greedy, "greedy", false, "always take the most likely token")
	fs.Int64Var(&f.seed, "seed", -1, "seed of the random choices; negative: a new one each time, which the summary tells")
	fs.Float32Var(&p.Temperature, "temp", d.Temperature, "temperature; 0 is greedy")
	fs.IntVar(&p.TopK, "top-k", d.TopK, "choose among the K most likely tokens; 0 is off")
	fs.Float32Var(&p.TopP, "top-p", d.TopP, "choose among the most likely tokens that add up to probability P; 1 is off")
	fs.Float32Var(&p.MinP, "min-p", d.MinP, "drop tokens less than P times as likely as the most likely one; 0 is off")
	fs.Float32Var(&p.TypicalP, "typical-p", d.TypicalP, "choose among the most typical tokens that add up to probability P; 1 is off")
	fs.Float32Var(&p.TopNSigma, "top-n-sigma", d.TopNSigma, "drop tokens N standard deviations below the most likely one; 0 is off")
	fs.IntVar(&p.PenaltyLastN, "repeat-last-n", d.PenaltyLastN, "penalties look back so many `TOKENS`; 0 is off")
	fs.Float32Var(&p.RepeatPenalty, "repeat-penalty", d.RepeatPenalty, "divide the logits of tokens seen; 1 is off")
	fs.Float32Var(&p.PresencePenalty, "presence-penalty", d.PresencePenalty, "subtract from the logits of tokens seen")
	fs.Float32Var(&p.FrequencyPenalty, "frequency-penalty", d.FrequencyPenalty, "subtract from the logits of tokens, once for each time seen")
}

// params merges flags, the recommendation of the model that runs with that context (file may be nil) and the defaults,
// in this order of precedence (specs/sampling.md section 3). The result is valid and its seed is a definite one.
func (f *samplingFlags) params(flags *pflag.FlagSet, file *gguf.File, context int) (sample.Params, error) {
	p := sample.Default()
	if file != nil {
		if err := recommended(&p, file, context); err != nil {
			return p, err
		}
	}
	for name, set := range map[string]func(){
		"temp":              func() { p.Temperature = f.given.Temperature },
		"top-k":             func() { p.TopK = f.given.TopK },
		"top-p":             func() { p.TopP = f.given.TopP },
		"min-p":             func() { p.MinP = f.given.MinP },
		"typical-p":         func() { p.TypicalP = f.given.TypicalP },
		"top-n-sigma":       func() { p.TopNSigma = f.given.TopNSigma },
		"repeat-last-n":     func() { p.PenaltyLastN = f.given.PenaltyLastN },
		"repeat-penalty":    func() { p.RepeatPenalty = f.given.RepeatPenalty },
		"presence-penalty":  func() { p.PresencePenalty = f.given.PresencePenalty },
		"frequency-penalty": func() { p.FrequencyPenalty = f.given.FrequencyPenalty },
	} {
		if flags.Changed(name) {
			set()
		}
	}
	if f.greedy { // the whole chain but the penalties is beside the point
		p.Temperature, p.Mirostat = 0, 0
	}
	switch {
	case f.seed >= sample.RandomSeed:
		return p, fault.Userf("--seed %d: expected below %d", f.seed, int64(sample.RandomSeed))
	case f.seed >= 0:
		p.Seed = uint32(f.seed)
	default:
		p.Seed = rand.Uint32N(sample.RandomSeed)
	}
	return p, p.Validate()
}

// recommended takes over what the file's authors recommend.
func recommended(p *sample.Params, f *gguf.File, context int) error {
	const prefix = "general.sampling."
	integer := func(to *int) func(gguf.Value) error {
		return func(v gguf.Value) error {
			n, err := v.Int()
			if err == nil && (n < math.MinInt32 || n > math.MaxInt32) {
				err = fault.Corruptf("%s: key %q is %d: out of range", f.Path(), v.Key(), n)
			}
			*to = int(n)
			return err
		}
	}
	number := func(to *float32) func(gguf.Value) error {
		return func(v gguf.Value) error {
			x, err := v.Float()
			*to = float32(x)
			return err
		}
	}
	for key, take := range map[string]func(gguf.Value) error{
		"temp": number(&p.Temperature), "top_k": integer(&p.TopK), "top_p": number(&p.TopP), "min_p": number(&p.MinP),
		"xtc_probability": number(&p.XTCProbability), "xtc_threshold": number(&p.XTCThreshold),
		"penalty_last_n": integer(&p.PenaltyLastN), "penalty_repeat": number(&p.RepeatPenalty),
		"mirostat": integer(&p.Mirostat), "mirostat_tau": number(&p.MirostatTau), "mirostat_eta": number(&p.MirostatEta),
		"sequence": func(v gguf.Value) error {
			text, err := v.String()
			p.Samplers = samplers(text)
			return err
		},
	} {
		if v, ok := f.Get(prefix + key); ok {
			if err := take(v); err != nil {
				return err
			}
		}
	}
	if p.PenaltyLastN < 0 { // an old way to say: all of it
		p.PenaltyLastN = context
	}
	if err := p.Validate(); err != nil {
		return fault.Corruptf("%s: keys %s*: %s", f.Path(), prefix, err)
	}
	return nil
}

// samplers reads a list of stages as files have it: names joined by semicolons, some of which have aliases. DRY is left
// out: a file cannot say how strong it should be, and it is off by default.
func samplers(sequence string) []string {
	alias := map[string]string{"typical": "typ_p", "typical_p": "typ_p", "temp": "temperature", "top-k": "top_k", "top-p": "top_p", "min-p": "min_p"}
	list := []string{}
	for name := range strings.SplitSeq(sequence, ";") {
		name = strings.TrimSpace(name)
		if a, ok := alias[name]; ok {
			name = a
		}
		if name != "" && name != "dry" && !slices.Contains(list, name) {
			list = append(list, name)
		}
	}
	return list
}

// describe returns the parameters in force, by the names of their flags, for the JSON output.
func describe(p sample.Params) map[string]any {
	return map[string]any{"seed": p.Seed, "temp": p.Temperature, "top-k": p.TopK, "top-p": p.TopP, "min-p": p.MinP,
		"typical-p": p.TypicalP, "top-n-sigma": p.TopNSigma, "repeat-last-n": p.PenaltyLastN, "repeat-penalty": p.RepeatPenalty,
		"presence-penalty": p.PresencePenalty, "frequency-penalty": p.FrequencyPenalty}
}

// seedText is how the summary tells the seed: not at all when nothing is random.
func seedText(p sample.Params) string {
	if p.Temperature <= 0 && p.Mirostat == 0 {
		return "greedy"
	}
	return fmt.Sprintf("seed %d", p.Seed)
}
