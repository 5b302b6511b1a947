package kernel

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestDelta holds every set to the equations D9 to D13 of specs/qwen35moe.md in float64, step by step as written there.
func TestDelta(t *testing.T) {
	for _, set := range Sets() {
		for _, n := range []int{1, 5, 8, 20, 64, 128} {
			t.Run(fmt.Sprintf("%s %d", set.Name, n), func(t *testing.T) {
				rng := newRand(uint64(n))
				s := randFloats(rng, n*n)
				want := make([][]float64, n) // [key][value]
				for i := range want {
					want[i] = make([]float64, n)
					for j := range want[i] {
						want[i][j] = float64(s[j*n+i])
					}
				}
				out := make([]float32, n)
				for step := range 5 {
					q, k, v := randFloats(rng, n), randFloats(rng, n), randFloats(rng, n)
					for i := range k {
						k[i] /= float32(n)
					}
					beta, decay := rng.Float32(), 1-rng.Float32()/4
					half := n / 2 // two calls are one
					set.Delta(s[:half*n], out[:half], v[:half], q, k, beta, decay)
					set.Delta(s[half*n:], out[half:], v[half:], q, k, beta, decay)
					var top float64
					o := make([]float64, n)
					for j := range n {
						var mu float64
						for i := range n {
							want[i][j] *= float64(decay)
							mu += want[i][j] * float64(k[i])
						}
						for i := range n {
							want[i][j] += float64(k[i]) * float64(beta) * (float64(v[j]) - mu)
							o[j] += want[i][j] * float64(q[i])
						}
						top = max(top, math.Abs(o[j]))
					}
					for j := range n {
						require.InDelta(t, o[j], out[j], 3e-6*top, "token %d, output %d", step, j)
						for i := range n {
							require.InDelta(t, want[i][j], s[j*n+i], 2e-6, "token %d, state %d %d", step, i, j)
						}
					}
				}
			})
		}
	}
}

// BenchmarkDelta is one token of one layer with 32 heads of 128: it reads and writes 2 MiB of state.
func BenchmarkDelta(b *testing.B) {
	for _, set := range Sets() {
		b.Run(set.Name, func(b *testing.B) {
			const heads, n, rows = 32, 128, 32
			rng := newRand(1)
			s, q, k, v := randFloats(rng, heads*n*n), randFloats(rng, n), randFloats(rng, n), randFloats(rng, rows)
			for i := range k {
				k[i] /= n
			}
			out := make([]float32, rows)
			b.SetBytes(2 * 4 * int64(len(s)))
			for b.Loop() {
				for at := 0; at < len(s); at += rows * n {
					set.Delta(s[at:at+rows*n], out, v, q, k, 0.5, 0.9)
				}
			}
		})
	}
}

// TestMixRows holds every set to the formula in float64, for sizes that fill no tile, and to itself row by row.
func TestMixRows(t *testing.T) {
	for _, set := range Sets() {
		for _, size := range []struct{ rows, n, terms int }{{1, 1, 1}, {5, 7, 3}, {8, 16, 0}, {7, 77, 32}, {2, 128, 128}, {128, 128, 32}} {
			t.Run(fmt.Sprintf("%s %+v", set.Name, size), func(t *testing.T) {
				rng := newRand(uint64(size.n))
				before, v := randFloats(rng, size.rows*size.n), randFloats(rng, size.terms*size.n)
				p := randFloats(rng, size.terms*size.rows)
				for _, keep := range []float32{0, 0.75} {
					for _, strides := range [][2]int{{1, size.rows}, {size.terms, 1}} {
						out := slices.Clone(before)
						if keep == 0 {
							out[0] = float32(math.NaN())
						}
						set.MixRows(out, keep, p, strides[0], strides[1], v, size.rows, size.n, size.terms)
						for j := range size.rows {
							row := slices.Clone(before[j*size.n:][:size.n])
							set.MixRows(row, keep, p[min(j*strides[0], len(p)):], strides[0], strides[1], v, 1, size.n, size.terms)
							require.Equal(t, row, out[j*size.n:][:size.n], "row %d alone", j)
							for i := range size.n {
								want := float64(keep) * float64(before[j*size.n+i])
								for u := range size.terms {
									want += float64(p[j*strides[0]+u*strides[1]]) * float64(v[u*size.n+i])
								}
								require.InDelta(t, want, row[i], 3e-5, "row %d, element %d", j, i)
							}
						}
					}
				}
			})
		}
	}
}

// BenchmarkMixRows is what a chunk of 32 tokens does to the memory of one layer with 32 heads of 128.
func BenchmarkMixRows(b *testing.B) {
	for _, set := range Sets() {
		b.Run(set.Name, func(b *testing.B) {
			const heads, n, terms = 32, 128, 32
			rng := newRand(1)
			s, a, k := randFloats(rng, heads*n*n), randFloats(rng, terms*n), randFloats(rng, terms*n)
			b.SetBytes(2 * 4 * int64(len(s)))
			for b.Loop() {
				for at := 0; at < len(s); at += n * n {
					set.MixRows(s[at:at+n*n], 0.9, a, 1, n, k, n, n, terms)
				}
			}
		})
	}
}
