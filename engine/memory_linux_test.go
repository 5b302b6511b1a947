package engine_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/engine/expert"
	"github.com/bigmoe/bigmoe/engine/gguf"
	"github.com/bigmoe/bigmoe/engine/gguf/gguftest"
	"github.com/bigmoe/bigmoe/sdk/dtype"
)

// bigModel writes a random qwen3moe whose experts are 214 MiB in Q8_0 and whose dense weights are 13 MiB, with the
// tokenizer of a golden.
func bigModel(t testing.TB) string {
	t.Helper()
	const width, hidden, experts, layers, heads, headDim = 256, 512, 64, 8, 8, 64
	f, err := gguf.Open(filepath.Join(goldenDir, "qwen3moe/qwen3moe-f32.gguf"))
	require.NoError(t, err)
	defer f.Close()
	b := gguftest.NewBuilder().Set("general.architecture", "qwen3moe")
	for _, key := range []string{"tokenizer.ggml.model", "tokenizer.ggml.pre"} {
		v, _ := f.Get(key)
		s, err := v.String()
		require.NoError(t, err)
		b.Set(key, s)
	}
	for _, key := range []string{"tokenizer.ggml.tokens", "tokenizer.ggml.merges"} {
		v, _ := f.Get(key)
		s, err := v.Strings()
		require.NoError(t, err)
		b.Set(key, s)
	}
	v, _ := f.Get("tokenizer.ggml.tokens")
	vocabulary := uint64(v.Len())
	for key, n := range map[string]uint32{
		"block_count": layers, "context_length": 512, "embedding_length": width, "attention.head_count": heads,
		"attention.head_count_kv": 2, "attention.key_length": headDim, "attention.value_length": headDim,
		"expert_count": experts, "expert_used_count": 4, "expert_feed_forward_length": hidden,
	} {
		b.Set("qwen3moe."+key, n)
	}
	b.Set("qwen3moe.attention.layer_norm_rms_epsilon", float32(1e-6))

	rng := rand.New(rand.NewPCG(1, 2))
	ones := func(name string, n uint64) {
		b.Tensor(name, dtype.F32, []uint64{n}, gguftest.Float32s(repeat(1, n)...))
	}
	float := func(name string, dims ...uint64) {
		n := uint64(1)
		for _, d := range dims {
			n *= d
		}
		x := make([]float32, n)
		for i := range x {
			x[i] = float32(rng.NormFloat64()) / 8
		}
		b.Tensor(name, dtype.F32, dims, gguftest.Float32s(x...))
	}
	quant := func(name string, dims ...uint64) {
		n := uint64(1)
		for _, d := range dims {
			n *= d
		}
		data := make([]byte, n/32*34)
		for i := 0; i < len(data); i += 34 {
			data[i], data[i+1] = 0, 0x14 // scale 2^-10
			for j := i + 2; j < i+34; j++ {
				data[j] = byte(rng.Uint32())
			}
		}
		b.Tensor(name, dtype.Q8_0, dims, data)
	}
	float("token_embd.weight", width, vocabulary)
	ones("output_norm.weight", width)
	for i := range layers {
		blk := fmt.Sprintf("blk.%d.", i)
		ones(blk+"attn_norm.weight", width)
		quant(blk+"attn_q.weight", width, heads*headDim)
		quant(blk+"attn_k.weight", width, 2*headDim)
		quant(blk+"attn_v.weight", width, 2*headDim)
		quant(blk+"attn_output.weight", heads*headDim, width)
		ones(blk+"attn_q_norm.weight", headDim)
		ones(blk+"attn_k_norm.weight", headDim)
		ones(blk+"ffn_norm.weight", width)
		float(blk+"ffn_gate_inp.weight", width, experts)
		quant(blk+"ffn_gate_exps.weight", width, hidden, experts)
		quant(blk+"ffn_up_exps.weight", width, hidden, experts)
		quant(blk+"ffn_down_exps.weight", hidden, width, experts)
	}
	path := filepath.Join(t.TempDir(), "big.gguf")
	require.NoError(t, b.Write(path))
	return path
}

func repeat(x float32, n uint64) []float32 {
	out := make([]float32, n)
	for i := range out {
		out[i] = x
	}
	return out
}

const limitedModel = "BIGMOE_TEST_LIMITED_MODEL" // makes TestMemoryLimit the process that is limited

// TestMemoryLimit runs a model in a memory cgroup that allows five percent more than --mem. Neither limit may be
// reached: page cache of ours counts, and the kernel counts what we forget.
func TestMemoryLimit(t *testing.T) {
	const memBytes = 190 << 20
	if path := os.Getenv(limitedModel); path != "" {
		runLimited(t, path, memBytes)
		return
	}
	if testing.Short() || raceEnabled {
		t.Skip("writes a model of 230 MB; the race detector multiplies memory")
	}
	path := bigModel(t)
	for _, io := range []expert.IOMode{expert.Auto, expert.BufferedOnly} {
		t.Run(string(io), func(t *testing.T) {
			group, peak := newCgroup(t, memBytes+memBytes/20)
			self, err := os.Executable()
			require.NoError(t, err)
			cmd := exec.Command("sh", "-c", `echo $$ > "$0/cgroup.procs" && exec "$@"`, group, self, "-test.run=^TestMemoryLimit$", "-test.v")
			cmd.Env = append(os.Environ(), limitedModel+"="+path, "BIGMOE_TEST_LIMITED_IO="+string(io))
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s", out)
			used := peak()
			t.Logf("peak %d MiB of %d MiB", used>>20, memBytes>>20)
			require.Less(t, used, int64(memBytes+memBytes/20), "the cgroup's limit was reached")
			require.True(t, bytes.Contains(out, []byte("generated 64 tokens")), "%s", out)
		})
	}
}

func runLimited(t *testing.T, path string, memBytes int64) {
	cfg := config(path, backends()["child process"])
	cfg.MemoryBytes, cfg.Context, cfg.Batch = memBytes, 512, 64
	cfg.IO = expert.IOMode(os.Getenv("BIGMOE_TEST_LIMITED_IO"))
	e := open(t, cfg)
	require.Less(t, e.Budget.CacheBytes, e.Model.ExpertBytes(), "the experts must not all fit")
	prompt := make([]int32, 100)
	for i := range prompt {
		prompt[i] = int32(i)
	}
	res, err := e.NewSession().Generate(t.Context(), greedy(prompt, 64), silent)
	require.NoError(t, err)
	require.Positive(t, res.Decode.MissBytes)
	fmt.Printf("generated %d tokens, cache %d MiB of %d MiB\n", len(res.Tokens), e.Budget.CacheBytes>>20, e.Model.ExpertBytes()>>20)
}

// newCgroup makes a memory cgroup (version 1 or 2) and returns its folder and a function that reads its peak.
func newCgroup(t *testing.T, limitBytes int64) (dir string, peak func() int64) {
	t.Helper()
	base, limit, top := "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.max_usage_in_bytes"
	if _, err := os.Stat(base); err != nil {
		base, limit, top = "/sys/fs/cgroup", "memory.max", "memory.peak"
	}
	dir = filepath.Join(base, fmt.Sprintf("bigmoe-test-%d-%d", os.Getpid(), rand.Uint32()))
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Skipf("memory cgroups need root: %v", err)
	}
	t.Cleanup(func() { _ = os.Remove(dir) })
	if err := os.WriteFile(filepath.Join(dir, limit), []byte(strconv.FormatInt(limitBytes, 10)), 0o644); err != nil {
		t.Skipf("memory cgroups are not available: %v", err)
	}
	return dir, func() int64 {
		text, err := os.ReadFile(filepath.Join(dir, top))
		require.NoError(t, err)
		n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
		require.NoError(t, err)
		return n
	}
}

// TestCountersMatchKernel: in direct mode, the bytes that the counters report are the bytes that the kernel counted
// for this process.
func TestCountersMatchKernel(t *testing.T) {
	if testing.Short() {
		t.Skip("writes a model of 230 MB")
	}
	cfg := config(bigModel(t), backends()["child process"])
	cfg.Context, cfg.CacheBytes = 512, 40<<20
	e := open(t, cfg)
	if e.Report().IO != "direct" {
		t.Skipf("no direct reads here: %s", e.Report().IOReason)
	}
	s := e.NewSession()
	_, err := s.Generate(t.Context(), greedy([]int32{1, 2, 3}, 2), silent)
	require.NoError(t, err)
	before, stats := readBytes(t), e.Report().Store
	_, err = s.Generate(t.Context(), greedy([]int32{9, 8, 7}, 40), silent)
	require.NoError(t, err)
	got, now := readBytes(t)-before, e.Report().Store
	want := now.SyscallBytes - stats.SyscallBytes
	require.Positive(t, want)
	require.InEpsilon(t, want, got, 0.01, "counted %d, kernel %d", want, got)
	require.Equal(t, now.Requested.Experts, now.Hits.Experts+now.Misses.Experts)
	require.Equal(t, now.Requested.Bytes, now.Hits.Bytes+now.Misses.Bytes)
}

// readBytes is what this process has caused to be read from storage.
func readBytes(t *testing.T) int64 {
	text, err := os.ReadFile("/proc/self/io")
	require.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		if n, ok := strings.CutPrefix(line, "read_bytes: "); ok {
			v, err := strconv.ParseInt(strings.TrimSpace(n), 10, 64)
			require.NoError(t, err)
			return v
		}
	}
	t.Skip("the kernel does not count reads")
	return 0
}
