package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/bigmoe/bigmoe/sdk/compute"
	"github.com/bigmoe/bigmoe/sdk/compute/optable"
)

// Options say which program to check.
type Options struct {
	Path     string
	Args     []string
	Env      []string      // added to this process's environment
	Only     []string      // groups of checks to make, besides the start; default: all of Groups
	Patience time.Duration // for the start and for every answer; default 10 s
	Progress func(Check)   // called after every check; may be nil
}

// Groups are the groups of checks, in the order in which they are made.
func Groups() []string {
	return []string{"start", "ops", "types", "streaming", "rewind", "refusals", "memory", "end"}
}

// Outcome is how a check ended.
type Outcome string

// The outcomes. Only Fail is the backend's mistake.
const (
	Pass        Outcome = "pass"
	Fail        Outcome = "fail"
	Unsupported Outcome = "unsupported" // refused by the backend, in the way that it should
	Skipped     Outcome = "skipped"     // cannot be checked here
)

// Check is one line of the report.
type Check struct {
	Group   string  `json:"group"`
	Name    string  `json:"name"`
	Outcome Outcome `json:"outcome"`
	Why     string  `json:"why,omitempty"` // empty for Pass
}

// Report is what a run found.
type Report struct {
	Backend *compute.Description `json:"backend"` // nil if it did not start
	Checks  []Check              `json:"checks"`
}

// Count returns how many checks ended in that way.
func (r *Report) Count(o Outcome) int {
	n := 0
	for _, c := range r.Checks {
		if c.Outcome == o {
			n++
		}
	}
	return n
}

// Failed returns how many checks failed.
func (r *Report) Failed() int { return r.Count(Fail) }

// Run checks a program. The error is not about the backend: ctx ended, or this machine could not do its part.
func Run(ctx context.Context, o Options) (*Report, error) {
	if o.Patience == 0 {
		o.Patience = 10 * time.Second
	}
	s := &suite{ctx: ctx, o: o, report: &Report{}}
	defer s.stop()
	s.run("start", "shakes hands and answers", s.begins)
	if s.report.Backend != nil {
		s.starts()
		s.ops()
		s.streams()
		s.rewinds()
		s.refusals()
		s.accounts()
		s.ends()
	}
	return s.report, ctx.Err()
}

// suite is a run in progress.
type suite struct {
	ctx    context.Context
	o      Options
	report *Report
	peer   *peer // the program, if it is running
}

// unsupported is the error of a check that the backend refused to take part in.
type unsupported struct{ error }

// skipped is the error of a check that cannot be made.
type skipped struct{ error }

// run makes one check. Whatever it left behind is gone afterwards if it failed.
func (s *suite) run(group, name string, f func() error) {
	if s.ctx.Err() != nil || len(s.o.Only) > 0 && group != "start" && !slices.Contains(s.o.Only, group) {
		return
	}
	c := Check{Group: group, Name: name, Outcome: Pass}
	if err := f(); err != nil {
		c.Why = err.Error()
		var u unsupported
		var k skipped
		switch {
		case errors.As(err, &u):
			c.Outcome = Unsupported
		case errors.As(err, &k):
			c.Outcome = Skipped
		default:
			c.Outcome = Fail
			s.stop()
		}
	}
	s.report.Checks = append(s.report.Checks, c)
	if s.o.Progress != nil {
		s.o.Progress(c)
	}
}

// program returns the running program, started if need be.
func (s *suite) program() (*peer, error) {
	if s.peer != nil && s.peer.alive() {
		return s.peer, nil
	}
	s.stop()
	var err error
	s.peer, err = start(s.ctx, &s.o)
	return s.peer, err
}

// build returns the running program and the model of a case, if the backend has the ops for it.
func (s *suite) build(c *optable.Case) (*peer, *optable.Model, error) {
	if err := s.missing(c.Kinds()); err != nil {
		return nil, nil, err
	}
	p, err := s.program()
	if err != nil {
		return nil, nil, err
	}
	m, err := c.Build()
	return p, m, err
}

// stop ends the running program at once.
func (s *suite) stop() {
	if s.peer != nil {
		s.peer.kill()
		s.peer = nil
	}
}

// missing returns what the backend does not have of these ops.
func (s *suite) missing(kinds []string) error {
	for _, kind := range kinds {
		if !slices.Contains(s.report.Backend.Ops, kind) {
			return unsupported{fmt.Errorf("op %s is not described", kind)}
		}
	}
	return nil
}
