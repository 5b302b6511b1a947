package pool_test

import (
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/plugins/compute-cpu/internal/pool"
)

func TestIdleUsesNoCPU(t *testing.T) {
	p := pool.New(4, func(int, int) {})
	defer p.Close()
	p.Run(16)
	time.Sleep(20 * time.Millisecond)
	var a, b syscall.Rusage
	require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &a))
	time.Sleep(300 * time.Millisecond)
	require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &b))
	used := time.Duration(b.Utime.Nano() - a.Utime.Nano() + b.Stime.Nano() - a.Stime.Nano())
	require.Less(t, used, 30*time.Millisecond) // spinning would use up to 900 ms
}
