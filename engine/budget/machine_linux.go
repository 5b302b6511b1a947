package budget

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Machine reads the limits that hold for this process now.
func Machine() (Limit, error) { return machine("/") }

// machine is Machine under another root directory, for tests.
func machine(root string) (Limit, error) {
	var l Limit
	f, err := os.Open(filepath.Join(root, "proc/meminfo"))
	if err != nil {
		return l, fmt.Errorf("memory of the machine: %w", err)
	}
	defer f.Close()
	for sc := bufio.NewScanner(f); sc.Scan(); {
		name, rest, _ := strings.Cut(sc.Text(), ":")
		kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
		if err != nil {
			continue
		}
		switch name {
		case "MemTotal":
			l.TotalBytes = kib << 10
		case "MemAvailable":
			l.AvailableBytes = kib << 10
		}
	}
	if l.TotalBytes == 0 {
		return l, fmt.Errorf("memory of the machine: no MemTotal in /proc/meminfo")
	}
	l.CgroupBytes, l.CgroupPath = cgroupLimit(root)
	return l, nil
}

// cgroupLimit returns the smallest memory limit of the cgroups above this process, and which one it is. Lines of
// /proc/self/cgroup are "id:controllers:path"; version 2 has no controllers. Inside a container the path is often
// not visible under the mount, whose root is then the container's own group: so every prefix of the path is tried.
func cgroupLimit(root string) (int64, string) {
	text, err := os.ReadFile(filepath.Join(root, "proc/self/cgroup"))
	if err != nil {
		return 0, ""
	}
	var best int64
	var where string
	try := func(dir, file string) {
		b, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil {
			return
		}
		// "max" (v2) and values near 2^63 (v1) mean no limit.
		n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
		if err == nil && n > 0 && n < 1<<60 && (best == 0 || n < best) {
			best, where = n, dir
		}
	}
	for _, line := range strings.Split(strings.TrimSpace(string(text)), "\n") {
		fields := strings.SplitN(line, ":", 3)
		if len(fields) != 3 {
			continue
		}
		var mounts []string
		file := "memory.max"
		switch {
		case fields[1] == "":
			mounts = []string{"sys/fs/cgroup", "sys/fs/cgroup/unified"}
		case strings.Contains(","+fields[1]+",", ",memory,"):
			mounts, file = []string{"sys/fs/cgroup/memory"}, "memory.limit_in_bytes"
		}
		for _, m := range mounts {
			for dir := fields[2]; ; dir = filepath.Dir(dir) {
				try(filepath.Join(root, m, dir), file)
				if dir == "/" || dir == "." {
					break
				}
			}
		}
	}
	return best, where
}
