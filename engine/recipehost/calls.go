package recipehost

import (
	"context"
	"errors"
	"math"
	"strings"
	"unicode"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"

	"github.com/bigmoe/bigmoe/engine/gguf"
	"github.com/bigmoe/bigmoe/sdk/fault"
)

const (
	moduleName   = "bigmoe_v1"
	wasiName     = "wasi_snapshot_preview1"
	arrayFlag    = 0x100   // in the answer of meta_type
	maxNameBytes = 1 << 16 // of a key, tensor name or message
	maxElements  = 1 << 22 // of arrays, all that are looked into together
	maxOutput    = 4 << 10 // bytes of what the module prints or says that people get to see
	maxWarnings  = 64
)

// session is one run of a module: what it asks about, what it answered, what it has used.
type session struct {
	opts    Options
	src     Source
	tensors []gguf.Tensor
	index   map[string]int32 // of tensors by name; made when first needed

	newer    []foreign // functions the module imports and this build lacks
	handles  map[string]int32
	metas    []*meta
	elements int
	calls    int
	clock    uint64 // nanoseconds; every reading takes a millisecond, so that no machine differs from another
	random   uint64
	output   []byte
	warnings int

	result []byte
	used   Usage
	err    error // why the session ended the module
}

// meta is a key that was found, with its elements once they are looked into.
type meta struct {
	Meta
	ints   []int64
	floats []float64
	texts  []string
}

// errEnd unwinds a module whose session has ended. It never leaves this package.
var errEnd = errors.New("recipe ended by its host")

// end stops the module at once.
func (s *session) end(err error) {
	if s.err == nil {
		s.err = err
	}
	panic(errEnd)
}

// call counts a call of the module and gives up on one that does nothing else.
func (s *session) call() {
	if s.calls++; s.calls > s.opts.MaxCalls {
		s.end(fault.Corruptf("asked the host more than %d times", s.opts.MaxCalls))
	}
}

// unread returns the keys of arch that the file has and the module did not ask for. vocab_size is none of them: files of
// all architectures have it, and the list of tokens says the same.
func (s *session) unread(arch string) (keys []string) {
	for _, key := range s.src.Keys() {
		if _, asked := s.handles[key]; !asked && strings.HasPrefix(key, arch+".") && key != arch+".vocab_size" {
			keys = append(keys, key)
		}
	}
	return keys
}

// memory returns part of the module's memory, to be used before the module runs on.
func (s *session) memory(m api.Module, ptr, size uint32) []byte {
	b, ok := m.Memory().Read(ptr, size)
	if !ok {
		s.end(fault.Corruptf("passed a pointer out of its memory: %d bytes at %#x", size, ptr))
	}
	return b
}

func (s *session) name(m api.Module, ptr, size uint32) string {
	if size > maxNameBytes {
		s.end(fault.Corruptf("passed a name or message of %d bytes: at most %d are taken", size, maxNameBytes))
	}
	return string(s.memory(m, ptr, size))
}

// message is what the module has to say to people: no control characters, no more of it than they would read.
func (s *session) message(m api.Module, ptr, size uint32) string {
	text := s.name(m, ptr, size)
	if len(text) > maxOutput {
		text = text[:maxOutput] + "…"
	}
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return unicode.ReplacementChar
		}
		return r
	}, text)
}

// give copies text into the module's buffer, as much as fits, and returns how long it is.
func (s *session) give(m api.Module, text string, buf, capBytes uint32) uint64 {
	copy(s.memory(m, buf, min(capBytes, uint32(len(text)))), text)
	return uint64(uint32(len(text)))
}

func (s *session) meta(handle int32) *meta {
	if handle < 0 || int(handle) >= len(s.metas) {
		s.end(fault.Corruptf("used metadata handle %d, which it was not given", handle))
	}
	return s.metas[handle]
}

func (s *session) tensor(i int32) *gguf.Tensor {
	if i < 0 || int(i) >= len(s.tensors) {
		s.end(fault.Corruptf("used tensor index %d of %d", i, len(s.tensors)))
	}
	return &s.tensors[i]
}

// element returns one element of a metadata value; elems holds the elements once get was called.
func element[T any](s *session, v *meta, elems *[]T, get func() ([]T, error), ok bool, index int32) T {
	switch {
	case !ok || get == nil:
		s.end(fault.Corruptf("read metadata of type %v as another", v.Type))
	case index < 0 || int(index) >= v.Len:
		s.end(fault.Corruptf("read element %d of %d", index, v.Len))
	case *elems == nil:
		if s.elements += v.Len; s.elements > maxElements {
			s.end(fault.Corruptf("looked into metadata arrays of more than %d elements", maxElements))
		}
		all, err := get()
		if err != nil {
			s.end(err)
		}
		*elems = all
	}
	return (*elems)[index]
}

func i32(v uint64) int32  { return int32(uint32(v)) }
func ret(v int32) uint64  { return uint64(uint32(v)) }
func u32(v uint64) uint32 { return uint32(v) }

// hostFunction is one function that a module may import. It reads its parameters from the stack and leaves its result there.
type hostFunction struct {
	name    string
	params  []api.ValueType
	results []api.ValueType
	run     func(s *session, m api.Module, stack []uint64)
}

var (
	none = []api.ValueType{}
	oneI = []api.ValueType{api.ValueTypeI32}
	twoI = []api.ValueType{api.ValueTypeI32, api.ValueTypeI32}
	triI = []api.ValueType{api.ValueTypeI32, api.ValueTypeI32, api.ValueTypeI32}
	forI = []api.ValueType{api.ValueTypeI32, api.ValueTypeI32, api.ValueTypeI32, api.ValueTypeI32}
	oneL = []api.ValueType{api.ValueTypeI64}
	oneD = []api.ValueType{api.ValueTypeF64}
)

// functions are the calls of docs/recipe-abi.md.
var functions = []hostFunction{
	{"meta_find", twoI, oneI, func(s *session, m api.Module, st []uint64) {
		key := s.name(m, u32(st[0]), u32(st[1]))
		handle, seen := s.handles[key]
		if !seen {
			v, ok := s.src.Meta(key)
			if !ok { // not remembered: there is no end of keys that a file lacks
				st[0] = ret(-1)
				return
			}
			handle = int32(len(s.metas))
			s.metas = append(s.metas, &meta{Meta: v})
			s.handles[key] = handle
		}
		st[0] = ret(handle)
	}},
	{"meta_type", oneI, oneI, func(s *session, _ api.Module, st []uint64) {
		v := s.meta(i32(st[0]))
		st[0] = uint64(v.Type)
		if v.Array {
			st[0] |= arrayFlag
		}
	}},
	{"meta_len", oneI, oneI, func(s *session, _ api.Module, st []uint64) {
		st[0] = uint64(min(s.meta(i32(st[0])).Len, math.MaxInt32))
	}},
	{"meta_int", twoI, oneL, func(s *session, _ api.Module, st []uint64) {
		v := s.meta(i32(st[0]))
		whole := v.Type != gguf.String && v.Type != gguf.Float32 && v.Type != gguf.Float64
		st[0] = uint64(element(s, v, &v.ints, v.Ints, whole, i32(st[1])))
	}},
	{"meta_float", twoI, oneD, func(s *session, _ api.Module, st []uint64) {
		v := s.meta(i32(st[0]))
		real := v.Type == gguf.Float32 || v.Type == gguf.Float64
		st[0] = api.EncodeF64(element(s, v, &v.floats, v.Floats, real, i32(st[1])))
	}},
	{"meta_text", forI, oneI, func(s *session, m api.Module, st []uint64) {
		v := s.meta(i32(st[0]))
		text := element(s, v, &v.texts, v.Texts, v.Type == gguf.String, i32(st[1]))
		st[0] = s.give(m, text, u32(st[2]), u32(st[3]))
	}},
	{"tensor_count", none, oneI, func(s *session, _ api.Module, st []uint64) {
		st[0] = uint64(len(s.tensors))
	}},
	{"tensor_find", twoI, oneI, func(s *session, m api.Module, st []uint64) {
		if s.index == nil {
			s.index = make(map[string]int32, len(s.tensors))
			for i := range s.tensors {
				s.index[s.tensors[i].Name] = int32(i)
			}
		}
		i, ok := s.index[s.name(m, u32(st[0]), u32(st[1]))]
		if !ok {
			i = -1
		}
		st[0] = ret(i)
	}},
	{"tensor_name", triI, oneI, func(s *session, m api.Module, st []uint64) {
		st[0] = s.give(m, s.tensor(i32(st[0])).Name, u32(st[1]), u32(st[2]))
	}},
	{"tensor_type", oneI, oneI, func(s *session, _ api.Module, st []uint64) {
		st[0] = uint64(s.tensor(i32(st[0])).Type)
	}},
	{"tensor_dims", twoI, oneI, func(s *session, m api.Module, st []uint64) {
		t := s.tensor(i32(st[0]))
		out := s.memory(m, u32(st[1]), 4*8)
		for d := range 4 {
			for k, n := 0, t.Dim(d); k < 8; k++ {
				out[d*8+k] = byte(n >> (8 * k))
			}
		}
		st[0] = uint64(len(t.Dims))
	}},
	{"fail", triI, none, func(s *session, m api.Module, st []uint64) {
		message := s.message(m, u32(st[1]), u32(st[2]))
		switch fault.Kind(u32(st[0])) {
		case fault.Corrupt:
			s.end(fault.Corruptf("%s", message))
		case fault.User:
			s.end(fault.Userf("%s", message))
		case fault.Unsupported:
			s.end(fault.Unsupportedf("%s", message))
		}
		// The recipe is the file that is wrong: nobody should report this as a bug of bigmoe.
		s.end(fault.Corruptf("%s: a mistake in the recipe, for its author", message))
	}},
	{"warn", twoI, none, func(s *session, m api.Module, st []uint64) {
		if s.warnings++; s.warnings > maxWarnings {
			s.end(fault.Corruptf("warned more than %d times", maxWarnings))
		}
		if text := s.message(m, u32(st[0]), u32(st[1])); s.opts.Warn != nil {
			s.opts.Warn(text)
		}
	}},
	{"plan", twoI, none, func(s *session, m api.Module, st []uint64) {
		size := u32(st[1])
		if int64(size) > int64(s.opts.MaxResultBytes) {
			s.end(fault.Corruptf("returned a plan of %d bytes: at most %d are taken", size, s.opts.MaxResultBytes))
		}
		if s.result != nil {
			s.end(fault.Corruptf("returned a second plan"))
		}
		s.result = append([]byte{}, s.memory(m, u32(st[0]), size)...)
	}},
}

// hostModules is everything that a module may import.
var hostModules = map[string][]hostFunction{moduleName: functions, wasiName: wasi}

func offered(module, name string) bool {
	for _, f := range hostModules[module] {
		if f.name == name {
			return true
		}
	}
	return false
}

// offer defines the functions that modules may import.
func (s *session) offer(ctx context.Context, r wazero.Runtime) error {
	for module, list := range hostModules {
		b := r.NewHostModuleBuilder(module)
		for _, f := range list {
			b.NewFunctionBuilder().WithGoModuleFunction(api.GoModuleFunc(func(_ context.Context, m api.Module, stack []uint64) {
				s.call()
				f.run(s, m, stack)
			}), f.params, f.results).Export(f.name)
		}
		if module == moduleName {
			s.offerNewer(b)
		}
		if _, err := b.Instantiate(ctx); err != nil {
			return err
		}
	}
	return nil
}

// offerNewer defines what this build lacks, so that a module lives long enough to say which version it was written for.
func (s *session) offerNewer(b wazero.HostModuleBuilder) {
	for _, f := range s.newer {
		b.NewFunctionBuilder().WithGoModuleFunction(api.GoModuleFunc(func(context.Context, api.Module, []uint64) {
			s.end(fault.Unsupportedf("called the function %q of %q, which this build lacks: it speaks version %d of the ABI",
				f.name, moduleName, ABIVersion))
		}), f.params, f.results).Export(f.name)
	}
}
