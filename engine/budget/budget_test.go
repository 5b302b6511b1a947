package budget

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/sdk/fault"
)

func TestFit(t *testing.T) {
	arena := func(b int64) int64 { return b + b/100 }
	base := Needs{Fixed: []Item{{"dense weights", 800}, {"states", 100}}, ExpertBytes: 10000, MinCache: 500, ArenaBytes: arena}
	tests := []struct {
		name        string
		limit, want int64
		cache       int64 // -1: refused
	}{
		{"everything fits", 20000, 0, 10000},
		{"the rest goes to the cache", 3000, 0, 2080},
		{"just the least", 1405, 0, 500},
		{"one byte short", 1404, 0, -1},
		{"as asked", 20000, 700, 700},
		{"more than all experts", 20000, 50000, 10000},
		{"asked for too much", 3000, 2500, -1},
		{"asked for less than a token", 20000, 499, -1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			n := base
			n.WantCache = tt.want
			f, err := Fit(tt.limit, n)
			if tt.cache < 0 {
				require.Error(t, err)
				require.Equal(t, fault.User, fault.KindOf(err))
				return
			}
			require.NoError(t, err)
			require.LessOrEqual(t, f.TotalBytes, tt.limit)
			require.Equal(t, tt.cache, f.CacheBytes)
			var sum int64
			for _, it := range f.Items {
				sum += it.Bytes
			}
			require.Equal(t, f.TotalBytes, sum)
		})
	}
	_, err := Fit(100, base)
	require.ErrorContains(t, err, "dense weights")
	require.ErrorContains(t, err, "needed, 100 B allowed")
	require.ErrorContains(t, err, "--mem")
}

func TestParseSize(t *testing.T) {
	for text, want := range map[string]int64{"6G": 6 << 30, "6GiB": 6 << 30, "1.5g": 3 << 29, "4000M": 4000 << 20, "512k": 512 << 10, "1048576": 1 << 20, "0": 0} {
		got, err := ParseSize(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
	}
	for _, text := range []string{"", "G", "-1", "6X", "nan", "inf", "1e300G"} {
		_, err := ParseSize(text)
		require.Error(t, err, text)
	}
}

func TestMachineReadsBothCgroupVersions(t *testing.T) {
	write := func(root, name, text string) {
		p := filepath.Join(root, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(p), 0o755))
		require.NoError(t, os.WriteFile(p, []byte(text), 0o644))
	}
	const meminfo = "MemTotal:       16000000 kB\nMemFree: 1 kB\nMemAvailable:   8000000 kB\n"
	tests := []struct {
		name  string
		files map[string]string
		want  int64
	}{
		{"no cgroup", nil, 0},
		{"v1", map[string]string{
			"proc/self/cgroup":                               "5:memory:/a/b\n1:name=x:/\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes":     "9223372036854771712",
			"sys/fs/cgroup/memory/a/memory.limit_in_bytes":   "5000",
			"sys/fs/cgroup/memory/a/b/memory.limit_in_bytes": "7000"}, 5000},
		{"v2", map[string]string{
			"proc/self/cgroup":           "0::/a/b\n",
			"sys/fs/cgroup/a/memory.max": "max", "sys/fs/cgroup/a/b/memory.max": "6000"}, 6000},
		{"v2 in a container: path not visible", map[string]string{
			"proc/self/cgroup": "0::/docker/x\n", "sys/fs/cgroup/memory.max": "4000"}, 4000},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			root := t.TempDir()
			write(root, "proc/meminfo", meminfo)
			for name, text := range tt.files {
				write(root, name, text)
			}
			l, err := machine(root)
			require.NoError(t, err)
			require.Equal(t, int64(16000000<<10), l.TotalBytes)
			require.Equal(t, int64(8000000<<10), l.AvailableBytes)
			require.Equal(t, tt.want, l.CgroupBytes)
			if tt.want > 0 {
				require.Equal(t, tt.want, l.Ceiling())
				require.Less(t, l.Default(), tt.want)
			}
		})
	}
}

// FuzzParseSize: what a person types is a size that fits an int64, or a mistake.
func FuzzParseSize(f *testing.F) {
	for _, text := range []string{"6G", "6GiB", "1.5g", "4000M", "512K", "1048576", "0", "-1", "1e30T", "inf", "NaNG", "0x1p4", "", "B"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		n, err := ParseSize(text)
		if err != nil {
			require.Equal(t, fault.User, fault.KindOf(err))
			return
		}
		require.GreaterOrEqual(t, n, int64(0))
		require.LessOrEqual(t, n, int64(1)<<60)
	})
}
