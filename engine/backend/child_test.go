package backend

import (
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestLastWordsAreReadLate: what a dead child wrote is read even if nobody came to it in time. It has no end here: somebody
// else holds the pipe.
func TestLastWordsAreReadLate(t *testing.T) {
	o := newOutput()
	w, err := o.open()
	require.NoError(t, err)
	defer w.Close()
	defer o.Close()
	for _, words := range []string{"panic: ", "kernel ", "exploded\n"} {
		_, err := w.WriteString(words)
		require.NoError(t, err)
	}
	require.NoError(t, o.file.SetReadDeadline(time.Now()))
	said, err := io.ReadAll(io.LimitReader(o, 9)) // in two reads
	require.NoError(t, err)
	rest, err := io.ReadAll(o)
	require.NoError(t, err)
	require.Equal(t, "panic: kernel exploded\n", string(said)+string(rest))
	<-o.ended
	line, crashed := o.tail.said()
	require.Equal(t, "panic: kernel exploded", line)
	require.True(t, crashed)

	// Whoever holds the pipe and writes on does not keep it from ending.
	block, ended := make([]byte, 1<<12), false
	for i := 0; i <= pipeBytes/len(block) && !ended; i++ {
		_, err = w.Write(block)
		require.NoError(t, err)
		_, err = o.Read(block)
		ended = err == io.EOF
	}
	require.True(t, ended)
}
