package kernel

import (
	"fmt"
	"testing"
	"unsafe"

	"github.com/bigmoe/bigmoe/sdk/dtype"
)

// Weight bytes per product: far more than any cache, and one expert's matrix.
const (
	benchMemoryBytes = 96 << 20
	benchCacheBytes  = 1 << 20
)

var sink uint64

// BenchmarkMemoryRead is the ceiling of every product with one token: one thread reading bytes and nothing else.
func BenchmarkMemoryRead(b *testing.B) {
	for _, size := range []int{benchMemoryBytes, benchCacheBytes} {
		b.Run(fmt.Sprintf("%dMB", size>>20), func(b *testing.B) {
			data := make([]byte, size)
			for i := range data {
				data[i] = byte(i)
			}
			words := unsafe.Slice((*uint64)(unsafe.Pointer(&data[0])), size/8)
			b.SetBytes(int64(size))
			for b.Loop() {
				var s0, s1, s2, s3 uint64
				for i := 0; i+8 <= len(words); i += 8 {
					w := words[i : i+8 : i+8]
					s0 += w[0] + w[4]
					s1 += w[1] + w[5]
					s2 += w[2] + w[6]
					s3 += w[3] + w[7]
				}
				sink += s0 + s1 + s2 + s3
			}
		})
	}
}

// benchMatMul multiplies size bytes of weights, rows of 2048 elements, with tokens activation rows. The rate counts
// weight bytes once, whatever the tokens.
func benchMatMul(b *testing.B, k *Set, typ dtype.Type, size, tokens int) {
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
		k.MatMul(typ, w, rows, n, act, stride, tokens, out, rows)
	}
	b.ReportMetric(float64(rows)*n*float64(tokens)*float64(b.N)/b.Elapsed().Seconds()/1e9, "Gmac/s")
}

func BenchmarkMatMul(b *testing.B) {
	for _, k := range Sets() {
		for _, typ := range supported {
			b.Run(fmt.Sprintf("%s/%v/memory/tokens=1", k.Name, typ), func(b *testing.B) { benchMatMul(b, k, typ, benchMemoryBytes, 1) })
			for _, tokens := range []int{1, 2, 4, 8, 64} {
				b.Run(fmt.Sprintf("%s/%v/cache/tokens=%d", k.Name, typ, tokens), func(b *testing.B) { benchMatMul(b, k, typ, benchCacheBytes, tokens) })
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
