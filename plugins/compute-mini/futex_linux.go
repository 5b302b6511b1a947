package main

import (
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

const (
	futexWait = 0
	futexWake = 1
)

// wait sleeps while the word is old, for at most the given time.
func wait(word *atomic.Uint32, old uint32, limit time.Duration) {
	ts := syscall.NsecToTimespec(int64(limit))
	_, _, _ = syscall.Syscall6(syscall.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWait, uintptr(old), uintptr(unsafe.Pointer(&ts)), 0, 0)
}

// wake wakes everybody who waits for the word.
func wake(word *atomic.Uint32) {
	_, _, _ = syscall.Syscall6(syscall.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWake, 1<<30, 0, 0, 0)
}
