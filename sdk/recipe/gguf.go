package recipe

import (
	"strconv"
	"strings"
)

// What GGUF files of many architectures have in common: names of tensors, and ways to leave one out.

// TableAndHead declares the embedding table token_embd.weight and the head output.weight, {width, vocabulary} each. A
// file without the latter reuses the table, which then stays in memory; else only rows of the table are read.
func (b *Builder) TableAndHead(width, vocabulary int) (table, head Weight) {
	if !b.HasTensor("output.weight") {
		table = b.Weight("token_embd.weight", width, vocabulary)
		return table, table
	}
	return b.Rows("token_embd.weight", width, vocabulary), b.Weight("output.weight", width, vocabulary)
}

// StackedBank is [Builder.Bank] for the tensors that converters write for layer i: blk.<i>.ffn_gate_exps.weight and
// ffn_up_exps.weight, {width, hidden, experts} each, or ffn_gate_up_exps.weight {width, 2·hidden, experts} for both, and
// ffn_down_exps.weight {hidden, width, experts}.
func (b *Builder) StackedBank(layer, experts, width, hidden int) Bank {
	blk := tensorPrefix(layer)
	down := Stack(Down, blk+"ffn_down_exps.weight", hidden, width)
	if fused := blk + "ffn_gate_up_exps.weight"; b.HasTensor(fused) {
		return b.Bank(layer, experts, Stack(GateUp, fused, width, 2*hidden), down)
	}
	return b.Bank(layer, experts, Stack(Gate, blk+"ffn_gate_exps.weight", width, hidden),
		Stack(Up, blk+"ffn_up_exps.weight", width, hidden), down)
}

// Trunk returns how many of a file's blocks are layers of the model. The others are the last nextn_predict_layers, which
// draft tokens; their tensors are listed as unused, and the file may lack them. Some files count such blocks and have
// none: a block that has tensors, but not nextn.eh_proj.weight among them, is a layer.
func (b *Builder) Trunk(blocks int) int {
	layers := blocks - b.UintOr("nextn_predict_layers", 0, 0, blocks-1)
	var drafting []string
	for i := layers; i < blocks; i++ {
		drafting = append(drafting, tensorPrefix(i))
	}
	if layers < blocks && !b.HasTensor(drafting[0]+"nextn.eh_proj.weight") {
		for name := range b.Tensors() {
			if strings.HasPrefix(name, drafting[0]) {
				return blocks
			}
		}
	}
	b.UnusedUnder("drafts tokens, which is not supported", drafting...)
	return layers
}

// UnusedUnder is [Builder.Unused] for every tensor whose name begins with one of the prefixes, such as "v." for those of
// a vision tower. There need be none.
func (b *Builder) UnusedUnder(reason string, prefixes ...string) {
	for name := range b.Tensors() {
		for _, prefix := range prefixes {
			if strings.HasPrefix(name, prefix) {
				b.Unused(name, reason)
				break
			}
		}
	}
}

// FirstTensor returns the first of the names that the file has, for tensors that go by several. If it has none, that is
// the first of all, which the error about the missing tensor then names.
func (b *Builder) FirstTensor(names ...string) string {
	for _, name := range names {
		if b.HasTensor(name) {
			return name
		}
	}
	return names[0]
}

// tensorPrefix is what the names of the tensors of block i begin with.
func tensorPrefix(i int) string { return "blk." + strconv.Itoa(i) + "." }
