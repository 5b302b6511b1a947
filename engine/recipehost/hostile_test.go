package recipehost

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/sdk/fault"
)

// Each module in testdata/hostile was compiled from the C source beside it.
var hostile = []struct {
	module string
	kind   fault.Kind
	say    []string
}{
	{"atomics", fault.Unsupported, []string{`"threads" is disabled`}},
	{"bulk", fault.Corrupt, []string{"bigmoe_plan trapped", "out of bounds memory access"}},
	{"divide", fault.Corrupt, []string{"bigmoe_plan trapped", "divide by zero"}},
	{"element", fault.Corrupt, []string{"element 1073741824 of"}},
	{"empty", fault.Unsupported, []string{"schema version 0"}},
	{"escape", fault.Unsupported, []string{"\ufffd[2J\ufffd]0;owned\ufffd\ufffd\ufffd\ufffdroot"}},
	{"exit", fault.Corrupt, []string{"status 3", "good bye"}},
	{"flood", fault.Corrupt, []string{"asked the host more than 100000 times"}},
	{"flood_trap", fault.Corrupt, []string{"bigmoe_plan trapped", `it printed "spam\n\x1b[2Jspam`}},
	{"garbage", fault.Corrupt, []string{"22 bytes that are not a plan"}},
	{"grow", fault.Corrupt, []string{"bigmoe_plan trapped", "unreachable"}},
	{"handle", fault.Corrupt, []string{"metadata handle 12345"}},
	{"import_file", fault.Unsupported, []string{`"path_open"`, `"wasi_snapshot_preview1"`, "packages os, fmt and log bring it along"}},
	{"import_network", fault.Unsupported, []string{`"sock_accept"`}},
	{"import_newer", fault.Unsupported, []string{`"tensor_bytes"`, "which version 2 of the ABI does not have"}},
	{"import_newer_start", fault.Unsupported, []string{`called the function "tensor_bytes"`, "version 2"}},
	{"import_other", fault.Unsupported, []string{`"system"`, `"env"`}},
	{"inconsistent", fault.Corrupt, []string{"embed", `"absent" is not declared`}},
	{"kind", fault.Corrupt, []string{"not me: a mistake in the recipe, for its author"}},
	{"long_message", fault.Unsupported, []string{"xxxx…"}},
	{"loop", fault.Unsupported, []string{"did not finish within its limit of 200ms"}},
	{"loop_asking", fault.Corrupt, []string{"asked the host more than 100000 times"}},
	{"loop_start", fault.Unsupported, []string{"did not finish within its limit of 200ms"}},
	{"loop_version", fault.Unsupported, []string{"did not finish within its limit of 200ms"}},
	{"machine", fault.Corrupt, []string{"02f00000eca875310000000000000000"}},
	{"memory", fault.Unsupported, []string{"needs 134217728 bytes of memory", "16777216"}},
	{"message", fault.Corrupt, []string{"message of 1048576 bytes"}},
	{"newer", fault.Unsupported, []string{"schema version 99"}},
	{"no_export", fault.Corrupt, []string{"bigmoe_plan", "not a recipe"}},
	{"no_version", fault.Corrupt, []string{"bigmoe_abi_version", "not a recipe"}},
	{"pointer", fault.Corrupt, []string{"16 bytes at 0x7ffffff0"}},
	{"pointer_out", fault.Corrupt, []string{"32 bytes at 0xfffffff8"}},
	{"pointer_plan", fault.Corrupt, []string{"15728640 bytes at 0x0"}},
	{"recurse", fault.Corrupt, []string{"bigmoe_plan trapped", "stack overflow"}},
	{"reenter", fault.Corrupt, []string{"second plan"}},
	{"result_huge", fault.Corrupt, []string{"plan of 2147483647 bytes"}},
	{"signature", fault.Corrupt, []string{"bigmoe_plan", "expected 2 params"}},
	{"silent", fault.Corrupt, []string{"without a plan"}},
	{"simd", fault.Unsupported, []string{`"simd" is disabled`}},
	{"tail_call", fault.Unsupported, []string{`"tail-call" is disabled`}},
	{"tensor", fault.Corrupt, []string{"tensor index 1048576 of"}},
	{"threads", fault.Unsupported, []string{"is shared"}},
	{"trap", fault.Corrupt, []string{"bigmoe_plan trapped", "unreachable"}},
	{"trap_start", fault.Corrupt, []string{"_initialize trapped", "unreachable"}},
	{"twice", fault.Corrupt, []string{"second plan"}},
	{"version", fault.Unsupported, []string{"version 3", "this build speaks 1 to 2", "newer bigmoe"}},
	{"version_newer", fault.Unsupported, []string{"version 3", "this build speaks 1 to 2", "newer bigmoe"}},
	{"version_zero", fault.Unsupported, []string{"version 0", "this build speaks 1 to 2"}},
	{"warnings", fault.Corrupt, []string{"warned more than 64 times"}},
	{"wrong_type", fault.Corrupt, []string{"type string as another"}},
}

// hostilePage is the list of all that is hostile.
func hostilePage(t *testing.T) string {
	t.Helper()
	page, err := os.ReadFile("../../docs/hostile.md")
	require.NoError(t, err)
	return string(page)
}

func TestHostileModules(t *testing.T) {
	src := File(open(t, "qwen3moe/qwen3moe-f32.gguf"))
	sources, err := filepath.Glob("testdata/hostile/*.c")
	require.NoError(t, err)
	require.Len(t, hostile, len(sources), "every source has a row")
	page := hostilePage(t)
	for mode, opts := range map[string]Options{"interpreted": {}, "compiled": {CacheDir: t.TempDir()}} {
		// A guest that grows page by page is copied each time: up to 64 MiB the race detector would take longer than the time-out.
		opts.Timeout, opts.MaxCalls, opts.MemoryLimitBytes = 30*time.Second, 100_000, 16<<20
		for _, test := range hostile {
			t.Run(mode+"/"+test.module, func(t *testing.T) {
				module, err := os.ReadFile("testdata/hostile/" + test.module + ".wasm")
				require.NoError(t, err)
				opts := opts
				if strings.HasPrefix(test.say[0], "did not finish") {
					opts.Timeout = 200 * time.Millisecond
				}
				p, _, err := New(opts).Plan(context.Background(), test.module, module, src)
				require.Nil(t, p)
				require.ErrorContains(t, err, `recipe "`+test.module+`": `)
				require.Equal(t, 1, strings.Count(err.Error(), "recipe "), "%v", err)
				for _, say := range test.say {
					require.ErrorContains(t, err, say)
				}
				require.Equal(t, test.kind, fault.KindOf(err), "%v", err)
				require.Less(t, len(err.Error()), 8<<10, "nobody reads on")
				require.True(t, strings.Contains(page, "| `"+test.module+"` |"), "not in docs/hostile.md")
			})
		}
	}
}

// TestSieve gives the host modules whose outline alone would cost a decoder its memory, and modules that recipes have
// no use for.
func TestSieve(t *testing.T) {
	section := func(id byte, body string) string { return string(id) + string(rune(len(body))) + body }
	const many = "\xff\xff\xff\xff\x0f" // 4294967295
	oneFunction := section(1, "\x01\x60\x00\x00") + section(3, "\x01\x00")
	for _, test := range []struct {
		name, sections, say string
	}{
		{"types without end", section(1, many), "claims 4294967295 bytes where 0 are left"},
		{"imports without end", section(2, many+"\x00"), "claims 4294967295"},
		{"section longer than the module", "\x01\x7f", "claims 127 bytes"},
		{"number without end", section(1, "\xff\xff\xff\xff\xff\xff"), "bad number"},
		{"locals without end", oneFunction + section(10, "\x01\x08\x01"+many+"\x7f\x0b"), "more than 4096 local variables"},
		{"body longer than its section", oneFunction + section(10, "\x01\x70\x00"), "claims 112 bytes"},
		{"data longer than the module", section(11, "\x01\x00\x41\x00\x0b"+many), "claims 4294967295"},
		{"globals without end", section(6, many), "claims 4294967295"},
		{"more entries than any recipe has", "\x06\x84\x80\x08\x81\x80\x04" + strings.Repeat("\x7f", 1<<17+1), "list of 65537 entries: at most 65536"},
		{"global of what is computed", section(6, "\x01\x7f\x00\x41\x01\x41\x01\x6a\x0b"), "initial value with the instruction 0x6a"},
		{"passive elements", section(9, "\x01\x01\x00\x00"), "element segment of a kind"},
		{"table", section(4, "\x01\x70\x00"+"\xff\xff\xff\x3f"), "table of 134217727 elements"},
		{"memory", section(5, "\x01\x00\xff\xff\x03"), "needs 4294901760 bytes"},
		{"64-bit memory", section(5, "\x01\x04\x01"), "64-bit"},
		{"imported memory", section(2, "\x01\x03env\x06memory\x02\x00\x01"), `imports the memory "memory" of "env"`},
		{"start", section(8, "\x00"), "start section"},
		{"unknown section", section(13, "\x01\x00\x00"), "section of kind 13"},
		{"bytes too many", section(3, "\x00\x00"), "1 bytes too many in section 3"},
		{"another format", "", "not a WebAssembly module"},
	} {
		t.Run(test.name, func(t *testing.T) {
			head := "\x00asm\x01\x00\x00\x00"
			if test.sections == "" {
				head = "\x00asm\x0d\x00\x01\x00" // a component
			}
			_, _, err := New(Options{}).Plan(context.Background(), "x", []byte(head+test.sections), nil)
			require.ErrorContains(t, err, test.say)
			require.ErrorContains(t, err, `recipe "x": `)
		})
	}
}

func TestModuleTooLarge(t *testing.T) {
	_, _, err := New(Options{MaxModuleBytes: 10}).Plan(context.Background(), "x", make([]byte, 11), nil)
	require.ErrorContains(t, err, "module of 11 bytes: at most 10")
}

func TestCallerGivesUp(t *testing.T) {
	module, err := os.ReadFile("testdata/hostile/loop.wasm")
	require.NoError(t, err)
	src := File(open(t, "qwen3moe/qwen3moe-f32.gguf"))
	ctx, cancel := context.WithCancel(context.Background())
	time.AfterFunc(50*time.Millisecond, cancel)
	_, _, err = New(Options{}).Plan(ctx, "loop", module, src)
	require.True(t, errors.Is(err, context.Canceled), "%v", err)
}

func FuzzSieve(f *testing.F) {
	modules, err := filepath.Glob("testdata/hostile/*.wasm")
	require.NoError(f, err)
	for _, path := range modules {
		module, err := os.ReadFile(path)
		require.NoError(f, err)
		f.Add(module)
	}
	f.Fuzz(func(t *testing.T, module []byte) {
		out, err := sieve(module, 1<<20, offered)
		if err != nil {
			require.Nil(t, out)
			return
		}
		again, err := sieve(out.module, 1<<20, offered)
		require.NoError(t, err)
		require.Equal(t, out.module, again.module, "what is left has no custom sections")
	})
}
