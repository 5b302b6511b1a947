package backend

import (
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestTimerSlack: a child gets it, the thread that starts the child does not keep it.
func TestTimerSlack(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	slack := func() int {
		ns, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
		require.NoError(t, err)
		return ns
	}
	before := slack()
	require.NotEqual(t, 5_000_000, before)

	var out strings.Builder
	cmd := exec.Command("cat", "/proc/self/timerslack_ns")
	cmd.Stdout = &out
	require.NoError(t, start(cmd))
	require.NoError(t, cmd.Wait())
	require.Equal(t, "5000000\n", out.String())
	require.Equal(t, before, slack())

	require.ErrorIs(t, start(exec.Command("/no/such/program")), unix.ENOENT)
	require.Equal(t, before, slack())
}
