package engine

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/bigmoe/bigmoe/engine/budget"
	"github.com/bigmoe/bigmoe/engine/expert"
)

// Report is the state of an engine in figures: what it was given, what it did, what it took.
type Report struct {
	Model       string         `json:"model"`
	Recipe      string         `json:"recipe"`
	Backend     string         `json:"backend"`
	Kernels     string         `json:"kernels"`
	Threads     int            `json:"threads"`
	Context     int            `json:"context"`
	Policy      string         `json:"policy"`
	IO          string         `json:"io"`                  // achieved: direct, buffered or mixed
	IOReason    string         `json:"io_reason,omitempty"` // why not direct
	ExpertsUsed int            `json:"experts_used"`
	Usage       UsageState     `json:"usage_profile"`
	WarmedBytes int64          `json:"warmed_bytes"`    // read because of it
	Lossy       []string       `json:"lossy,omitempty"` // options in force that change the output
	Budget      *budget.Fitted `json:"budget"`
	PeakBytes   int64          `json:"peak_bytes"` // both processes, shared memory once; 0 = not known here
	Store       expert.Stats   `json:"-"`
}

// Report returns the figures now.
func (e *Engine) Report() Report {
	r := Report{
		Model: e.File.Path(), Recipe: e.Plan.Recipe, Backend: e.Backend.Name, Kernels: e.Backend.Kernels,
		Threads: int(e.bound.Options.Threads), Context: e.Context, Policy: e.cfg.Policy,
		ExpertsUsed: e.Model.MaxTopK(), Budget: e.Budget, Store: e.router.stats(), PeakBytes: e.peakBytes(),
	}
	r.Usage, r.WarmedBytes = e.warmer.state, r.Store.Warmed.Bytes
	r.IO, r.IOReason = r.Store.Mode, r.Store.ModeReason
	if e.cfg.ExpertsUsed > 0 {
		r.Lossy = append(r.Lossy, fmt.Sprintf("experts-used %d", e.cfg.ExpertsUsed))
	}
	return r
}

// peakBytes is the largest resident memory of this process, which has touched all of the shared region, plus what the
// backend has of its own now (its states and scratch do not shrink).
func (e *Engine) peakBytes() int64 {
	own := processMemory("self")
	total := own["VmHWM"]
	if pid := e.BackendPID(); pid > 0 && pid != os.Getpid() {
		child := processMemory(strconv.Itoa(pid))
		total += child["RssAnon"] + child["RssFile"]
	}
	return total
}

// processMemory returns the memory lines of /proc/<pid>/status in bytes, or nothing where there are none.
func processMemory(pid string) map[string]int64 {
	f, err := os.Open("/proc/" + pid + "/status")
	if err != nil {
		return nil
	}
	defer f.Close()
	out := map[string]int64{}
	for sc := bufio.NewScanner(f); sc.Scan(); {
		name, rest, _ := strings.Cut(sc.Text(), ":")
		if kib, ok := strings.CutSuffix(strings.TrimSpace(rest), " kB"); ok {
			if n, err := strconv.ParseInt(kib, 10, 64); err == nil {
				out[name] = n << 10
			}
		}
	}
	return out
}
