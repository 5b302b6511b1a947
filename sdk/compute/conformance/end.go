package conformance

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/bigmoe/bigmoe/sdk/compute"
	"github.com/bigmoe/bigmoe/sdk/compute/mailbox"
	"github.com/bigmoe/bigmoe/sdk/compute/memory"
	"github.com/bigmoe/bigmoe/sdk/compute/optable"
)

// ends checks all the ways in which a backend ends. Each needs a program of its own.
func (s *suite) ends() {
	s.onLayer("end", "an interrupt is not for it", func(t *text, h *optable.Host, want []float32) error {
		if err := t.peer.cmd.Process.Signal(os.Interrupt); err != nil {
			return skipped{err}
		}
		if t.peer.gone(exitTime / 10) {
			return t.peer.died("when the terminal sent SIGINT")
		}
		return s.sameAgain(t, h, want)
	})
	s.onLayer("end", "shutdown", func(t *text, _ *optable.Host, _ []float32) error {
		if err := t.close(s.ctx); err != nil {
			return err
		}
		return t.peer.shutdown(s.ctx)
	})
	s.onLayer("end", "the engine goes while it is idle", func(t *text, _ *optable.Host, _ []float32) error {
		return orphaned(t.peer)
	})
	s.onLayer("end", "the engine goes while it waits for an answer", func(t *text, h *optable.Host, _ []float32) error {
		if reply, err := t.ask(s.ctx, t.place(t.model.Batch(0, true, 1))); err != nil || reply.Kind != mailbox.Route {
			return fmt.Errorf("expected a route, found %v: %w", reply, err)
		}
		return orphaned(t.peer)
	})
	s.onLayer("end", "the engine goes while it waits for an expert", func(t *text, h *optable.Host, _ []float32) error {
		never := changed{h, func(w *compute.Wave) error {
			for _, slot := range w.Slots {
				t.model.Region.Word(slot.Ready).Store(slot.Gen << compute.GenShift)
			}
			return nil
		}}
		reply, err := t.ask(s.ctx, t.place(t.model.Batch(0, true, 1)))
		if err != nil {
			return err
		}
		wave, err := t.serve(reply, never)
		if err != nil {
			return err
		}
		t.end.Send(wave)
		time.Sleep(50 * time.Millisecond)
		return orphaned(t.peer)
	})
	s.run("end", "the engine goes before it connects", s.deserted)
	s.onLayer("end", "killed, and another takes its place", s.replaced)
}

// orphaned closes the lifeline, as the system does when the engine is gone.
func orphaned(p *peer) error {
	p.lifeline.Close()
	if !p.gone(exitTime) {
		return fmt.Errorf("still there %v after the lifeline closed", exitTime)
	}
	return nil
}

// deserted is what happens when the engine is killed in the middle of a start: nobody else would remove the socket.
func (s *suite) deserted() error {
	mem, err := memory.Create(regionBytes)
	if err != nil {
		return err
	}
	p, stdout, err := spawn(&s.o, mem)
	if err != nil {
		return err
	}
	defer p.kill()
	ctx, cancel := context.WithTimeout(s.ctx, s.o.Patience)
	defer cancel()
	if err := p.connect(ctx, stdout); err != nil {
		return err
	}
	if err := orphaned(p); err != nil {
		return err
	}
	if _, err := os.Stat(p.sockets); !errors.Is(err, os.ErrNotExist) {
		return errors.New("the folder of the socket is still there")
	}
	return nil
}

// replaced kills the program while it computes and starts another with the same region, in which the weights still are.
func (s *suite) replaced(t *text, h *optable.Host, want []float32) error {
	if reply, err := t.ask(s.ctx, t.place(t.model.Batch(0, true, 1))); err != nil || reply.Kind != mailbox.Route {
		return fmt.Errorf("expected a route, found %v: %w", reply, err)
	}
	old := t.peer
	old.end()
	next, err := startIn(s.ctx, &s.o, old.memory)
	if err != nil {
		s.peer = nil
		return err
	}
	s.peer = next
	again, err := next.loadPlaced(s.ctx, t.model, t.bound.Options)
	if err != nil {
		return err
	}
	return s.sameAgain(again, h, want)
}
