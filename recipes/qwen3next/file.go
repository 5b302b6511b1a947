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

// weights are the matrices that a delta net applies to its input.
type weights struct{ qkv, z, beta, alpha recipe.Weight }

// projections declares them (5.5). Their rows lie by key head: beta and alpha always, the rest in files that have one
// matrix for all of it, ssm_in. The convolution wants all queries, then all keys, then all values.
func projections(b *recipe.Builder, blk string, width, keyHeads, valueHeads, dim int) weights {
	shared := valueHeads / keyHeads // value heads of a key head
	// gather joins, for every key head, rows of a group of that many; runs are first rows and counts.
	gather := func(name, tensor string, group int, runs ...[2]int) recipe.Weight {
		var sources []recipe.Source
		rows := 0
		for _, run := range runs {
			for g := range keyHeads {
				sources = append(sources, recipe.Source{Tensor: blk + tensor, FirstRow: g*group + run[0], Rows: run[1]})
			}
			rows += keyHeads * run[1]
		}
		return b.Join(blk+name, []int{width, rows}, sources...)
	}
	w := weights{
		beta:  gather("ssm_ba.beta", "ssm_ba.weight", 2*shared, [2]int{0, shared}),
		alpha: gather("ssm_ba.alpha", "ssm_ba.weight", 2*shared, [2]int{shared, shared}),
	}
	if b.HasTensor(blk + "ssm_in.weight") {
		group, values := 2*dim+2*shared*dim, shared*dim
		w.qkv = gather("ssm_in.qkv", "ssm_in.weight", group, [2]int{0, dim}, [2]int{dim, dim}, [2]int{2 * dim, values})
		w.z = gather("ssm_in.z", "ssm_in.weight", group, [2]int{2*dim + values, values})
	} else {
		w.qkv = b.Weight(blk+"attn_qkv.weight", width, 2*keyHeads*dim+valueHeads*dim)
		w.z = b.Weight(blk+"attn_gate.weight", width, valueHeads*dim)
	}
	return w
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
