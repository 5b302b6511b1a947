package recipehost

import (
	"bytes"
	"encoding/binary"

	"github.com/tetratelabs/wazero/api"

	"github.com/bigmoe/bigmoe/sdk/fault"
)

// Limits on a module's own structure. Go's largest recipes stay below a tenth of them.
const (
	maxEntries   = 1 << 16   // of any section
	maxBodyBytes = 256 << 10 // of one function
	maxLocals    = 4096      // of one function
	maxTable     = 1 << 18   // elements
	maxNewer     = 64        // functions of ours that this build lacks
)

// outline is what a module is before its code is looked at.
type outline struct {
	module []byte // without its custom sections
	types  []signature

	// newer are functions of our own that it imports and this build lacks: it was written for a later version of the
	// ABI, which it can only say once it runs.
	newer []foreign
}

type signature struct{ params, results []api.ValueType }

type foreign struct {
	name string
	signature
}

// sieve checks the outline of a module before a runtime sees it.
//
// A WebAssembly decoder allocates what the counts in a module claim, which can end the process before any limit of the
// runtime applies. So every count is held against the bytes that follow it, and what a recipe has no use for is
// refused: imports other than the functions offered, several memories, large tables. The code itself is left to the
// runtime's validation.
func sieve(module []byte, memoryLimitBytes int64, offered func(module, name string) bool) (o *outline, err error) {
	if len(module) < 8 || !bytes.Equal(module[:8], []byte("\x00asm\x01\x00\x00\x00")) {
		return nil, fault.Corruptf("not a WebAssembly module of version 1")
	}
	defer func() {
		if bad, ok := recover().(refusal); ok {
			o, err = nil, bad.error
		}
	}()
	o = &outline{module: append(make([]byte, 0, len(module)), module[:8]...)}
	r := reader{data: module[8:]}
	for len(r.data) > 0 {
		whole := r.data
		id := r.byte()
		s := reader{data: r.take(r.count())}
		if id == customSection {
			continue
		}
		o.section(&s, id, memoryLimitBytes, offered)
		if len(s.data) != 0 {
			refuse(fault.Corruptf("malformed module: %d bytes too many in section %d", len(s.data), id))
		}
		o.module = append(o.module, whole[:len(whole)-len(r.data)]...)
	}
	return o, nil
}

// The sections of the binary format.
const (
	customSection    = 0
	typeSection      = 1
	importSection    = 2
	functionSection  = 3
	tableSection     = 4
	memorySection    = 5
	globalSection    = 6
	exportSection    = 7
	startSection     = 8
	elementSection   = 9
	codeSection      = 10
	dataSection      = 11
	dataCountSection = 12
)

func (o *outline) section(r *reader, id byte, memoryLimitBytes int64, offered func(module, name string) bool) {
	switch id {
	case startSection:
		refuse(fault.Unsupportedf("has a start section, which runs before the module can be checked"))
	case dataCountSection:
		r.u32()
		return
	}
	for range r.entries() {
		switch id {
		case typeSection:
			if r.byte() != 0x60 {
				refuse(fault.Unsupportedf("defines a type that is not a function"))
			}
			params := r.take(r.entries())
			o.types = append(o.types, signature{params, r.take(r.entries())})
		case importSection:
			module, name := r.name(), r.name()
			kind := r.byte()
			ours := module == moduleName && len(o.newer) < maxNewer
			if kind != 0 || !offered(module, name) && !ours {
				why := ""
				if module == wasiName {
					why = ": there are no files; in Go, packages os, fmt and log bring it along, strconv does not"
				}
				refuse(fault.Unsupportedf("imports %s %q of %q, which recipes may not%s", importKind(kind), name, module, why))
			}
			typ := r.u32()
			if int64(typ) >= int64(len(o.types)) {
				refuse(fault.Corruptf("malformed module: type %d of %d", typ, len(o.types)))
			}
			if !offered(module, name) {
				o.newer = append(o.newer, foreign{name, o.types[typ]})
			}
		case functionSection:
			r.u32()
		case tableSection:
			r.byte()
			if minimum := r.limits(); minimum > maxTable {
				refuse(fault.Unsupportedf("needs a table of %d elements: at most %d are given", minimum, maxTable))
			}
		case memorySection:
			if minimum := int64(r.limits()) * pageBytes; minimum > memoryLimitBytes {
				refuse(fault.Unsupportedf("needs %d bytes of memory: at most %d are given", minimum, memoryLimitBytes))
			}
		case globalSection:
			r.take(2) // type, mutability
			r.constant()
		case exportSection:
			r.name()
			r.byte()
			r.u32()
		case elementSection:
			if r.byte() != 0 {
				refuse(fault.Unsupportedf("has an element segment of a kind that recipes have no use for"))
			}
			r.constant()
			for range r.entries() {
				r.u32()
			}
		case codeSection:
			size := r.count()
			if size > maxBodyBytes {
				refuse(fault.Unsupportedf("has a function of %d bytes: at most %d are taken", size, maxBodyBytes))
			}
			body := reader{data: r.take(size)}
			locals := 0
			for range body.entries() {
				n := int(body.u32())
				if locals += n; n > maxLocals || locals > maxLocals {
					refuse(fault.Unsupportedf("has a function of more than %d local variables", maxLocals))
				}
				body.byte()
			}
		case dataSection:
			switch r.byte() {
			case 0:
				r.constant()
			case 2:
				r.u32()
				r.constant()
			}
			r.take(r.count())
		default:
			refuse(fault.Unsupportedf("has a section of kind %d, which recipes have no use for", id))
		}
	}
}

func importKind(kind byte) string {
	switch kind {
	case 0:
		return "the function"
	case 1:
		return "the table"
	case 2:
		return "the memory"
	case 3:
		return "the global"
	}
	return "something"
}

// refusal carries the error out of the nested reads.
type refusal struct{ error }

func refuse(err error) { panic(refusal{err}) }

// reader consumes a part of a module and refuses the module where bytes are missing.
type reader struct{ data []byte }

func (r *reader) take(n int) []byte {
	if n > len(r.data) {
		refuse(fault.Corruptf("malformed module: %d bytes expected where %d are left", n, len(r.data)))
	}
	out := r.data[:n]
	r.data = r.data[n:]
	return out
}

func (r *reader) byte() byte { return r.take(1)[0] }

func (r *reader) u32() uint32 {
	v, n := binary.Uvarint(r.data[:min(len(r.data), 5)])
	if n <= 0 || v > 1<<32-1 {
		refuse(fault.Corruptf("malformed module: bad number"))
	}
	r.data = r.data[n:]
	return uint32(v)
}

// count reads the number of bytes that follow.
func (r *reader) count() int {
	n := r.u32()
	if uint64(n) > uint64(len(r.data)) {
		refuse(fault.Corruptf("malformed module: claims %d bytes where %d are left", n, len(r.data)))
	}
	return int(n)
}

// entries reads the number of entries that follow; each takes a byte at least.
func (r *reader) entries() int {
	n := r.count()
	if n > maxEntries {
		refuse(fault.Unsupportedf("has a list of %d entries: at most %d are taken", n, maxEntries))
	}
	return n
}

func (r *reader) name() string { return string(r.take(r.count())) }

func (r *reader) limits() (minimum uint32) {
	flags := r.byte()
	if flags > 1 {
		refuse(fault.Unsupportedf("has a memory or table that is shared or has 64-bit addresses"))
	}
	minimum = r.u32()
	if flags == 1 {
		r.u32()
	}
	return minimum
}

// constant skips a constant expression: an initial value or an offset.
func (r *reader) constant() {
	for {
		switch op := r.byte(); op {
		case 0x0b: // end
			return
		case 0x41, 0x42, 0x23: // i32.const, i64.const, global.get
			for r.byte() >= 0x80 {
			}
		case 0x43: // f32.const
			r.take(4)
		case 0x44: // f64.const
			r.take(8)
		default:
			refuse(fault.Unsupportedf("has an initial value with the instruction %#x, which recipes have no use for", op))
		}
	}
}
