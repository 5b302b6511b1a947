//go:build race

package engine_test

// raceEnabled makes tests choose smaller samples: plain Go arithmetic is fifty times slower under the race detector,
// and the arithmetic is not what it looks for.
const raceEnabled = true
