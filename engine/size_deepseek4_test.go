package engine_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/engine"
	"github.com/bigmoe/bigmoe/engine/expert"
	"github.com/bigmoe/bigmoe/engine/gguf"
	"github.com/bigmoe/bigmoe/sdk/dtype"
)

// TestFlashSizes holds the sizes of a whole DeepSeek V4 Flash, 91 GB of tensors over a hole, against the byte budget of
// specs/deepseek4.md 9.1 and the states of its section 4.
func TestFlashSizes(t *testing.T) {
	arithmetic(t)
	path := filepath.Join(t.TempDir(), "flash.gguf")
	skipWithoutHoles(t)
	out, err := exec.Command("go", "run", "../testdata/gen/deepseek4", "-sparse", "-out", path).CombinedOutput()
	require.NoError(t, err, "%s", out)
	o, err := engine.Inspect(t.Context(), engine.Config{Model: path, Recipes: builtin{}})
	require.NoError(t, err)
	defer o.File.Close()
	m := o.Model

	require.Len(t, o.File.Tensors(), 1328)
	require.EqualValues(t, 43, o.Plan.Model.Layers)
	require.EqualValues(t, 129280, o.Plan.Model.Vocabulary)
	require.Empty(t, o.Plan.Unused)

	require.Len(t, m.Banks, 43)
	for i := range m.Banks {
		require.EqualValues(t, 7_536_640, m.Banks[i].ExpertBytes())
		var parts []int64
		for _, p := range m.Banks[i].Bank.Parts {
			parts = append(parts, p.Bytes)
		}
		require.Equal(t, []int64{2_162_688, 2_162_688, 3_211_264}, parts, "gate, up, down")
	}
	require.EqualValues(t, 82_963_333_120, m.ExpertBytes())
	require.EqualValues(t, 1_944_453_120, m.TokenBytes())

	var dense, rows, params int64
	for i := range m.Weights {
		w := &m.Weights[i]
		dense += w.Bytes()
		if !w.Resident() {
			rows += w.Bytes()
		}
		if w.Type != dtype.I32 {
			params += w.Bytes() / int64(w.Type.BlockBytes()) * int64(w.Type.BlockElems())
		}
	}
	// The table's total leaves out the head's norm and the base and scale of its hyper-connection.
	const uncounted = 4 * (4096 + 4 + 1)
	require.EqualValues(t, 8_006_152_072+uncounted, dense)
	require.EqualValues(t, 562_626_560, rows, "the embedding table")
	require.EqualValues(t, 7_306_849_879, params)
	resident := dense - rows
	require.GreaterOrEqual(t, m.DenseBytes(), resident)
	require.Less(t, m.DenseBytes()-resident, int64(64*len(m.Weights)), "alignment")
	require.Equal(t, dense+82_963_333_120, tensorBytes(o.File))

	// Rings and what compressors keep are 128 keys in every layer, 16 and 4 times 1024 floats and more.
	const constant = 43*128*512*2 + 21*2*8*(1024+256)*4 + 20*2*128*512*4
	for context, attention := range map[int64]int64{
		4096:    21*1024*512*2 + 20*32*512*2,
		32768:   21*8192*512*2 + 20*256*512*2,
		1 << 20: 21*262144*512*2 + 20*8192*512*2,
	} {
		require.Equal(t, constant+attention+21*(context/4)*128*2, m.StateBytes(context, 2), "context %d", context)
	}

	// Slots hold whole experts, so a cache of n of them is theirs and little else.
	layout, err := expert.Plan(m.StoreBanks(), m.MaxTopK(), 1000*7_536_640)
	require.NoError(t, err)
	require.InEpsilon(t, 1000*7_536_640, layout.PhysicalBytes, 0.03, "2 % of spare slots and alignment")
}

func tensorBytes(f *gguf.File) (n int64) {
	for _, t := range f.Tensors() {
		n += t.Bytes
	}
	return n
}

// skipWithoutHoles skips a test that needs files with a hole larger than the disk.
func skipWithoutHoles(t *testing.T) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "hole")
	f, err := os.Create(path)
	require.NoError(t, err)
	defer f.Close()
	if err := f.Truncate(100 << 30); err != nil {
		t.Skipf("files of 100 GiB cannot be made here: %v", err)
	}
	require.NoError(t, os.Remove(path))
}
