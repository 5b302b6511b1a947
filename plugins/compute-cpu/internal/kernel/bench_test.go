package kernel

import (
	"fmt"
	"runtime"
	"sync"
	"testing"

	"github.com/bigmoe/bigmoe/sdk/dtype"
)

// Weight bytes per product: far more than any cache, and one expert's matrix.
const (
	benchMemoryBytes = 96 << 20
	benchCacheBytes  = 1 << 20
)

// BenchmarkMemoryRead is the ceiling of every product with one token: threads that read bytes and do next to nothing with
// them. The fastest set's product with F32 rows does so: one multiplication for 64 bytes.
func BenchmarkMemoryRead(b *testing.B) {
	const n = 2048
	q := randFloats(newRand(1), n)
	for _, size := range []int{benchMemoryBytes, benchCacheBytes} {
		data := randFloats(newRand(2), size/4)
		out := make([]float32, size/4/n)
		for _, threads := range benchThreads() {
			b.Run(fmt.Sprintf("%dMB/threads=%d", size>>20, threads), func(b *testing.B) {
				b.SetBytes(int64(size))
				for b.Loop() {
					share(threads, len(out), func(r0, r1 int) { Best().DotRowsF32(out[r0:r1], q, data[r0*n:r1*n], n, r1-r0) })
				}
			})
		}
	}
}

// benchThreads are the numbers of threads that products from memory are measured with: one, and all.
func benchThreads() []int {
	if all := runtime.GOMAXPROCS(0); all > 1 {
		return []int{1, all}
	}
	return []int{1}
}

// share runs f over threads equal parts of rows at the same time.
func share(threads, rows int, f func(r0, r1 int)) {
	var wait sync.WaitGroup
	for t := 1; t < threads; t++ {
		wait.Go(func() { f(rows*t/threads, rows*(t+1)/threads) })
	}
	f(0, rows/threads)
	wait.Wait()
}

// benchMatMul multiplies size bytes of weights, rows of 2048 elements, with tokens activation rows. The rate counts
// weight bytes once, whatever the tokens.
func benchMatMul(b *testing.B, k *Set, typ dtype.Type, size, tokens, threads int) {
	const n = 2048
	rowBytes, err := typ.RowBytes(n)
	if err != nil {
		b.Fatal(err)
	}
	rows := size / int(rowBytes)
	rng := newRand(1)
	one := randWeights(rng, typ, 64, n)
	w := make([]byte, rows*int(rowBytes))
	for i := 0; i < len(w); i += len(one) {
		copy(w[i:], one)
	}
	act, stride := activations(k, typ, randFloats(rng, tokens*n), n)
	out := make([]float32, rows*tokens)
	b.SetBytes(int64(len(w)))
	for b.Loop() {
		share(threads, rows, func(r0, r1 int) {
			k.MatMul(typ, w[r0*int(rowBytes):r1*int(rowBytes)], r1-r0, n, act, stride, tokens, out[r0:], rows)
		})
	}
	b.ReportMetric(float64(rows)*n*float64(tokens)*float64(b.N)/b.Elapsed().Seconds()/1e9, "Gmac/s")
}

func BenchmarkMatMul(b *testing.B) {
	for _, k := range Sets() {
		for _, typ := range supported {
			for _, threads := range benchThreads() {
				b.Run(fmt.Sprintf("%s/%v/memory/threads=%d", k.Name, typ, threads), func(b *testing.B) {
					benchMatMul(b, k, typ, benchMemoryBytes, 1, threads)
				})
			}
			for _, tokens := range []int{1, 2, 4, 8, 64} {
				b.Run(fmt.Sprintf("%s/%v/cache/tokens=%d", k.Name, typ, tokens), func(b *testing.B) { benchMatMul(b, k, typ, benchCacheBytes, tokens, 1) })
			}
		}
	}
}

func BenchmarkQuantize(b *testing.B) {
	for _, k := range Sets() {
		for _, a := range []Act{ActQ8_0, ActQ8_1, ActQ8_K} {
			b.Run(fmt.Sprintf("%s/%v", k.Name, a), func(b *testing.B) {
				x := randFloats(newRand(1), 2048)
				dst := make([]byte, a.RowBytes(len(x)))
				b.SetBytes(int64(4 * len(x)))
				for b.Loop() {
					k.Quantize(a, dst, x)
				}
			})
		}
	}
}

func BenchmarkVectorOps(b *testing.B) {
	const n = 2048
	for _, k := range Sets() {
		x, y, w := randFloats(newRand(1), n), randFloats(newRand(2), n), randFloats(newRand(3), n)
		dst := make([]float32, n)
		for _, op := range []struct {
			name string
			run  func()
		}{
			{"rms", func() { k.RMSNorm(dst, x, w, 1e-6) }},
			{"swiglu", func() { k.SwiGLU(dst, x, y) }},
			{"softmax", func() { copy(dst, x); k.Softmax(dst) }},
			{"axpy", func() { k.Axpy(dst, 0.5, x) }},
			{"add", func() { k.Add(dst, x, y) }},
			{"dot", func() { dst[0] = k.Dot(x, y) }},
			{"rope", func() { k.RopeNeox(x, y[:n/2], w[:n/2]) }},
		} {
			b.Run(k.Name+"/"+op.name, func(b *testing.B) {
				b.SetBytes(4 * n)
				for b.Loop() {
					op.run()
				}
			})
		}
	}
}

// BenchmarkCacheRows is one head of 128 against 512 cached positions, 4 heads apart.
func BenchmarkCacheRows(b *testing.B) {
	const d, rows, stride = 128, 512, 512
	for _, k := range Sets() {
		q, p := randFloats(newRand(1), d), randFloats(newRand(2), rows)
		f := randFloats(newRand(3), rows*stride)
		h := make([]uint16, len(f))
		k.ToF16(h, f)
		for _, op := range []struct {
			name  string
			bytes int64
			run   func()
		}{
			{"dot/f32", 4, func() { k.DotRowsF32(p, q, f, stride, rows) }},
			{"dot/f16", 2, func() { k.DotRowsF16(p, q, h, stride, rows) }},
			{"acc/f32", 4, func() { k.AccRowsF32(q, p, f, stride, rows) }},
			{"acc/f16", 2, func() { k.AccRowsF16(q, p, h, stride, rows) }},
		} {
			b.Run(k.Name+"/"+op.name, func(b *testing.B) {
				b.SetBytes(op.bytes * d * rows)
				for b.Loop() {
					op.run()
				}
			})
		}
	}
}
