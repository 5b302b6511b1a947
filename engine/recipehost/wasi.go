package recipehost

import (
	"encoding/binary"

	"github.com/tetratelabs/wazero/api"

	"github.com/bigmoe/bigmoe/sdk/fault"
)

const (
	wasiOK        = 0
	wasiBadFile   = 8
	wasiEventSize = 32
)

// wasi is what the runtime of a Go guest imports whether or not it is used. None of it reaches the machine: there are
// no arguments and no environment, the clock counts its own readings, random bytes are the same in every run, and
// what is printed is kept for the error message.
var wasi = []hostFunction{
	{"args_sizes_get", twoI, oneI, noStrings},
	{"args_get", twoI, oneI, func(_ *session, _ api.Module, st []uint64) { st[0] = wasiOK }},
	{"environ_sizes_get", twoI, oneI, noStrings},
	{"environ_get", twoI, oneI, func(_ *session, _ api.Module, st []uint64) { st[0] = wasiOK }},
	{"sched_yield", none, oneI, func(_ *session, _ api.Module, st []uint64) { st[0] = wasiOK }},
	{"proc_exit", oneI, none, func(s *session, _ api.Module, st []uint64) {
		said := ""
		if len(s.output) > 0 {
			said = ": " + string(s.output)
		}
		s.end(fault.Corruptf("exited with status %d%s", i32(st[0]), said))
	}},
	{"clock_time_get", []api.ValueType{api.ValueTypeI32, api.ValueTypeI64, api.ValueTypeI32}, oneI, func(s *session, m api.Module, st []uint64) {
		s.clock += 1e6
		binary.LittleEndian.PutUint64(s.memory(m, u32(st[2]), 8), s.clock)
		st[0] = wasiOK
	}},
	{"random_get", twoI, oneI, func(s *session, m api.Module, st []uint64) {
		buf := s.memory(m, u32(st[0]), u32(st[1]))
		for i := range buf { // Weyl sequence: hash seeds need to be somewhat spread, not secret
			s.random += 0x9e3779b97f4a7c15
			buf[i] = byte(s.random >> 56)
		}
		st[0] = wasiOK
	}},
	{"fd_write", forI, oneI, func(s *session, m api.Module, st []uint64) {
		fd, vec, n, written := u32(st[0]), u32(st[1]), u32(st[2]), u32(st[3])
		if fd != 1 && fd != 2 {
			st[0] = wasiBadFile
			return
		}
		total := uint32(0)
		for pairs := s.memory(m, vec, min(n, 1024)*8); len(pairs) > 0; pairs = pairs[8:] {
			text := s.memory(m, binary.LittleEndian.Uint32(pairs), binary.LittleEndian.Uint32(pairs[4:]))
			s.output = append(s.output, text[:min(len(text), maxOutput-len(s.output))]...)
			total += uint32(len(text))
		}
		binary.LittleEndian.PutUint32(s.memory(m, written, 4), total)
		st[0] = wasiOK
	}},
	// All sleeps are over at once.
	{"poll_oneoff", forI, oneI, func(s *session, m api.Module, st []uint64) {
		in, out, n := u32(st[0]), u32(st[1]), u32(st[2])
		if n > 1024 {
			s.end(fault.Corruptf("waits for %d events at once", n))
		}
		const subscriptionSize = 48
		subs, events := s.memory(m, in, n*subscriptionSize), s.memory(m, out, n*wasiEventSize)
		for i := range int(n) {
			event := events[i*wasiEventSize:][:wasiEventSize]
			clear(event)
			copy(event[:8], subs[i*subscriptionSize:][:8]) // whose event it is
		}
		s.clock += 1e9
		binary.LittleEndian.PutUint32(s.memory(m, u32(st[3]), 4), n)
		st[0] = wasiOK
	}},
}

// noStrings says that a list is empty: no entries, no bytes.
func noStrings(s *session, m api.Module, st []uint64) {
	for _, ptr := range st[:2] {
		binary.LittleEndian.PutUint32(s.memory(m, u32(ptr), 4), 0)
	}
	st[0] = wasiOK
}
