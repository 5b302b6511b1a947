//go:build !linux

package backend

import "os/exec"

// start starts cmd.
func start(cmd *exec.Cmd) error { return cmd.Start() }
