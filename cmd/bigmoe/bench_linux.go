package main

import (
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bigmoe/bigmoe/engine"
)

// pageCache says what dropPageCache does.
const pageCache = "the model's pages dropped before each run"

// dropPageCache makes the system forget a file's pages, those excepted that somebody has mapped.
func dropPageCache(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		return fmt.Errorf("%s: dropping its pages: %w", name, err)
	}
	return nil
}

// cpuSeconds returns the processor time, user and system, that this process and the engine's backend have taken so far. Unlike
// /proc/PID/stat, which counts in hundredths of a second, the clocks of processes are exact.
func cpuSeconds(e *engine.Engine) float64 {
	total := cpuClock(0)
	if pid := e.BackendPID(); pid > 0 && pid != os.Getpid() {
		total += cpuClock(pid)
	}
	return total.Seconds()
}

// cpuClock reads the clock of a process, 0 being this one. Its number is that which clock_getcpuclockid(3) gives: the
// complement of the process id, and below it three bits that ask for scheduled time (2) of the whole process.
func cpuClock(pid int) time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|2), &t); err != nil {
		return 0 // the process is gone, and the run with it
	}
	return time.Duration(t.Nano())
}

// resetPeak makes the peak of this process's memory what it has now, and reports whether the system did.
func resetPeak() bool { return os.WriteFile("/proc/self/clear_refs", []byte("5"), 0) == nil }

// cpuModel is the processor's name, "" if the system does not tell.
func cpuModel() string {
	text, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(text)) {
		if name, value, _ := strings.Cut(line, ":"); strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// kernelRelease is the system's name and version.
func kernelRelease() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Sysname[:]) + " " + unix.ByteSliceToString(u.Release[:])
}
