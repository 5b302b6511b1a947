package engine

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/bigmoe/bigmoe/engine/expert"
	"github.com/bigmoe/bigmoe/engine/model"
	"github.com/bigmoe/bigmoe/engine/usage"
	"github.com/bigmoe/bigmoe/sdk/compute"
	"github.com/bigmoe/bigmoe/sdk/fault"
)

// router answers a backend's routes from the expert store: it is the compute.Host of every evaluation. It keeps its
// buffers, so a route allocates nothing once they have grown.
type router struct {
	store    *expert.Store // nil for a model without routed experts
	banks    []model.Bank
	onRoute  func(layer, k int, ids []int32, weights []float32)
	onScores func(layer int, scores []float32)
	onWave   func(layer int, slots []expert.Slot)
	uses     *usage.Count // nil: nobody counts

	batch expert.Batch
	held  bool
	bank  int
	rest  []int32

	predict bool // guesses are read ahead
	guesses guesses
	read    int64 // experts that had been read and used when the last evaluation began
	calm    int   // evaluations in a row before it that read none
	slots   []compute.Slot
}

var _ compute.Predictor = (*router)(nil)

// host is what the backend is given: a scorer if somebody wants to see scores.
func (r *router) host() compute.Host {
	if r.onScores == nil {
		return r
	}
	return scored{r}
}

// scored is a router that also wants all scores.
type scored struct{ *router }

var _ compute.Scorer = scored{}

// Scores implements [compute.Scorer].
func (s scored) Scores(layer int, scores []float32) { s.onScores(layer, scores) }

// Route implements [compute.Host].
func (r *router) Route(bank, k int, ids []int32, weights []float32) (compute.Wave, error) {
	r.release()
	if bank < 0 || bank >= len(r.banks) || k <= 0 || len(ids)%k != 0 || len(ids) != len(weights) {
		return compute.Wave{}, fault.Bugf("backend routed %d ids, %d weights, k %d of bank %d", len(ids), len(weights), k, bank)
	}
	r.bank = bank
	if r.onRoute != nil {
		r.onRoute(r.banks[bank].Layer, k, ids, weights)
	}
	if err := r.store.Route(r.banks[bank].Layer, k, ids); err != nil {
		return compute.Wave{}, err
	}
	if r.uses != nil {
		r.uses.Add(r.banks[bank].Layer, k, ids)
	}
	w, err := r.acquire(ids)
	if err == nil {
		// What this layer did not pick after all is taken back, unless its read has begun.
		err = r.store.Cancel(r.banks[bank].Layer, r.guesses.take(bank))
	}
	return w, err
}

// Predict implements [compute.Predictor].
func (r *router) Predict(bank int, ids []int32) error {
	if bank < 0 || bank >= len(r.banks) {
		return fault.Bugf("backend predicted experts of bank %d", bank)
	}
	ids, err := r.guesses.add(bank, r.banks[bank].Experts, ids)
	if err == nil {
		_, err = r.store.Prefetch(r.banks[bank].Layer, ids)
	}
	return err
}

// calmAfter is how many evaluations in a row without a read say that the cache has what the text needs. Guessing takes a twentieth of a
// token that reads nothing, more than the rare miss that it would have foreseen.
const calmAfter = 8

// welcome reports whether guesses about so many tokens are of use: not when everything is in the cache already, or when the last tokens
// found everything there. A prompt may be about something else.
func (r *router) welcome(tokens int) bool {
	return r.predict && r.store != nil && !r.store.Full() && (tokens > 1 || r.calm < calmAfter)
}

// Next implements [compute.Host].
func (r *router) Next() (compute.Wave, error) {
	if !r.held || len(r.batch.Rest) == 0 {
		return compute.Wave{}, fault.Bugf("backend asked for a wave that was not announced")
	}
	r.rest = append(r.rest[:0], r.batch.Rest...) // the batch's own slice is overwritten by the next Acquire
	r.release()
	return r.acquire(r.rest)
}

func (r *router) acquire(experts []int32) (compute.Wave, error) {
	if err := r.store.Acquire(r.banks[r.bank].Layer, experts, &r.batch); err != nil {
		return compute.Wave{}, err
	}
	r.held = true
	if r.onWave != nil {
		r.onWave(r.batch.Layer, r.batch.Slots)
	}
	r.slots = r.slots[:0]
	for i := range r.batch.Slots {
		s := &r.batch.Slots[i]
		out := compute.Slot{Expert: s.Expert, Ready: s.Ready, Gen: s.Gen}
		copy(out.Part[:], s.Parts[:])
		r.slots = append(r.slots, out)
	}
	// The order in which they are read, so that a backend that waits for the first one waits for the right one.
	slices.SortFunc(r.slots, func(a, b compute.Slot) int { return cmp.Compare(a.Expert, b.Expert) })
	return compute.Wave{Slots: r.slots, More: len(r.batch.Rest) > 0}, nil
}

// release ends the wave in progress, if any.
func (r *router) release() {
	if r.held {
		r.store.Release(&r.batch)
		r.held = false
	}
}

// begin starts an evaluation.
func (r *router) begin() {
	if r.store == nil {
		return
	}
	r.store.Tick()
	st := r.store.Stats()
	if read := st.Misses.Experts + st.Used.Experts; read != r.read {
		r.read, r.calm = read, 0
	} else {
		r.calm++
	}
}

// finish ends an evaluation. When it failed because an expert could not be read, the store knows more than the
// backend, which saw only a failed slot: its error is returned instead.
func (r *router) finish(err error) error {
	if err != nil && r.held {
		if cause := r.store.Err(&r.batch); cause != nil {
			err = cause
		}
	}
	r.release()
	for bank := range r.banks { // when it failed, some layers never came to ask
		if ids := r.guesses.take(bank); len(ids) > 0 {
			err = errors.Join(err, r.store.Cancel(r.banks[bank].Layer, ids))
		}
	}
	return err
}

// heed makes the end of ctx end all waits for experts, until the function that it returns is called. It is for a whole request, not
// for each of its evaluations: to watch a context costs allocations.
func (r *router) heed(ctx context.Context) (stop func()) {
	if r.store == nil {
		return func() {}
	}
	interrupted := make(chan struct{})
	unwatch := context.AfterFunc(ctx, func() {
		r.store.Interrupt(ctx.Err())
		close(interrupted)
	})
	return func() {
		if !unwatch() {
			<-interrupted // or it would interrupt the next request
			r.store.Resume()
		}
	}
}

func (r *router) stats() expert.Stats {
	if r.store == nil {
		return expert.Stats{}
	}
	return r.store.Stats()
}
