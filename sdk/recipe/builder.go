package recipe

import "strconv"

// schemaVersion is the version of the plan schema that this package writes.
const schemaVersion = 1

// Logits is the name that the last value of a plan must have.
const Logits = "logits"

// Value names the result of an op: one row for each token. The empty Value leaves an optional operand out.
type Value string

// Model holds the sizes that people and budgets ask for; the ops do not depend on it.
type Model struct {
	Layers, Embedding, Vocabulary int
	ContextLength                 int // trained context, tokens
	Experts, ExpertsUsed          int // routed experts: of a layer, and of those for each token
}

// Builder reads a model file and writes its plan. It is only valid inside the function given to [Register].
type Builder struct {
	host     host
	arch     string
	model    wire
	weights  wire
	declared map[string]int // weight name to where its encoding starts in weights
	banks    wire
	states   wire
	blocks   wire
	unused   wire

	inBlock    bool
	blockStart int
	prefix     string // of the names of the block's values
}

// run makes the plan and hands it to the host.
func run(h host, r registration) {
	b := &Builder{host: h, declared: map[string]int{}}
	if r.build == nil {
		b.Refuse(bug, "no recipe is registered")
	}
	b.arch = b.Text("general.architecture")
	r.build(b)
	h.plan(b.encode(r))
}

func (b *Builder) encode(r registration) []byte {
	b.endBlock()
	var p wire
	p.uint(1, schemaVersion)
	p.text(2, b.arch)
	p.text(3, r.name)
	p.text(4, r.version)
	model := p.open(5)
	p = append(p, b.model...)
	p.close(model)
	for _, section := range []wire{b.weights, b.banks, b.states, b.blocks, b.unused} {
		p = append(p, section...)
	}
	return p
}

// Architecture returns general.architecture, which is also the prefix of the model's keys.
func (b *Builder) Architecture() string { return b.arch }

// Refuse ends the recipe with an error of the given kind, [Corrupt] or [Unsupported]. It does not return.
func (b *Builder) Refuse(kind int, message string) { b.host.fail(int32(kind), message) }

// Warn tells the person who opens the file something that is no reason to refuse it, such as a value that had to be assumed.
// At most 64 warnings are taken.
func (b *Builder) Warn(message string) { b.host.warn(message) }

// Describe states the sizes of the model.
func (b *Builder) Describe(m Model) {
	b.model = nil
	for i, n := range []int{m.Layers, m.Embedding, m.Vocabulary, m.ContextLength, m.Experts, m.ExpertsUsed} {
		b.model.uint(i+1, uint64(n))
	}
}

const (
	embeddingBlock = 1
	layerBlock     = 2
	headBlock      = 3
)

// Embedding starts the first block.
func (b *Builder) Embedding() { b.startBlock(embeddingBlock, 0, "") }

// Layer starts the block of layer i. The names of its values get the prefix "l<i>."; those of its tensors have, in GGUF,
// the prefix that it returns, "blk.<i>.".
func (b *Builder) Layer(i int) (blk string) {
	b.startBlock(layerBlock, i, "l"+strconv.Itoa(i)+".")
	return tensorPrefix(i)
}

// Head starts the last block, which is computed only for the tokens whose logits are wanted. It defines [Logits].
func (b *Builder) Head() { b.startBlock(headBlock, 0, "") }

func (b *Builder) startBlock(kind, layer int, prefix string) {
	b.endBlock()
	b.inBlock, b.prefix = true, prefix
	b.blockStart = b.blocks.open(9)
	b.blocks.uint(1, uint64(kind))
	b.blocks.uint(2, uint64(layer))
}

func (b *Builder) endBlock() {
	if b.inBlock {
		b.blocks.close(b.blockStart)
		b.inBlock = false
	}
}
