// Package budget decides how much memory a model may take and shows the arithmetic.
//
//	limit, err := budget.Machine()
//	plan, err := budget.Fit(limit.Default(), needs)
//
// One number covers both processes, page cache of ours included: dense weights, states, scratch, expert arena and
// overhead must fit into it. Machine reads /proc and the memory cgroups (v1 and v2) above the process; elsewhere it
// knows the physical memory only. The package holds no state and is safe for concurrent use.
package budget

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/bigmoe/bigmoe/sdk/fault"
)

// Limit is what the machine allows.
type Limit struct {
	TotalBytes     int64 // physical memory
	AvailableBytes int64 // of it not in use now
	CgroupBytes    int64 // smallest limit of the cgroups above us; 0 = none
	CgroupPath     string
}

// Ceiling is the most that any --mem may ask for: physical memory or the tightest cgroup, whichever is less.
func (l Limit) Ceiling() int64 {
	if l.CgroupBytes > 0 && l.CgroupBytes < l.TotalBytes {
		return l.CgroupBytes
	}
	return l.TotalBytes
}

// Default is the limit when nobody gave one: what is free now, less headroom for everything else on the machine (an
// eighth, at least 512 MiB), and never more than 31/32 of a cgroup limit.
func (l Limit) Default() int64 {
	free := l.AvailableBytes
	if free <= 0 {
		free = l.TotalBytes / 2
	}
	bytes := free - max(free/8, 512<<20)
	if l.CgroupBytes > 0 {
		bytes = min(bytes, l.CgroupBytes-l.CgroupBytes/32)
	}
	return max(bytes, 0)
}

// Item is one line of the arithmetic.
type Item struct {
	Name  string `json:"name"`
	Bytes int64  `json:"bytes"`
}

// Needs is what a model takes, apart from the expert cache.
type Needs struct {
	Fixed       []Item // everything that is there whatever the cache size
	ExpertBytes int64  // all experts: more cache than this is useless
	MinCache    int64  // the experts that one token needs at once
	WantCache   int64  // asked for by the user; 0 = as much as fits
	// ArenaBytes says how much memory a cache of that many payload bytes takes, alignment slack included. It must
	// not decrease.
	ArenaBytes func(cacheBytes int64) int64
}

// Fitted is a decision: the cache size and the sum it is part of.
type Fitted struct {
	LimitBytes int64  `json:"limit_bytes"`
	CacheBytes int64  `json:"cache_bytes"` // payload bytes of experts
	Items      []Item `json:"items"`       // fixed items and the arena
	TotalBytes int64  `json:"total_bytes"`
}

// Fit finds the largest useful cache within limitBytes. When even the smallest does not fit, or the wanted one does
// not, the error ([fault.User]) shows the sum and what would be enough.
func Fit(limitBytes int64, n Needs) (*Fitted, error) {
	var fixed int64
	for _, it := range n.Fixed {
		fixed += it.Bytes
	}
	ceiling := n.ExpertBytes
	cache := ceiling
	if n.WantCache > 0 {
		cache = min(n.WantCache, ceiling)
		if cache < n.MinCache {
			return nil, fault.Userf("--cache %s is too small: one token's experts of one layer take %s", Size(n.WantCache), Size(n.MinCache))
		}
	}
	if over := fixed + n.ArenaBytes(cache) - limitBytes; over > 0 {
		if n.WantCache > 0 {
			return nil, tooSmall(limitBytes, fixed, n, cache)
		}
		// The largest cache that fits: ArenaBytes does not decrease, so halve the interval.
		low, high := n.MinCache, cache // low fits or nothing does, high does not fit
		if fixed+n.ArenaBytes(low) > limitBytes {
			return nil, tooSmall(limitBytes, fixed, n, low)
		}
		for high-low > 1 {
			if mid := low + (high-low)/2; fixed+n.ArenaBytes(mid) > limitBytes {
				high = mid
			} else {
				low = mid
			}
		}
		cache = low
	}
	f := &Fitted{LimitBytes: limitBytes, CacheBytes: cache, TotalBytes: fixed + n.ArenaBytes(cache)}
	f.Items = append(append(f.Items, n.Fixed...), Item{"expert arena", n.ArenaBytes(cache)})
	return f, nil
}

func tooSmall(limitBytes, fixed int64, n Needs, cache int64) error {
	var b strings.Builder
	for _, it := range n.Fixed {
		fmt.Fprintf(&b, "\n  %10s  %s", Size(it.Bytes), it.Name)
	}
	what := "expert arena (the least: one token's experts of one layer)"
	if n.WantCache > 0 {
		what = "expert arena for --cache " + Size(cache)
	}
	arena := n.ArenaBytes(cache)
	fmt.Fprintf(&b, "\n  %10s  %s", Size(arena), what)
	fmt.Fprintf(&b, "\n  %10s  needed, %s allowed", Size(fixed+arena), Size(limitBytes))
	return fault.Userf("memory limit of %s is too small:%s\nuse --mem %s or more, or a smaller --ctx", Size(limitBytes), b.String(), flagSize(fixed+arena))
}

// Size prints bytes for people: 4.2 GiB, 156 MiB, 12 KiB.
func Size(bytes int64) string {
	switch {
	case bytes >= 10<<30:
		return fmt.Sprintf("%.1f GiB", float64(bytes)/(1<<30))
	case bytes >= 1<<30:
		return fmt.Sprintf("%.2f GiB", float64(bytes)/(1<<30))
	case bytes >= 10<<20:
		return fmt.Sprintf("%d MiB", bytes>>20)
	case bytes >= 1<<20:
		return fmt.Sprintf("%.1f MiB", float64(bytes)/(1<<20))
	case bytes >= 1<<10:
		return fmt.Sprintf("%d KiB", bytes>>10)
	}
	return fmt.Sprintf("%d B", bytes)
}

// flagSize prints bytes, rounded up, the way ParseSize reads them.
func flagSize(bytes int64) string { return fmt.Sprintf("%dM", (bytes+1<<20-1)>>20) }

// ParseSize reads a size such as 6G, 6GiB, 1.5G, 4000M, 512K or 1048576. Units are powers of 1024.
func ParseSize(s string) (int64, error) {
	text := strings.ToUpper(strings.TrimSpace(s))
	text = strings.TrimSuffix(strings.TrimSuffix(text, "B"), "I")
	shift := 0
	if n := len(text); n > 0 {
		switch text[n-1] {
		case 'K':
			shift = 10
		case 'M':
			shift = 20
		case 'G':
			shift = 30
		case 'T':
			shift = 40
		}
		if shift > 0 {
			text = text[:n-1]
		}
	}
	v, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
	if err != nil || !(v >= 0) || v*float64(int64(1)<<shift) > 1<<60 {
		return 0, fault.Userf("size %q: expected a number with K, M, G or T, such as 6G or 4000M", s)
	}
	return int64(v * float64(int64(1)<<shift)), nil
}
