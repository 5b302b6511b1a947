package futex

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestWait(t *testing.T) {
	var word atomic.Uint32
	start := time.Now()
	Wait(&word, 1, time.Hour) // differs already
	require.False(t, WaitSpin(&word, 0, Brief, 10*time.Millisecond), "nobody changes it")
	require.Less(t, time.Since(start), time.Minute)
	require.True(t, WaitSpin(&word, 1, Brief, time.Hour))
}

func TestWakeReachesEverybody(t *testing.T) {
	var word atomic.Uint32
	woken := make(chan struct{})
	for range 4 {
		go func() {
			for word.Load() == 0 {
				Wait(&word, 0, time.Hour)
			}
			woken <- struct{}{}
		}()
	}
	time.Sleep(20 * time.Millisecond) // likely all wait by now
	word.Store(1)
	Wake(&word)
	for range 4 {
		select {
		case <-woken:
		case <-time.After(time.Minute):
			t.Fatal("not woken")
		}
	}
}

// TestWaitersLeaveAProcessor has more waiters than processors: what wakes them gets one, and so does the garbage collector.
func TestWaitersLeaveAProcessor(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	var word atomic.Uint32
	var ready, woken sync.WaitGroup
	for range 8 {
		ready.Add(1)
		woken.Go(func() {
			ready.Done()
			for word.Load() == 0 {
				WaitSpin(&word, 0, Brief, time.Minute)
			}
		})
	}
	ready.Wait()
	runtime.GC()
	word.Store(1)
	Wake(&word)
	woken.Wait()
	require.Zero(t, holding.Load())
}
