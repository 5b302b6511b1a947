package engine

import (
	"github.com/bigmoe/bigmoe/engine/expert"
	"github.com/bigmoe/bigmoe/engine/usage"
)

// UsageState says what became of the usage profile of a model.
type UsageState string

// The states.
const (
	UsageOff  UsageState = "off"  // no folder
	UsageNew  UsageState = "new"  // nothing is known about this model yet
	UsageUsed UsageState = "used" // the policy knows it, and the cache is warmed from it, if it is large enough
)

// warmShare: a cache of less than one part in so many of all experts is not warmed, because a prompt fills it before it gets to the
// layers that the warmed ones are for (docs/experiments/usage-profile.md).
const warmShare = 4

// warmer knows which experts earlier runs used, and counts those of this one.
type warmer struct {
	dir, id string // dir "" = nothing is kept
	profile *usage.Profile
	count   *usage.Count
	state   UsageState
}

// warm starts reading what earlier runs used most.
func (e *Engine) warm() error {
	e.warmer.state = UsageOff
	store := e.router.store
	if e.cfg.UsageDir == "" || store == nil {
		return nil
	}
	w := &e.warmer
	w.dir, w.id, w.state = e.cfg.UsageDir, e.identity(), UsageNew
	shape := make(usage.Shape, e.Plan.Model.Layers)
	for i := range e.Model.Banks {
		shape[e.Model.Banks[i].Layer] = e.Model.Banks[i].Experts
	}
	w.count = usage.NewCount(shape)
	e.router.uses = w.count
	var err error
	if w.profile, err = usage.Load(w.dir, w.id, shape); err != nil {
		e.cfg.Log.Warn().Err(err).Msg("the cache is not warmed")
		return nil
	}
	best := w.profile.Best()
	if len(best) == 0 {
		return nil
	}
	w.state = UsageUsed
	experts := make([]expert.ID, len(best))
	for i, b := range best {
		experts[i] = expert.ID{Layer: b.Layer, Expert: b.Expert}
		if err := store.Expect(b.Layer, b.Expert, b.Rate); err != nil {
			return err
		}
	}
	if e.Budget.CacheBytes < e.Model.ExpertBytes()/warmShare {
		return nil
	}
	return store.Warm(experts)
}

// remember keeps what this run used. A folder that cannot be written costs the next start its hint, no more.
func (e *Engine) remember() {
	w := &e.warmer
	if w.count == nil {
		return
	}
	p := w.profile.Merge(w.count)
	if p == nil {
		return
	}
	if err := usage.Save(w.dir, w.id, p); err != nil {
		e.cfg.Log.Debug().Err(err).Msg("what this run used is not remembered")
	}
}

// identity names the model for the usage profile.
func (e *Engine) identity() string {
	var tensors []usage.Tensor
	for _, t := range e.File.Tensors() {
		tensors = append(tensors, usage.Tensor{Name: t.Name, Type: uint32(t.Type), Dims: t.Dims, Offset: t.Offset})
	}
	var sizes []int64
	for _, s := range e.File.Shards() {
		sizes = append(sizes, s.Size)
	}
	return usage.Identity(tensors, sizes)
}
