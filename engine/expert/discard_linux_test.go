package expert

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/bigmoe/bigmoe/engine/expert/policy"
	"github.com/bigmoe/bigmoe/engine/expert/replay"
)

// TestDiscardsAreRare plays the recorded trace at its real sizes, in memory that is reserved and never touched: once
// the cache is full, memory moves between the two classes less than twice per token.
func TestDiscardsAreRare(t *testing.T) {
	tr, err := replay.Open("../../testdata/traces/qwen3-30b-a3b-k6.csv.gz")
	require.NoError(t, err)
	var banks []Bank
	var off int64
	for layer, n := range tr.ExpertBytes {
		const gate = 768 * 2048 / 256 * 144 // q4_k
		b := Bank{Layer: layer, Experts: tr.Experts}
		for p, bytes := range []int64{gate, gate, n - 2*gate} {
			b.Parts = append(b.Parts, Part{Name: fmt.Sprintf("blk.%d.%d", layer, p), Offset: off, Bytes: bytes, Stride: bytes})
			off += bytes * int64(tr.Experts)
		}
		banks = append(banks, b)
	}
	for _, name := range []string{"lru", "decayed"} {
		p, err := policy.New(name)
		require.NoError(t, err)
		const budget = 4000 << 20
		l, err := Plan(banks, tr.TopK, budget)
		require.NoError(t, err)
		require.Len(t, l.Classes, 2)
		require.Less(t, float64(l.PhysicalBytes), 1.025*budget)
		arena, err := unix.Mmap(-1, 0, int(l.ArenaBytes), unix.PROT_READ|unix.PROT_WRITE,
			unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
		require.NoError(t, err)
		defer func() { require.NoError(t, unix.Munmap(arena)) }()
		s, err := Open(Config{FS: instant{off}, Files: []string{"trace"}, Banks: banks, TopK: tr.TopK, Mode: BufferedOnly,
			Arena: arena, Ready: make([]uint32, l.Slots), BudgetBytes: budget, Policy: p,
			Discard: func(uint64, int64) error { return nil }})
		require.NoError(t, err)
		half := len(tr.Batches) / 2
		for !tr.StartsStep(half) {
			half++
		}
		tokens := 0
		for i := half; i < len(tr.Batches); i++ {
			if tr.StartsStep(i) {
				tokens++
			}
		}
		var b Batch
		playTrace(t, s, tr, 0, half, &b)
		before := s.Stats().Discards
		playTrace(t, s, tr, half, len(tr.Batches), &b)
		st := s.Stats()
		require.Less(t, st.Discards-before, int64(2*tokens))
		checkCounters(t, s)
		require.NoError(t, s.Close())
	}
}

// TestPhysicalMemoryOfSharedMemory runs a store in a sparse shared-memory file, as the engine does, and asks the kernel
// how much of the file is backed.
func TestPhysicalMemoryOfSharedMemory(t *testing.T) {
	m := newModel(t)
	mem := m.config(t, 12*13_192)
	l, err := Plan(m.banks, testTopK, mem.cfg.BudgetBytes)
	require.NoError(t, err)
	require.Less(t, l.PhysicalBytes, l.ArenaBytes/2)
	fd, err := unix.MemfdCreate("arena", unix.MFD_CLOEXEC)
	require.NoError(t, err)
	defer unix.Close(fd)
	require.NoError(t, unix.Ftruncate(fd, arenaBase+l.ArenaBytes))
	region, err := unix.Mmap(fd, 0, int(arenaBase+l.ArenaBytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.NoError(t, err)
	defer func() { require.NoError(t, unix.Munmap(region)) }()
	mem.cfg.Arena = region[arenaBase:]
	mem.cfg.Discard = func(off uint64, n int64) error {
		return unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, int64(off), n)
	}
	s, err := Open(mem.cfg)
	require.NoError(t, err)
	defer s.Close()
	rnd := rand.New(rand.NewPCG(1, 2))
	var b Batch
	for range 40 {
		bank := rnd.IntN(3)
		for range 30 { // a stretch in one class, so that memory has to move
			experts := []int32{int32(rnd.IntN(m.banks[bank].Experts)), int32(rnd.IntN(m.banks[bank].Experts))}
			require.NoError(t, s.Acquire(m.banks[bank].Layer, experts, &b))
			require.NoError(t, waitAll(t, s, &b))
			for _, sl := range b.Slots {
				require.Equal(t, len(m.banks[bank].Parts), checkPayload(t, m, s, bank, sl))
			}
			s.Release(&b)
			var st unix.Stat_t
			require.NoError(t, unix.Fstat(fd, &st))
			require.LessOrEqual(t, st.Blocks*512, l.PhysicalBytes)
		}
	}
	require.Positive(t, s.Stats().Discards)
	require.Zero(t, s.Stats().DiscardErrors)
}
