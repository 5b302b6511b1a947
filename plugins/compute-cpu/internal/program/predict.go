package program

import (
	"fmt"
	"slices"

	"github.com/bigmoe/bigmoe/sdk/compute"
	"github.com/bigmoe/bigmoe/sdk/plan"
)

// The experts of the next layers can be guessed before this one has computed its own: the residual stream changes little
// from layer to layer, so the next router, applied to what this router saw, mostly makes the choice that it will make.
// The guess is that layer's own ops on an earlier value; nothing in the plan speaks of it.

// routedLayer is a layer whose router can be applied to the stream of another.
type routedLayer struct {
	route *plan.Op
	bank  int
	root  string     // the value that the router's ops start from
	ops   []*plan.Op // from root to the logits
}

// pointwise are the ops that may lie between the residual stream and the router's logits: each reads one value and no
// state.
var pointwise = map[string]bool{"rms_norm": true, "mul_weight": true, "add_weight": true, "scale": true, "linear": true}

// routedLayers finds the layers of p that pick experts, in order; ops is empty where a router cannot be moved.
func (c *compiler) routedLayers() (layers []routedLayer) {
	makers := map[string]*plan.Op{}
	for _, b := range c.m.Plan.Blocks {
		for i, op := range b.Ops {
			for _, name := range op.Out {
				makers[name] = op
			}
			if op.Kind != "route" || len(op.In) != 1 {
				continue
			}
			l := routedLayer{route: op, bank: -1}
			for _, e := range b.Ops[i+1:] {
				if e.Kind == "experts" && e.In[1] == op.Out[0] {
					l.bank = c.banks[e.Bank]
				}
			}
			l.root = op.In[0]
			for maker := makers[l.root]; maker != nil && pointwise[maker.Kind]; maker = makers[l.root] {
				l.ops = append([]*plan.Op{maker}, l.ops...)
				l.root = maker.In[0]
			}
			if l.bank >= 0 {
				layers = append(layers, l)
			}
		}
	}
	return layers
}

// predictLayers is how many layers ahead experts are guessed. With one, a layer that misses more than usual still waits while the drive
// was idle before (docs/experiments/router-prefetch.md).
const predictLayers = 2

// predict emits, behind the route op just compiled, the steps that guess the experts of the layers after it.
func (c *compiler) predict(op *plan.Op) error {
	if c.p.options.PredictTokens == 0 || c.head {
		return nil
	}
	i := slices.IndexFunc(c.routed, func(l routedLayer) bool { return l.route == op })
	if i < 0 {
		return nil
	}
	from := len(c.p.steps)
	for _, next := range c.routed[i+1 : min(i+1+predictLayers, len(c.routed))] {
		if err := c.guess(&c.routed[i], &next); err != nil {
			return err
		}
	}
	for j := from; j < len(c.p.steps); j++ {
		if r, ok := c.p.steps[j].(*route); ok {
			r.guess = true
		}
		c.p.steps[j] = speculative{c.p.steps[j]}
	}
	return nil
}

// guess emits the steps that apply the router of next to the stream that l's router saw.
func (c *compiler) guess(l, next *routedLayer) error {
	if len(l.ops) == 0 || len(next.ops) == 0 || c.m.Values[l.root].Width != c.m.Values[next.root].Width {
		return nil
	}
	value := l.root
	for _, op := range append(slices.Clone(next.ops), next.route) {
		guess := &plan.Op{Kind: op.Kind, In: []string{value}, Weights: op.Weights, Attrs: op.Attrs}
		for _, name := range op.Out {
			from := fmt.Sprintf("guess of %s from %s", name, l.root)
			guess.Out = append(guess.Out, from)
			c.m.Values[from] = c.m.Values[name]
		}
		c.op, c.rest = guess, nil
		if err := c.compileOp(); err != nil {
			return err
		}
		value = guess.Out[0]
	}
	c.emit(foretold{bank: next.bank, ids: c.use(c.values[value])})
	return nil
}

// speculative is a step that is worth its while only if the host wants guesses.
type speculative struct{ step }

func (s speculative) run(m *Machine) error {
	if m.predictor == nil {
		return nil
	}
	return s.step.run(m)
}

// foretold hands a guess to the engine.
type foretold struct {
	bank int
	ids  ref
}

func (s foretold) run(m *Machine) error {
	return m.predictor.Predict(s.bank, s.ids.i32[:m.tokens*s.ids.width()])
}

// predictorFor returns who wants guesses about b, or nil.
func (p *Program) predictorFor(host compute.Host, b *compute.Batch) compute.Predictor {
	if !b.Predict || len(b.Tokens) > int(p.options.PredictTokens) {
		return nil
	}
	predictor, _ := host.(compute.Predictor)
	return predictor
}
