//go:build !linux

package main

import (
	"github.com/bigmoe/bigmoe/cmd/bigmoe/internal/bench"
	"github.com/bigmoe/bigmoe/engine"
)

// What Linux tells and does, other systems are not asked for: those figures are unknown there.

const pageCache = "left alone on this system"

func dropPageCache(string) error { return nil }

func cpuSeconds(*engine.Engine) float64 { return bench.Unknown }

func resetPeak() bool { return false }

func cpuModel() string { return "" }

func kernelRelease() string { return "" }
