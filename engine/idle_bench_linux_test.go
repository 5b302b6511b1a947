package engine_test

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/engine"
)

// BenchmarkIdle keeps an engine open that has just written something, and reports the processor time that both processes use while
// nobody asks for anything, as a share of one core. The cache is warm, or large enough to be filled in the background first.
func BenchmarkIdle(b *testing.B) {
	g, model := loadGolden(b, "qwen3moe/qwen3moe-k-q4_k_m")
	for name, factor := range map[string]int64{"small cache": 2, "everything fits": 1 << 20} {
		b.Run(name, func(b *testing.B) {
			cfg := config(model, backends()["child process"])
			cfg.CacheBytes = factor * leastCache(b, cfg)
			e, err := engine.Open(b.Context(), cfg)
			require.NoError(b, err)
			defer func() { require.NoError(b, e.Close()) }()
			_, err = e.NewSession().Generate(b.Context(), greedy(g.Prompt.IDs, 8), silent)
			require.NoError(b, err)
			time.Sleep(200 * time.Millisecond)
			used := cpuTime(b, os.Getpid()) + cpuTime(b, e.BackendPID())
			for b.Loop() {
				time.Sleep(time.Second)
			}
			used = cpuTime(b, os.Getpid()) + cpuTime(b, e.BackendPID()) - used
			b.ReportMetric(100*used.Seconds()/b.Elapsed().Seconds(), "%cpu")
		})
	}
}

// cpuTime is the processor time of a process: to the microsecond of this one, to the hundredth of a second of another.
func cpuTime(b *testing.B, pid int) time.Duration {
	if pid == os.Getpid() {
		var r syscall.Rusage
		require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &r))
		return time.Duration(r.Utime.Nano() + r.Stime.Nano())
	}
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	require.NoError(b, err)
	fields := strings.Fields(string(raw[strings.LastIndexByte(string(raw), ')')+2:]))
	var ticks [2]int64
	_, err = fmt.Sscan(fields[11]+" "+fields[12], &ticks[0], &ticks[1])
	require.NoError(b, err)
	return time.Duration(ticks[0]+ticks[1]) * 10 * time.Millisecond
}
