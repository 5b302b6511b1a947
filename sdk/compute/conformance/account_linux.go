package conformance

import (
	"fmt"
	"os"
	"strings"
)

// privateBytes returns the resident memory of a process without what it shares with the engine.
func privateBytes(pid int) (uint64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	var sum uint64
	found := false
	for line := range strings.Lines(string(status)) {
		var kib uint64
		for _, key := range []string{"RssAnon:", "RssFile:"} {
			if rest, ok := strings.CutPrefix(line, key); ok {
				if _, err := fmt.Sscan(rest, &kib); err != nil {
					return 0, err
				}
				sum, found = sum+kib<<10, true
			}
		}
	}
	if !found {
		return 0, fmt.Errorf("/proc/%d/status does not say how much memory is private", pid)
	}
	return sum, nil
}
