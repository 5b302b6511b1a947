package kernel

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bigmoe/bigmoe/sdk/dtype"
)

func newRand(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 7)) }

func randFloats(rng *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(rng.NormFloat64())
	}
	return x
}

// randWeights returns rows of n elements of type t: any codes, scales of ordinary size, starting at an odd address.
func randWeights(rng *rand.Rand, t dtype.Type, rows, n int) []byte {
	size, per := t.BlockBytes(), t.BlockElems()
	w := make([]byte, rows*n/per*size+1)[1:]
	for i := range w {
		w[i] = byte(rng.Uint32())
	}
	half := func(b []byte) { binary.LittleEndian.PutUint16(b, floatToHalf(float32(rng.NormFloat64())/16)) }
	d, m := scaleOffsets(t)
	for b := w; len(b) > 0; b = b[size:] {
		switch t {
		case dtype.F32:
			binary.LittleEndian.PutUint32(b, math.Float32bits(float32(rng.NormFloat64())))
		case dtype.F16:
			half(b)
		case dtype.BF16:
			binary.LittleEndian.PutUint16(b, uint16(math.Float32bits(float32(rng.NormFloat64()))>>16))
		case dtype.MXFP4:
			b[0] = byte(110 + rng.IntN(20))
		case dtype.NVFP4: // any scale is of ordinary size
		case dtype.IQ1_M:
			setIQ1M(b, floatToHalf(float32(rng.NormFloat64())/16))
		default:
			half(b[d:])
			if m >= 0 {
				half(b[m:])
			}
		}
	}
	return w
}

// product runs MatMul of k and returns its outputs, tokens rows of rows.
func product(k *Set, t dtype.Type, w []byte, rows, n int, act []byte, actStride, tokens int) []float32 {
	out := make([]float32, rows*tokens)
	k.MatMul(t, w, rows, n, act, actStride, tokens, out, rows)
	return out
}

func activations(k *Set, t dtype.Type, x []float32, n int) (act []byte, stride int) {
	a, _ := ActFor(t)
	stride = a.RowBytes(n) + 3 // rows need neither touch nor align
	act = make([]byte, len(x)/n*stride)
	for u := range len(x) / n {
		k.Quantize(a, act[u*stride:], x[u*n:(u+1)*n])
	}
	return act, stride
}

func sizesOf(t dtype.Type) []int {
	switch t.BlockElems() {
	case 256:
		return []int{256, 768}
	case 128, 64:
		return []int{128, 640}
	case 32:
		return []int{32, 96, 256, 288, 800}
	}
	return []int{1, 7, 16, 31, 100, 256}
}

// sameBits fails unless a and b agree bit for bit, any NaN equalling any other.
func sameBits(t *testing.T, want, got []float32, what string) {
	t.Helper()
	require.Len(t, got, len(want))
	for i := range want {
		if math.Float32bits(want[i]) != math.Float32bits(got[i]) && (want[i] == want[i] || got[i] == got[i]) {
			require.Failf(t, what, "output %d: want %v, got %v", i, want[i], got[i])
		}
	}
}

// TestMatMul compares every set with the reference, and the reference with the decoded weights in float64.
func TestMatMul(t *testing.T) {
	for _, typ := range supported {
		for _, n := range sizesOf(typ) {
			for _, rows := range []int{1, 3, 5, 8, 13} {
				for _, tokens := range []int{1, 2, 3, 7, 9} {
					name := fmt.Sprintf("%v n=%d rows=%d tokens=%d", typ, n, rows, tokens)
					rng := newRand(uint64(n*1000 + rows*10 + tokens))
					w, x := randWeights(rng, typ, rows, n), randFloats(rng, tokens*n)
					act, stride := activations(Reference(), typ, x, n)
					want := product(Reference(), typ, w, rows, n, act, stride, tokens)

					a, _ := ActFor(typ)
					dense := make([]float32, n)
					scale := make([]float64, len(want)) // sum of |terms|
					for r := range rows {
						Reference().Dequantize(typ, dense, w[r*len(w)/rows:])
						for u := range tokens {
							y := decodeAct(a, act[u*stride:], n)
							var sum float64
							for i := range n {
								sum += float64(dense[i]) * y[i]
								scale[u*rows+r] += math.Abs(float64(dense[i]) * y[i])
							}
							require.InDelta(t, sum, want[u*rows+r], 1e-6*scale[u*rows+r]+1e-3*offsetRounding(a, scale[u*rows+r]), name)
						}
					}
					for _, k := range Sets()[1:] {
						got := product(k, typ, w, rows, n, act, stride, tokens)
						if a != ActF32 {
							sameBits(t, want, got, k.Name+" "+name)
							continue
						}
						for i := range want {
							require.InDelta(t, want[i], got[i], 1e-6*scale[i], "%s %s", k.Name, name)
						}
					}
				}
			}
		}
	}
}

// offsetRounding is scale for Q8_1, whose products use the sum of the activations rounded to binary16.
func offsetRounding(a Act, scale float64) float64 {
	if a == ActQ8_1 {
		return scale
	}
	return 0
}

func decodeAct(a Act, act []byte, n int) []float64 {
	y := make([]float64, n)
	for i := range y {
		switch a {
		case ActF32:
			y[i] = float64(f32at(act, 4*i))
		case ActQ8_0:
			y[i] = float64(f16at(act, i/32*34)) * float64(int8(act[i/32*34+2+i%32]))
		case ActQ8_1:
			y[i] = float64(f16at(act, i/32*36)) * float64(int8(act[i/32*36+4+i%32]))
		case ActQ8_K:
			y[i] = float64(f32at(act, i/256*292)) * float64(int8(act[i/256*292+4+i%256]))
		}
	}
	return y
}

// TestMatMulSplits checks the promise of MatMul: cutting rows and tokens anywhere changes no bit. 70 tokens are more
// than one pass takes; n = 8192 needs several passes over the blocks of a row.
func TestMatMulSplits(t *testing.T) {
	for _, k := range Sets() {
		for _, typ := range supported {
			t.Run(k.Name+"/"+typ.String(), func(t *testing.T) {
				for _, shape := range []struct{ rows, n, tokens int }{{11, 512, 70}, {5, 8192, 21}} {
					rows, n, tokens := shape.rows, shape.n, shape.tokens
					if testing.Short() && k == Reference() {
						tokens = 5
					}
					rng := newRand(uint64(typ))
					w := randWeights(rng, typ, rows, n)
					act, stride := activations(k, typ, randFloats(rng, tokens*n), n)
					rowBytes := len(w) / rows
					whole := product(k, typ, w, rows, n, act, stride, tokens)
					got := make([]float32, len(whole))
					for r := range rows { // one by one
						for u := range tokens {
							k.MatMul(typ, w[r*rowBytes:(r+1)*rowBytes], 1, n, act[u*stride:], stride, 1, got[u*rows+r:], 1)
						}
					}
					sameBits(t, whole, got, "singles")
					clear(got)
					for range 3 { // by a random cross
						r, u := 1+rng.IntN(rows-1), 1+rng.IntN(tokens-1)
						for _, part := range []struct{ r0, r1, u0, u1 int }{{0, r, 0, u}, {r, rows, 0, u}, {0, r, u, tokens}, {r, rows, u, tokens}} {
							k.MatMul(typ, w[part.r0*rowBytes:], part.r1-part.r0, n, act[part.u0*stride:], stride, part.u1-part.u0,
								got[part.u0*rows+part.r0:], rows)
						}
						sameBits(t, whole, got, "parts")
					}
				}
			})
		}
	}
}

// TestMatMulStaysInside checks that nothing beside the outputs is written.
func TestMatMulStaysInside(t *testing.T) {
	for _, k := range Sets() {
		for _, typ := range supported {
			rng := newRand(3)
			const rows, n, tokens, stride = 5, 256, 3, 9
			w := randWeights(rng, typ, rows, n)
			act, actStride := activations(k, typ, randFloats(rng, tokens*n), n)
			out := slices.Repeat([]float32{-1}, tokens*stride)
			k.MatMul(typ, w, rows, n, act, actStride, tokens, out, stride)
			for i, v := range out {
				if i%stride >= rows {
					require.Equal(t, float32(-1), v, "%s %v %d", k.Name, typ, i)
				}
			}
			k.MatMul(typ, nil, 0, n, act, actStride, tokens, nil, 0)
			k.MatMul(typ, w, rows, n, nil, 0, 0, nil, 0)
			for _, tokens := range []int{1, 3} { // empty rows
				zeros := slices.Repeat([]float32{-1}, 9*tokens)
				k.MatMul(typ, nil, 9, 0, nil, 0, tokens, zeros, 9)
				require.Equal(t, make([]float32, 9*tokens), zeros)
			}
		}
	}
}

func TestMatMulRefuses(t *testing.T) {
	for _, k := range Sets() {
		w, act, out := make([]byte, 34*4), make([]byte, 34*4), make([]float32, 4)
		k.MatMul(dtype.Q8_0, w, 2, 64, act, 68, 2, out, 2)
		for name, call := range map[string]func(){
			"type":       func() { k.MatMul(dtype.I32, w, 1, 64, act, 68, 1, out, 1) },
			"block":      func() { k.MatMul(dtype.Q8_0, w, 1, 33, act, 68, 1, out, 1) },
			"weights":    func() { k.MatMul(dtype.Q8_0, w[:135:135], 2, 64, act, 68, 2, out, 2) },
			"acts":       func() { k.MatMul(dtype.Q8_0, w, 2, 64, act[:135], 68, 2, out, 2) },
			"out":        func() { k.MatMul(dtype.Q8_0, w, 2, 64, act, 68, 2, out[:3], 2) },
			"negative":   func() { k.MatMul(dtype.Q8_0, w, 2, 64, act, -68, 2, out, 2) },
			"quantize":   func() { k.Quantize(ActQ8_0, w[:33:33], make([]float32, 32)) },
			"odd":        func() { k.Quantize(ActQ8_K, w, make([]float32, 32)) },
			"act":        func() { k.Quantize(Act(9), w, make([]float32, 1)) },
			"dequantize": func() { k.Dequantize(dtype.Q8_0, make([]float32, 31), w) },
			"keys":       func() { k.DotRowsF32(out, make([]float32, 8), make([]float32, 15), 8, 2) },
			"values":     func() { k.AccRowsF16(out, out, make([]uint16, 7), 4, 2) },
			"rope":       func() { k.RopeNeox(out[:3:3], out[:2], out[:2]) },
		} {
			require.Panics(t, call, "%s %s", k.Name, name)
		}
	}
}

// TestHostileWeights feeds arbitrary bytes, with infinite, NaN and subnormal scales and codes no quantiser writes.
func TestHostileWeights(t *testing.T) {
	for _, typ := range supported {
		const rows, n = 9, 512
		rng := newRand(uint64(typ))
		x := randFloats(rng, 3*n)
		act, stride := activations(Reference(), typ, x, n)
		for _, fill := range []int{0x00, 0x80, 0xff, -1} {
			w := randWeights(rng, typ, rows, n)
			for i := range w {
				w[i] = byte(fill)
				if fill < 0 {
					w[i] = byte(rng.Uint32())
				}
			}
			if typ == dtype.Q8_0 && fill == 0x80 { // -128 in every code, scale 1
				for b := 0; b < len(w); b += 34 {
					w[b], w[b+1] = 0, 0x3c
				}
			}
			want := product(Reference(), typ, w, rows, n, act, stride, 3)
			for _, k := range Sets()[1:] {
				got := product(k, typ, w, rows, n, act, stride, 3)
				if a, _ := ActFor(typ); a != ActF32 {
					sameBits(t, want, got, fmt.Sprintf("%s %v %x", k.Name, typ, fill))
				}
			}
		}
	}
}

// TestQuantize compares bytes, on ordinary rows and on the ones where rounding, ties and overflow are decided.
func TestQuantize(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	rng := newRand(1)
	rows := map[string]func(x []float32){
		"normal": func([]float32) {},
		"zero":   func(x []float32) { clear(x) },
		"ties": func(x []float32) { // scale exactly 1 or -1: every half is a tie
			for i := range x {
				x[i] = float32(rng.IntN(509)-254) / 2
			}
			x[5] = 127
		},
		"almost ties": func(x []float32) {
			for i := range x {
				x[i] = math.Nextafter32(float32(rng.IntN(509)-254)/2, float32(rng.IntN(3)-1)*1000)
			}
			x[9] = -127
		},
		"tied maximum": func(x []float32) { x[3], x[200] = 9, -9 },
		"huge":         func(x []float32) { scaleBy(x, 3e37) },
		"tiny":         func(x []float32) { scaleBy(x, 1e-38) },
		"subnormal":    func(x []float32) { scaleBy(x, 1e-42) },
		"f16 overflow": func(x []float32) { scaleBy(x, 1e8) },
		"inf":          func(x []float32) { x[40] = -inf },
		"nan":          func(x []float32) { x[255] = nan },
		"negative nan": func(x []float32) { x[0] = float32(math.Copysign(math.NaN(), -1)) },
	}
	for name, edit := range rows {
		for range 20 {
			x := randFloats(rng, 512)
			edit(x)
			for _, a := range []Act{ActF32, ActQ8_0, ActQ8_1, ActQ8_K} {
				want := make([]byte, a.RowBytes(len(x)))
				Reference().Quantize(a, want, x)
				for _, k := range Sets()[1:] {
					got := slices.Repeat([]byte{0xee}, len(want))
					k.Quantize(a, got, x)
					require.Equal(t, want, got, "%s %v %s", k.Name, a, name)
				}
			}
		}
	}
	// Damage must show.
	for _, k := range Sets() {
		for _, a := range []Act{ActQ8_0, ActQ8_1, ActQ8_K} {
			x := make([]float32, 256)
			x[77] = inf
			act := make([]byte, a.RowBytes(256))
			k.Quantize(a, act, x)
			typ := map[Act]dtype.Type{ActQ8_0: dtype.Q8_0, ActQ8_1: dtype.Q4_1, ActQ8_K: dtype.Q6_K}[a]
			out := product(k, typ, randWeights(rng, typ, 1, 256), 1, 256, act, len(act), 1)
			require.True(t, math.IsNaN(float64(out[0])), "%s %v", k.Name, a)
		}
	}
}

func scaleBy(x []float32, f float32) {
	for i := range x {
		x[i] *= f
	}
}

// near fails unless every got is within rel of want, relative to scale.
func near(t *testing.T, want, got []float32, rel float64, what string) {
	t.Helper()
	for i := range want {
		w, g := float64(want[i]), float64(got[i])
		if math.IsNaN(w) && math.IsNaN(g) || w == g {
			continue
		}
		if !(math.Abs(w-g) <= rel*math.Abs(w)+0x1p-149) {
			require.Failf(t, what, "element %d: want %v, got %v", i, want[i], got[i])
		}
	}
}

// TestVectorOps runs the same table of cases on every set.
func TestVectorOps(t *testing.T) {
	ref := Reference()
	for _, k := range Sets()[1:] {
		for _, n := range []int{1, 2, 7, 8, 9, 16, 31, 64, 100, 128, 2048} {
			rng := newRand(uint64(n))
			a, b, w := randFloats(rng, n), randFloats(rng, n), randFloats(rng, n)
			run := func(name string, rel float64, f func(k *Set, dst []float32)) {
				want, got := slices.Clone(a), slices.Clone(a)
				f(ref, want)
				f(k, got)
				near(t, want, got, rel, fmt.Sprintf("%s %s n=%d", k.Name, name, n))
			}
			run("rms", 3e-7, func(k *Set, dst []float32) { k.RMSNorm(dst, b, w, 1e-6) })
			run("rms weightless in place", 3e-7, func(k *Set, dst []float32) { k.RMSNorm(dst, dst, nil, 1e-6) })
			run("swiglu", 5e-7, func(k *Set, dst []float32) { k.SwiGLU(dst, a, b) })
			run("swiglu in place", 5e-7, func(k *Set, dst []float32) { k.SwiGLU(dst, dst, b) })
			run("softmax", 5e-7, func(k *Set, dst []float32) { k.Softmax(dst) })
			run("add", 0, func(k *Set, dst []float32) { k.Add(dst, dst, b) })
			run("mul", 0, func(k *Set, dst []float32) { k.Mul(dst, a, b) })
			run("axpy", 1e-4, func(k *Set, dst []float32) { k.Axpy(dst, 0.37, b) }) // fused or not: cancellation shows
			if n%2 == 0 {
				run("rope", 0, func(k *Set, dst []float32) { k.RopeNeox(dst, b[:n/2], w[:n/2]) })
				run("partial rope", 0, func(k *Set, dst []float32) { k.RopeNeox(dst, b[:n/4], w[:n/4]) })
			}
			require.InDelta(t, ref.Dot(a, b), k.Dot(a, b), 1e-6*float64(n))

			h, h2 := make([]uint16, n), make([]uint16, n)
			ref.ToF16(h, a)
			k.ToF16(h2, a)
			require.Equal(t, h, h2)
		}
	}
}

func TestVectorOpsEdges(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	for _, k := range Sets() {
		t.Run(k.Name, func(t *testing.T) {
			k.Softmax(nil)
			x := []float32{1000, -inf, 1000, -inf, -1000, 1000, 1000, -inf, -inf}
			k.Softmax(x)
			near(t, []float32{.25, 0, .25, 0, 0, .25, .25, 0, 0}, x, 1e-7, "masked softmax")
			for n := 1; n < 20; n++ {
				x = make([]float32, n)
				x[n/2] = nan
				k.Softmax(x)
				for _, v := range x {
					require.True(t, v != v, "nan must spread: %v", x)
				}
				x = slices.Repeat([]float32{-inf}, n)
				k.Softmax(x)
				require.True(t, x[0] != x[0])
			}
			gate := []float32{inf, -inf, nan, 200, -200, -90, -100, -104, 0, float32(math.Copysign(0, -1))}
			up := slices.Repeat([]float32{2}, len(gate))
			want, got := make([]float32, len(gate)), make([]float32, len(gate))
			Reference().SwiGLU(want, gate, up)
			k.SwiGLU(got, gate, up)
			for i := range want { // exp in float32 overflows before the quotient underflows
				if want[i] == want[i] && i != 0 {
					require.InDelta(t, want[i], got[i], 1e-36, "swiglu(%v)", gate[i])
				} else {
					near(t, want[i:i+1], got[i:i+1], 0, "swiglu")
				}
			}
			one := []float32{3}
			k.RMSNorm(one, []float32{0}, nil, 1e-6)
			require.Zero(t, one[0])

			h := make([]uint16, 9)
			k.ToF16(h, []float32{nan, inf, -inf, 65520, 65519, 0x1p-25, 0x1.8p-25, -0x1p-24, 1})
			require.Equal(t, []uint16{0x7e00, 0x7c00, 0xfc00, 0x7c00, 0x7bff, 0, 1, 0x8001, 0x3c00}, h)
		})
	}
}

// TestExp sweeps the whole range of exp through Softmax of (0, x): the second element over the first is exp(x).
func TestExp(t *testing.T) {
	for _, k := range Sets() {
		var worst float64
		for v := float32(0); v > -87; v -= 0.00917 {
			x := []float32{0, v}
			k.Softmax(x)
			want := math.Exp(float64(v)) / (1 + math.Exp(float64(v)))
			worst = max(worst, math.Abs(float64(x[1])-want)/want)
		}
		require.Less(t, worst, 3e-7, k.Name)
	}
}

func TestCacheRows(t *testing.T) {
	ref := Reference()
	for _, d := range []int{1, 8, 20, 64, 128, 256, 576} {
		for _, rows := range []int{0, 1, 3, 4, 6, 17} {
			rng := newRand(uint64(d*100 + rows))
			stride := d + 5
			f := randFloats(rng, rows*stride+d)
			h := make([]uint16, len(f))
			ref.ToF16(h, f)
			q, p, start := randFloats(rng, d), randFloats(rng, rows), randFloats(rng, d)
			for _, k := range Sets() {
				name := fmt.Sprintf("%s d=%d rows=%d", k.Name, d, rows)
				for u := range rows {
					want, wantHalf := 0.0, 0.0
					for j := range q {
						want += float64(q[j]) * float64(f[u*stride+j])
						wantHalf += float64(q[j]) * float64(halfToFloat(h[u*stride+j]))
					}
					out, outHalf := make([]float32, rows), make([]float32, rows)
					k.DotRowsF32(out, q, f, stride, rows)
					k.DotRowsF16(outHalf, q, h, stride, rows)
					require.InDelta(t, want, out[u], 1e-6*float64(d)+1e-6, name)
					require.InDelta(t, wantHalf, outHalf[u], 1e-6*float64(d)+1e-6, name)

					var one [1]float32
					k.DotRowsF32(one[:], q, f[u*stride:], stride, 1)
					sameBits(t, out[u:u+1], one[:], name+" alone")
				}
				want, wantHalf := make([]float64, d), make([]float64, d)
				for j := range want {
					want[j], wantHalf[j] = float64(start[j]), float64(start[j])
					for u := range rows {
						want[j] += float64(p[u]) * float64(f[u*stride+j])
						wantHalf[j] += float64(p[u]) * float64(halfToFloat(h[u*stride+j]))
					}
				}
				sum, sumHalf, parts := slices.Clone(start), slices.Clone(start), slices.Clone(start)
				k.AccRowsF32(sum, p, f, stride, rows)
				k.AccRowsF16(sumHalf, p, h, stride, rows)
				for j := range want {
					require.InDelta(t, want[j], sum[j], 2e-5, name)
					require.InDelta(t, wantHalf[j], sumHalf[j], 2e-5, name)
				}
				cut := rows / 2
				k.AccRowsF32(parts, p[:cut], f, stride, cut)
				k.AccRowsF32(parts, p[cut:], f[cut*stride:], stride, rows-cut)
				sameBits(t, sum, parts, name+" in parts")
			}
		}
	}
}

func TestSets(t *testing.T) {
	require.Same(t, Reference(), Sets()[0])
	for _, s := range Sets() {
		got, ok := ByName(s.Name)
		require.True(t, ok)
		require.Same(t, s, got)
	}
	require.Same(t, Best(), Sets()[len(Sets())-1])
	_, ok := ByName("abacus")
	require.False(t, ok)
	_, ok = ActFor(dtype.I32)
	require.False(t, ok)
}

// FuzzMatMul feeds arbitrary weight bytes of every quantised type to every set: same bits, no crash.
func FuzzMatMul(f *testing.F) {
	f.Add(byte(0), []byte{1, 2, 3})
	f.Add(byte(5), []byte{0xff, 0x7c, 0x80})
	f.Add(byte(9), slices.Repeat([]byte{0x80}, 300))
	for i := range supported[3:] {
		f.Add(byte(i), lcgBytes(supported[3+i], 211))
	}
	f.Fuzz(func(t *testing.T, pick byte, data []byte) {
		typ := supported[3+int(pick)%(len(supported)-3)]
		if len(data) == 0 {
			return
		}
		const rows, n, tokens = 3, 512, 2
		w := make([]byte, rows*n/typ.BlockElems()*typ.BlockBytes())
		for i := range w {
			w[i] = data[i%len(data)]
		}
		act, stride := activations(Reference(), typ, randFloats(newRand(4), tokens*n), n)
		want := product(Reference(), typ, w, rows, n, act, stride, tokens)
		for _, k := range Sets()[1:] {
			sameBits(t, want, product(k, typ, w, rows, n, act, stride, tokens), k.Name+" "+typ.String())
		}
	})
}
