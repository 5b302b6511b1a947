package main

import (
	"strconv"

	"github.com/bigmoe/bigmoe/sdk/recipe"
)

// headDims returns the sizes of a head's key and value. Where the file is absorbed, key_length is the latent's.
func headDims(b *recipe.Builder) (key, value int) {
	if b.HasTensor("blk.0.attn_k_b.weight") {
		return b.Uint("attention.key_length_mla", 1, recipe.MaxCount), b.Uint("attention.value_length_mla", 1, recipe.MaxCount)
	}
	length := func(name string) int {
		if b.Has(name + "_mla") {
			name += "_mla"
		}
		return b.Uint(name, 1, recipe.MaxCount)
	}
	return length("attention.key_length"), length("attention.value_length")
}

// gating reads how scores become probabilities. Files of the GLM family lack the key and mean sigmoid.
func gating(b *recipe.Builder, blocks int) string {
	missing := 1
	if (blocks == 47 || blocks == 48) && b.Vocabulary() == 154880 {
		missing = 2
	}
	n := b.UintOr("expert_gating_func", missing, 0, recipe.MaxCount)
	if n != 1 && n != 2 {
		b.Refuse(recipe.Unsupported, "deepseek2.expert_gating_func: expected 1 (softmax) or 2 (sigmoid), found "+strconv.Itoa(n))
	}
	return []string{"softmax", "sigmoid"}[n-1]
}
