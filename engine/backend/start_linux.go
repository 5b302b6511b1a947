package backend

import (
	"os/exec"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// timerSlack is how much later than asked for the timers of a backend may end: the process inherits it. Go's scheduler looks every 20
// microseconds for calls that take long, which products do, in the place of a thread that multiplies; with slack it looks when the
// system has something else to do on that core as well. A token took 1.08 times as long without (docs/experiments/idle-processors.md).
// Other than that only the time-outs of waits end later.
const timerSlack = 5 * time.Millisecond

// start starts cmd.
func start(cmd *exec.Cmd) error {
	runtime.LockOSThread() // slack is a thread's own
	defer runtime.UnlockOSThread()
	if unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(timerSlack.Nanoseconds()), 0, 0, 0) == nil {
		defer func() { _ = unix.Prctl(unix.PR_SET_TIMERSLACK, 0, 0, 0, 0) }() // 0: what it was
	}
	return cmd.Start()
}
