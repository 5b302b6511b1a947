package main

import (
	"strconv"
	"strings"

	"github.com/bigmoe/bigmoe/sdk/recipe"
)

// bank declares the experts of layer i, gate and up in one tensor or in two.
func bank(b *recipe.Builder, i int, blk string, experts, width, hidden int) recipe.Bank {
	down := recipe.Stack(recipe.Down, blk+"ffn_down_exps.weight", hidden, width)
	if fused := blk + "ffn_gate_up_exps.weight"; b.HasTensor(fused) {
		return b.Bank(i, experts, recipe.Stack(recipe.GateUp, fused, width, 2*hidden), down)
	}
	return b.Bank(i, experts, recipe.Stack(recipe.Gate, blk+"ffn_gate_exps.weight", width, hidden),
		recipe.Stack(recipe.Up, blk+"ffn_up_exps.weight", width, hidden), down)
}

// checkSections refuses files in which some pair of a text would not turn with the token's position (A4): the fourth
// axis, which takes what the other three leave, stands still.
func checkSections(b *recipe.Builder, pairs int) {
	s := b.PerLayer("rope.dimension_sections", 4, 0, recipe.MaxCount)
	total := s[0] + s[1] + s[2] + s[3]
	for j := range pairs {
		if total == 0 || j%total >= 3*s[j%total%3] {
			b.Refuse(recipe.Unsupported, "qwen35moe.rope.dimension_sections: no section of time, height or width covers pair "+
				strconv.Itoa(j)+" of "+strconv.Itoa(pairs))
		}
	}
}

// unused lists the tensors beside the trunk.
func unused(b *recipe.Builder, layers, blocks int) {
	for name := range b.Tensors() {
		n, _, _ := strings.Cut(strings.TrimPrefix(name, "blk."), ".")
		i, err := strconv.Atoi(n)
		switch {
		case strings.HasPrefix(name, "blk.") && err == nil && i >= layers && i < blocks, strings.HasPrefix(name, "mtp."):
			b.Unused(name, "drafts tokens, which is not supported")
		case strings.HasPrefix(name, "v.") || strings.HasPrefix(name, "mm."):
			b.Unused(name, "sees images, which is not supported")
		}
	}
}
