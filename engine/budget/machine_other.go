//go:build !linux

package budget

import (
	"fmt"
	"runtime"
)

// Machine reads the limits that hold for this process now. On this system bigmoe cannot find them out.
func Machine() (Limit, error) {
	return Limit{}, fmt.Errorf("memory of the machine: not known on %s; say --mem", runtime.GOOS)
}
