package conformance

import (
	"fmt"

	"github.com/bigmoe/bigmoe/sdk/compute"
	"github.com/bigmoe/bigmoe/sdk/compute/optable"
)

// slackBytes is what a process may take beyond what it announced: stacks and garbage that nobody can count.
const slackBytes = 8 << 20

// accounts holds what Prepare says to what the process takes.
func (s *suite) accounts() {
	s.run("memory", "states grow with the context", func() error {
		little, err := s.needs(1024)
		if err != nil {
			return err
		}
		much, err := s.needs(4096)
		if err != nil {
			return err
		}
		if much.StateBytes <= little.StateBytes {
			return fmt.Errorf("states of %d bytes for 1024 positions and of %d for 4096", little.StateBytes, much.StateBytes)
		}
		return nil
	})
	s.run("memory", "what it announced is what it takes", s.measured)
}

const longContext, longBatch = 4096, 256

// needs asks for a cache of 4 KiB for each position.
func (s *suite) needs(context uint32) (*compute.Needs, error) {
	p, m, err := s.build(optable.LongCache())
	if err != nil {
		return nil, err
	}
	msg, err := m.Options(&compute.Options{Context: context, Batch: longBatch, LogitRows: 1, Threads: 2, KvType: compute.KVType_F32}).Message()
	if err != nil {
		return nil, err
	}
	return p.prepare(s.ctx, msg)
}

// measured fills a long cache and looks at the process.
func (s *suite) measured() error {
	needs, err := s.needs(longContext)
	if err != nil {
		return err
	}
	s.stop() // what earlier plans left would be counted
	p, m, err := s.build(optable.LongCache())
	if err != nil {
		return err
	}
	m.Bound.Options = &compute.Options{Context: longContext, Batch: longBatch, LogitRows: 1, Threads: 2, KvType: compute.KVType_F32}
	t, err := p.load(s.ctx, m, nil)
	if err != nil {
		return err
	}
	tokens := make([]int32, longBatch)
	for i := range tokens {
		tokens[i] = int32(i % optable.Tokens)
	}
	for range longContext / longBatch {
		if _, err := t.eval(s.ctx, optable.NewHost(m), false, tokens...); err != nil {
			return err
		}
	}
	took, err := privateBytes(p.cmd.Process.Pid)
	if err != nil {
		return skipped{err}
	}
	said := needs.StateBytes + needs.ScratchBytes + needs.ProcessBytes
	if took > said+said/20+slackBytes {
		return fmt.Errorf("it takes %d MiB besides the region; it announced %d MiB (states %d, scratch %d, process %d)",
			took>>20, said>>20, needs.StateBytes>>20, needs.ScratchBytes>>20, needs.ProcessBytes>>20)
	}
	return nil
}
