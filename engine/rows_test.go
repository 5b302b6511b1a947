package engine

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/engine/model"
	"github.com/bigmoe/bigmoe/engine/vfs"
	"github.com/bigmoe/bigmoe/engine/vfs/errfs"
	"github.com/bigmoe/bigmoe/sdk/plan"
)

// TestRowsOfAReadThatHangs: it is left alone with buffers of its own. What it reads later disturbs nobody, and is what it was asked
// for, whatever its caller has done with the tokens meanwhile.
func TestRowsOfAReadThatHangs(t *testing.T) {
	const rowBytes = 4
	path := filepath.Join(t.TempDir(), "model")
	require.NoError(t, os.WriteFile(path, []byte("row0row1row2row3"), 0o600))
	fs := errfs.Wrap(vfs.OS())
	m := &model.Model{Weights: []model.Weight{{
		Weight: &plan.Weight{Residency: plan.Residency_ROWS}, RowBytes: rowBytes, Rows: 4, Ranges: []model.Range{{Bytes: 4 * rowBytes}},
	}}}
	src, _, err := vfs.OpenSource(fs, path, false)
	require.NoError(t, err)
	e := &Engine{Opened: &Opened{Model: m}, rowFiles: sources{src}}
	e.startRowReader()
	rows := func(ctx context.Context, tokens ...int32) string {
		rows, err := e.readRows(ctx, tokens)
		require.NoError(t, err)
		require.Len(t, rows, 1)
		return string(rows[0])
	}
	require.Equal(t, "row2row0", rows(t.Context(), 2, 0))

	gate := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	fs.Set(func(errfs.Read) errfs.Fault { cancel(); return errfs.Fault{Block: gate} })
	tokens := []int32{0, 1}
	_, err = e.readRows(ctx, tokens)
	require.ErrorIs(t, err, context.Canceled)
	tokens[1] = 3

	var mu sync.Mutex
	var late []int64
	fs.Set(func(r errfs.Read) errfs.Fault {
		mu.Lock()
		defer mu.Unlock()
		late = append(late, r.Off)
		return errfs.Fault{}
	})
	again, err := e.readRows(t.Context(), []int32{2})
	require.NoError(t, err)
	close(gate)
	close(e.rows.ask)
	e.readers.Wait()
	require.Equal(t, "row2", string(again[0]))
	require.Equal(t, []int64{2 * rowBytes, 1 * rowBytes}, late)
	e.rowFiles.close()
	require.Zero(t, fs.OpenFiles())
}
