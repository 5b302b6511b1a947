package registry_test

import (
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/registry"
)

// Who reads while a recipe is replaced, and what the old one needed swept away, gets the old one or the new one.
func TestReadersWhileChanging(t *testing.T) {
	w := newWorld(t)
	refs := []string{"oci:" + w.layout + ":a", "oci:" + w.layout + ":b", "oci:" + w.layout + ":b"} // twice: written again
	for i, ref := range refs {
		w.publish("mine", "content"[:5+min(i, 1)], ref)
	}
	require.NoError(t, w.add(refs[0]))
	var done atomic.Bool
	failed := make(chan error, 1)
	go func() {
		defer close(failed)
		for !done.Load() {
			if err := w.find("mine"); err != nil {
				failed <- err
				return
			}
		}
	}()
	for i := range 60 {
		_, err := w.install(registry.Request{Ref: refs[i%len(refs)], Update: true})
		require.NoError(t, err)
	}
	done.Store(true)
	require.NoError(t, <-failed)
}
