// Command olmoe writes a tiny OLMoE model with random weights, and beside it what the architecture's definition makes of
// a prompt, in 64-bit floats: a fixture for the recipe of docs/tutorial-recipe.md, which bigmoe does not ship.
//
//	go run ./testdata/gen/olmoe -out testdata/golden/olmoe
//
// The same version of Go writes the same bytes. -search N tries N seeds and prints the ones whose routing and greedy
// text leave the most room for rounding; the seed below came from there.
package main

import (
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"math"
	"os"
	"path/filepath"
	"slices"

	"github.com/bigmoe/bigmoe/sdk/dtype"
)

const chosenSeed = 6919

// types are those of the matrices, one model for each.
var types = []dtype.Type{dtype.F32, dtype.Q8_0}

// prompt is spelled by the vocabulary of tokens.go.
const prompt = "The boy counted the stones near the old bridge and then it rained."

func main() {
	log.SetFlags(0)
	out := flag.String("out", "", "folder to write to")
	search := flag.Int("search", 0, "try so many seeds instead")
	flag.Parse()
	var err error
	switch {
	case *search > 0:
		err = searchSeeds(*search)
	case *out != "" && flag.NArg() == 0:
		err = writeAll(*out)
	default:
		flag.Usage()
		os.Exit(2)
	}
	if err != nil {
		log.Fatal(err)
	}
}

func writeAll(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, typ := range types {
		m := newModel(chosenSeed, typ)
		name := "olmoe-" + typeName(typ)
		if err := m.builder(name).Write(filepath.Join(dir, name+".gguf")); err != nil {
			return err
		}
		text, err := json.Marshal(m.golden(name))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, name+".json"), append(text, '\n'), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// searchSeeds ranks seeds by the narrower of the smallest router gap and half the smallest lead of a greedy token.
func searchSeeds(n int) error {
	type candidate struct {
		seed        uint64
		gap, margin float64
	}
	room := func(c candidate) float64 { return min(c.gap, c.margin/2) }
	var best []candidate
	for seed := range uint64(n) {
		c := candidate{seed: seed + 1, gap: math.Inf(1), margin: math.Inf(1)}
		for _, typ := range types {
			run := newModel(c.seed, typ).run()
			c.gap = min(c.gap, slices.Min(slices.Concat(run.Routing.Gap...)))
			c.margin = min(c.margin, slices.Min(run.Greedy.Margin))
		}
		best = append(best, c)
	}
	slices.SortFunc(best, func(a, b candidate) int { return cmp.Compare(room(b), room(a)) })
	for _, c := range best[:min(5, len(best))] {
		fmt.Printf("seed %d: smallest router gap %.3f, smallest greedy lead %.3f\n", c.seed, c.gap, c.margin)
	}
	return nil
}
