package kernel

import "encoding/binary"

// Super-blocks of 256.

// scaledFunc writes the 256 integer codes of block b and the scale of every 16 of them, and returns the scale of the
// block: element i is d * sc[i/16] * q[i].
type scaledFunc func(q *[256]int8, sc *[16]int32, b []byte) (d float32)

// scaled is the format of blocks of that form.
func scaled(blockBytes int, codes scaledFunc) format {
	return format{act: ActQ8_K, blockElems: 256, blockBytes: blockBytes,
		decode: func(dst []float32, src []byte) {
			var q [256]int8
			var sc [16]int32
			for ; len(dst) > 0; dst, src = dst[256:], src[blockBytes:] {
				d := codes(&q, &sc, src)
				for i, v := range q {
					dst[i] = d * float32(sc[i/16]) * float32(v)
				}
			}
		},
		dot: func(w, act []byte, n int) float32 {
			var q [256]int8
			var sc [16]int32
			var acc float32
			for ; n > 0; n, w, act = n-256, w[blockBytes:], act[bytesQ8_K:] {
				d := codes(&q, &sc, w)
				var sum int32
				for s := range sc {
					sum += sc[s] * dotInts(q[16*s:16*s+16], act[4+16*s:])
				}
				acc += float32(float32(f32at(act, 0)*d) * float32(sum))
			}
			return acc
		},
	}
}

// scalesK45 unpacks the eight 6-bit scales and mins of a Q4_K or Q5_K block.
func scalesK45(s []byte) (sc, mn [8]int32) {
	for b := range 4 {
		sc[b], mn[b] = int32(s[b]&63), int32(s[b+4]&63)
		sc[b+4] = int32(s[b+8]&15 | s[b]>>6<<4)
		mn[b+4] = int32(s[b+8]>>4 | s[b+4]>>6<<4)
	}
	return sc, mn
}

func codesQ4_K(q *[256]int8, b []byte) { nibblesK(q, b[16:144]) }

func codesQ5_K(q *[256]int8, b []byte) {
	nibblesK(q, b[48:176])
	for i := range q {
		q[i] += int8(b[16+i%32] >> (i / 32) & 1 << 4)
	}
}

func nibblesK(q *[256]int8, qs []byte) {
	for i, v := range qs {
		at := i/32*64 + i%32
		q[at], q[at+32] = int8(v&15), int8(v>>4)
	}
}

func decodeK45(blockBytes int, codes func(q *[256]int8, b []byte)) func(dst []float32, src []byte) {
	return func(dst []float32, src []byte) {
		var q [256]int8
		for ; len(dst) > 0; dst, src = dst[256:], src[blockBytes:] {
			codes(&q, src)
			d, dmin := f16at(src, 0), f16at(src, 2)
			sc, mn := scalesK45(src[4:16])
			for i, v := range q {
				dst[i] = float32(float32(d*float32(sc[i/32]))*float32(v)) - float32(dmin*float32(mn[i/32]))
			}
		}
	}
}

func dotK45(blockBytes int, codes func(q *[256]int8, b []byte)) func(w, act []byte, n int) float32 {
	return func(w, act []byte, n int) float32 {
		var q [256]int8
		var acc float32
		for ; n > 0; n, w, act = n-256, w[blockBytes:], act[bytesQ8_K:] {
			codes(&q, w)
			sc, mn := scalesK45(w[4:16])
			var sum, mins int32
			for b := range 8 {
				sum += sc[b] * dotInts(q[32*b:32*b+32], act[4+32*b:])
				mins += mn[b] * (bsum(act, 2*b) + bsum(act, 2*b+1))
			}
			acc += float32(f32at(act, 0) * (float32(f16at(w, 0)*float32(sum)) - float32(f16at(w, 2)*float32(mins))))
		}
		return acc
	}
}

// bsum returns the sum of codes 16*s .. 16*s+15 of a Q8_K block.
func bsum(act []byte, s int) int32 {
	return int32(int16(binary.LittleEndian.Uint16(act[260+2*s:])))
}

func codesQ6_K(q *[256]int8, sc *[16]int32, b []byte) float32 {
	for h := range 2 {
		ql, qh := b[64*h:], b[128+32*h:]
		for l := range 32 {
			at := 128*h + l
			q[at] = int8(ql[l]&15|qh[l]&3<<4) - 32
			q[at+32] = int8(ql[l+32]&15|qh[l]>>2&3<<4) - 32
			q[at+64] = int8(ql[l]>>4|qh[l]>>4&3<<4) - 32
			q[at+96] = int8(ql[l+32]>>4|qh[l]>>6<<4) - 32
		}
	}
	for s := range sc {
		sc[s] = int32(int8(b[192+s]))
	}
	return f16at(b, 208)
}

// twoBits writes the codes 0..3 that four planes of two bits in 64 bytes hold.
func twoBits(q *[256]int8, qs []byte) {
	for i := range q {
		q[i] = int8(qs[i/128*32+i%32] >> (i % 128 / 32 * 2) & 3)
	}
}

func codesQ3_K(q *[256]int8, sc *[16]int32, b []byte) float32 {
	twoBits(q, b[32:96])
	for i := range q {
		if b[i%32]>>(i/32)&1 == 0 {
			q[i] -= 4
		}
	}
	scales := b[96:108]
	for s := range sc {
		low := scales[s%8] >> (s / 8 * 4) & 15
		high := scales[8+s%4] >> (s / 4 * 2) & 3
		sc[s] = int32(low|high<<4) - 32
	}
	return f16at(b, 108)
}

func codesIQ4_XS(q *[256]int8, sc *[16]int32, b []byte) float32 {
	for i, v := range b[8:136] {
		at := i/16*32 + i%16
		q[at], q[at+16] = nonlinear4[v&15], nonlinear4[v>>4]
	}
	high := binary.LittleEndian.Uint16(b[2:])
	for s := range sc {
		g := s / 2
		sc[s] = int32(b[4+g/2]>>(g%2*4)&15) | int32(high>>(2*g)&3)<<4 - 32
	}
	return f16at(b, 0)
}

func codesTQ1_0(q *[256]int8, sc *[16]int32, b []byte) float32 {
	pow3 := [5]byte{1, 3, 9, 27, 81}
	digit := func(v byte, n int) int8 { return int8(uint16(v*pow3[n])*3>>8) - 1 }
	for i := range 160 {
		q[i] = digit(b[i%32], i/32)
	}
	for i := range 80 {
		q[160+i] = digit(b[32+i%16], i/16)
	}
	for i := range 16 {
		q[240+i] = digit(b[48+i%4], i/4)
	}
	ones(sc)
	return f16at(b, 52)
}

func codesTQ2_0(q *[256]int8, sc *[16]int32, b []byte) float32 {
	twoBits(q, b[:64])
	for i := range q {
		q[i]--
	}
	ones(sc)
	return f16at(b, 64)
}

func ones(sc *[16]int32) {
	for s := range sc {
		sc[s] = 1
	}
}

func decodeQ2_K(dst []float32, src []byte) {
	var q [256]int8
	for ; len(dst) > 0; dst, src = dst[256:], src[84:] {
		twoBits(&q, src[16:80])
		d, dmin := f16at(src, 80), f16at(src, 82)
		for i, v := range q {
			s := src[i/16]
			dst[i] = float32(float32(d*float32(s&15))*float32(v)) - float32(dmin*float32(s>>4))
		}
	}
}

func dotQ2_K(w, act []byte, n int) float32 {
	var q [256]int8
	var acc float32
	for ; n > 0; n, w, act = n-256, w[84:], act[bytesQ8_K:] {
		twoBits(&q, w[16:80])
		var sum, mins int32
		for s, v := range w[:16] {
			sum += int32(v&15) * dotInts(q[16*s:16*s+16], act[4+16*s:])
			mins += int32(v>>4) * bsum(act, s)
		}
		acc += float32(f32at(act, 0) * (float32(f16at(w, 80)*float32(sum)) - float32(f16at(w, 82)*float32(mins))))
	}
	return acc
}
