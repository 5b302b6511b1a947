package expert_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/bigmoe/bigmoe/engine/expert"
	"github.com/bigmoe/bigmoe/engine/vfs"
)

// A layer of eight experts, 1000 bytes each, of which three fit into the cache.
func Example() {
	dir, err := os.MkdirTemp("", "expert")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	name := filepath.Join(dir, "model.gguf")
	data := make([]byte, 8000)
	for i := range data {
		data[i] = byte(i / 1000)
	}
	if err := os.WriteFile(name, data, 0o600); err != nil {
		panic(err)
	}

	banks := []expert.Bank{{Layer: 0, Experts: 8, Parts: []expert.Part{
		{Name: "blk.0.ffn_gate_up_exps.weight", Offset: 0, Bytes: 1000, Stride: 1000}}}}
	const topK, budgetBytes = 2, 3000
	layout, err := expert.Plan(banks, topK, budgetBytes)
	if err != nil {
		panic(err)
	}
	arena := vfs.AlignedBuffer(int(layout.ArenaBytes))
	store, err := expert.Open(expert.Config{
		Files: []string{name}, Banks: banks, TopK: topK, BudgetBytes: budgetBytes,
		Arena: arena, Ready: make([]uint32, layout.Slots),
	})
	if err != nil {
		panic(err)
	}
	defer store.Close()

	var b expert.Batch
	for _, routed := range [][]int32{{5, 2}, {2, 7}} { // two tokens
		store.Tick()
		if err := store.Acquire(0, routed, &b); err != nil {
			panic(err)
		}
		for _, slot := range b.Slots {
			if err := store.Wait(context.Background(), slot); err != nil {
				panic(err)
			}
			fmt.Println("expert", slot.Expert, "begins with", arena[slot.Parts[0]])
		}
		store.Release(&b)
	}
	st := store.Stats()
	fmt.Println(st.Hits.Experts, "hit,", st.Misses.Experts, "misses,", st.Misses.Bytes, "bytes read")
	// Output:
	// expert 5 begins with 5
	// expert 2 begins with 2
	// expert 2 begins with 2
	// expert 7 begins with 7
	// 1 hit, 3 misses, 3000 bytes read
}
