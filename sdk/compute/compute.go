// Package compute is the contract between the engine and a compute backend: what a backend must implement, and what
// the engine offers it while a batch runs.
//
// A backend is a program that calls [Serve] with its [Backend]:
//
//	func main() { compute.Serve(mybackend.New()) }
//
// The engine starts it as a child process, asks [Backend.Describe] and [Backend.Prepare], fills a region of shared
// memory with the dense weights, calls [Backend.Load], and then runs batches with [Sequence.Eval]. For every
// mixture-of-experts layer the backend calls [Host.Route] with the experts it picked and gets back where they are, or
// will be, in the region. docs/backend.md has the wire format for backends in other languages.
//
// # Caveats
//
// Expert bytes may only be read after [Slot] says that the part is ready, and only until the next call to the host:
// the engine re-uses the memory.
//
// # Concurrency
//
// The engine calls one method at a time. A backend runs its own threads; all calls to one Host come from the
// goroutine that runs Eval, but any thread may wait for a slot.
package compute

import (
	"context"
	"time"

	"github.com/bigmoe/bigmoe/sdk/plan"
)

// MaxNameBytes is how long name, version and kernels of a backend may be together: they are in every message about it.
const MaxNameBytes = 300

// Backend does the arithmetic of a plan on one kind of device.
type Backend interface {
	Describe() *Description
	// Prepare refuses what the backend cannot run, naming the op, type or size ([fault.Unsupported]), and otherwise
	// says what memory the model takes besides the shared region. Nothing is loaded and nothing is kept.
	Prepare(m *Bound) (*Needs, error)
	// Load makes the model ready. The weights are in region.Bytes at the offsets that m gives and stay there.
	Load(m *Bound, region *Region) (Sequence, error)
}

// Bound is a validated plan together with the types, sizes and places of its weights in one model file.
type Bound struct {
	Plan    *plan.Plan
	Values  plan.Values
	Weights []*BoundWeight // by index into Plan.Weights
	Banks   []*BoundBank   // by index into Plan.Banks
	Options *Options
}

// Sequence is one text in progress: a loaded model with its states.
type Sequence interface {
	// Eval runs b.Tokens at positions b.Position, b.Position+1, … and writes the wanted logits. Positions must
	// continue the sequence. When it fails the states of the sequence are undefined until Trim(0). b is the caller's again when it
	// returns, and ctx may be that of the next evaluation too.
	Eval(ctx context.Context, b *Batch, host Host) error
	// Trim forgets every position from the given one on. Models with states that cannot be trimmed refuse any
	// position but the current one and 0 (which resets). Windowed states refuse, as [fault.Unsupported], a position of
	// whose window they have overwritten a part; the sequence stays as it is then.
	Trim(position int) error
	// Close frees what Load took. The region stays.
	Close() error
}

// Batch is the input and output of one evaluation.
type Batch struct {
	Tokens   []int32
	Position int       // of Tokens[0]
	Rows     [][]byte  // for each by-row weight in plan order: len(Tokens) raw rows, one per token
	All      bool      // logits for every token, otherwise only for the last
	Predict  bool      // guesses are welcome: see [Predictor]
	Logits   []float32 // out: (len(Tokens) or 1) x vocabulary

	// Stall is how long the evaluation waited for experts to be read, measured by [Region.Wait]; set by the engine's
	// side, not by the backend.
	Stall time.Duration
}

// Host is what the engine does for a backend during an evaluation.
type Host interface {
	// Route tells the engine which experts one layer picked, and gets the first wave of them. ids and weights hold
	// tokens x k values in routing order, best first; the engine may change the weights in place. bank is the index
	// into Plan.Banks. Slots of the previous route are gone when Route returns.
	//
	// Every distinct expert of ids is in exactly one wave. The sum over experts must not depend on the split into
	// waves nor on the order within one: reduce in routing order.
	Route(bank, k int, ids []int32, weights []float32) (Wave, error)
	// Next ends the current wave, whose slots may be re-used from now on, and returns the next one. It must be
	// called exactly as long as Wave.More is true.
	Next() (Wave, error)
}

// Predictor is a [Host] that can make use of guesses. A backend predicts when its host is one, Batch.Predict is set and the
// batch is no larger than Options.PredictTokens.
type Predictor interface {
	Host
	// Predict says which experts a later layer will probably pick, so that they can be read while this one computes: ids holds
	// those of each token of the batch, a token's most probable ones first, or fewer.
	// A wrong guess costs bandwidth, never the result. bank is the index into Plan.Banks. The slots of the current
	// wave stay.
	Predict(bank int, ids []int32) error
}

// Scorer is a [Host] that wants to see what a router thinks of every expert, to study routing. It is optional: only a backend in the
// engine's own process can be asked, and one that does not know of it does nothing.
type Scorer interface {
	Host
	// Scores gets the outputs of a layer's router for one token, one per expert, before gating and bias. It is called for each token
	// of a batch in order, ahead of the Route of that layer, and must not keep the slice.
	Scores(layer int, scores []float32)
}

// Wave is a set of experts that are in memory together.
type Wave struct {
	Slots []Slot // valid until the next call to the host
	More  bool
}

// Slot is one expert in the region.
type Slot struct {
	Expert int32
	Ready  uint32    // index of its readiness word
	Gen    uint32    // generation the word must show; see [Region.Wait]
	Part   [3]uint64 // region offset of each part's first byte, in the order of the bank's parts
}
