//go:build unix

package kernel

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// fenced copies b to memory that starts, or ends, beside a page that cannot be read.
func fenced(t *testing.T, b []byte, atEnd bool) []byte {
	t.Helper()
	page := unix.Getpagesize()
	size := (len(b) + page - 1) / page * page
	m, err := unix.Mmap(-1, 0, size+2*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(m)) })
	require.NoError(t, unix.Mprotect(m[:page], unix.PROT_NONE))
	require.NoError(t, unix.Mprotect(m[page+size:], unix.PROT_NONE))
	in := m[page : page+size]
	if atEnd {
		in = in[size-len(b):]
	}
	copy(in, b)
	return in[:len(b):len(b)]
}

// TestMatMulReadsInside checks that nothing beside the arguments is read: doing so ends the process.
func TestMatMulReadsInside(t *testing.T) {
	for _, typ := range supported {
		for _, rows := range []int{1, 4, 9} {
			rng := newRand(uint64(typ))
			const n, tokens = 256, 3
			w := randWeights(rng, typ, rows, n)
			act, stride := activations(Reference(), typ, randFloats(rng, tokens*n), n)
			a, _ := ActFor(typ)
			act = act[:(tokens-1)*stride+a.RowBytes(n)]
			want := product(Reference(), typ, w, rows, n, act, stride, tokens)
			for _, atEnd := range []bool{false, true} {
				w, act := fenced(t, w, atEnd), fenced(t, act, atEnd)
				for _, k := range Sets() {
					for _, now := range []int{1, tokens} {
						got := product(k, typ, w, rows, n, act[:(now-1)*stride+a.RowBytes(n)], stride, now)
						if a != ActF32 {
							sameBits(t, want[:rows*now], got, k.Name+" "+typ.String())
						}
					}
				}
			}
		}
	}
}
