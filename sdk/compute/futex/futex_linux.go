package futex

import (
	"math"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	opWait = 0 // FUTEX_WAIT and FUTEX_WAKE without the private flag: the word is shared between processes
	opWake = 1
)

// Wait sleeps while word holds old, at most timeout.
func Wait(word *atomic.Uint32, old uint32, timeout time.Duration) {
	ts := unix.NsecToTimespec(int64(timeout))
	// EAGAIN (the word differs already), EINTR and ETIMEDOUT all mean: look again.
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), opWait, uintptr(old), uintptr(unsafe.Pointer(&ts)), 0, 0)
}

// waitHolding is Wait of a goroutine that keeps its processor.
func waitHolding(word *atomic.Uint32, old uint32, timeout time.Duration) {
	ts := unix.NsecToTimespec(int64(timeout))
	_, _, _ = unix.RawSyscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), opWait, uintptr(old), uintptr(unsafe.Pointer(&ts)), 0, 0)
}

// Wake wakes everybody who waits on word.
func Wake(word *atomic.Uint32) {
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), opWake, math.MaxInt32, 0, 0, 0)
}

// Yield lets another thread that waits for this core have it.
func Yield() { _, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }
