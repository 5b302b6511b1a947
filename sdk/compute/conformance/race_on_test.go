//go:build race

package conformance_test

// raceEnabled: the detector makes a process larger than it says, and arithmetic slow.
const raceEnabled = true
