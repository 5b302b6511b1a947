package bench

import (
	"slices"
	"strings"

	"github.com/bigmoe/bigmoe/sdk/fault"
)

// Setting is a flag, named without its dashes, and the value that a variant gives it.
type Setting struct{ Flag, Value string }

// Variant is one configuration to measure: what it changes about the common one.
type Variant struct{ Settings []Setting }

// String returns the settings as they are written: cache=2000M policy=lru.
func (v Variant) String() string {
	if len(v.Settings) == 0 {
		return "as given"
	}
	words := make([]string, len(v.Settings))
	for i, s := range v.Settings {
		words[i] = s.Flag + "=" + s.Value
	}
	return strings.Join(words, " ")
}

// MaxVariants is how many can be compared: each has a letter.
const MaxVariants = 26

// Letter is the short name of variant i in tables: A, B, …
func Letter(i int) string { return string(rune('A' + i)) }

// Variants returns the configurations that the command line spells. Each element of vary, flag=value,value…, multiplies
// them: all combinations, the last one changing fastest. Each element of configs is one configuration, settings separated
// by white space; an empty one changes nothing. With neither there is one variant that changes nothing.
func Variants(vary, configs []string) ([]Variant, error) {
	list := []Variant{{}}
	for _, text := range vary {
		s, err := setting(text)
		if err != nil {
			return nil, fault.Userf("--vary %q: %w", text, err)
		}
		values := strings.Split(s.Value, ",")
		if len(list)*len(values) > MaxVariants {
			return nil, fault.Userf("--vary: more than %d variants", MaxVariants)
		}
		var next []Variant
		for _, v := range list {
			for _, value := range values {
				next = append(next, Variant{append(slices.Clone(v.Settings), Setting{s.Flag, value})})
			}
		}
		list = next
	}
	if len(configs) > 0 {
		list = nil
	}
	for _, text := range configs {
		var v Variant
		for _, word := range strings.Fields(text) {
			s, err := setting(word)
			if err != nil {
				return nil, fault.Userf("--config %q: %w", text, err)
			}
			v.Settings = append(v.Settings, s)
		}
		list = append(list, v)
	}
	if len(list) > MaxVariants {
		return nil, fault.Userf("%d variants, expected at most %d", len(list), MaxVariants)
	}
	seen := map[string]bool{}
	for _, v := range list {
		flags := map[string]bool{}
		for _, s := range v.Settings {
			if flags[s.Flag] {
				return nil, fault.Userf("variant %q sets %s twice", v, s.Flag)
			}
			flags[s.Flag] = true
		}
		if seen[v.String()] {
			return nil, fault.Userf("variant %q is there twice", v)
		}
		seen[v.String()] = true
	}
	return list, nil
}

func setting(text string) (Setting, error) {
	flag, value, ok := strings.Cut(text, "=")
	if !ok || flag == "" || value == "" {
		return Setting{}, fault.Userf("%q: expected flag=value", text)
	}
	return Setting{flag, value}, nil
}

// Step is one run of the schedule.
type Step struct {
	Variant int // index
	Round   int // from 0; runs of one round are compared with each other
	WarmUp  bool
}

// Schedule returns the runs in order: A B A B …, first warmUps rounds whose figures do not count, then rounds that do.
func Schedule(variants, warmUps, rounds int) []Step {
	var steps []Step
	for r := range warmUps + rounds {
		for v := range variants {
			if r < warmUps {
				steps = append(steps, Step{v, r, true})
			} else {
				steps = append(steps, Step{v, r - warmUps, false})
			}
		}
	}
	return steps
}
