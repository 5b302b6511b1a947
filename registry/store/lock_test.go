package store

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/registry/artifact"
	"github.com/bigmoe/bigmoe/sdk/fault"
)

// Whatever a lock file says, it is understood or refused, and what was understood is written as it was read.
func FuzzLock(f *testing.F) {
	f.Add([]byte(`{"version": 1, "recipes": {"a": {"source": "x", "digest": "sha256:e9b1de1a41d1d2aacb5281bf5b2ec9f6bd2c2c0ac97f5b97cdb2de3f0e0bd4ee"}}, "backends": {}}`))
	f.Add([]byte(`{"version": 1, "backends": {"b": {"key": "x", "signature": {"payload": "", "value": null}}}}`))
	f.Add([]byte(`{"version": 2}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		l, err := parseLock(text)
		if err != nil {
			require.NotEqual(t, fault.Unknown, fault.KindOf(err))
			return
		}
		for name := range l.entries(artifact.Recipe) {
			require.True(t, artifact.ValidName(name))
		}
		written, err := l.text()
		require.NoError(t, err)
		again, err := parseLock(written)
		require.NoError(t, err)
		rewritten, err := again.text()
		require.NoError(t, err)
		require.Equal(t, string(written), string(rewritten))
	})
}
