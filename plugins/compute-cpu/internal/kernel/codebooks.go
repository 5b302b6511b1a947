package kernel

import (
	"encoding/binary"
	"math/bits"
)

// Codebook formats: eight (IQ1, IQ2) or four (IQ3) elements are one entry of a grid, and IQ2 and IQ3 give each element
// a sign. Scales are odd multiples 2c+1 of a fraction of d, so that codes and scales are integers.

// withEvenSign completes seven sign bits with an eighth that makes the number of set bits even.
func withEvenSign(t uint32) byte {
	t &= 127
	return byte(t | uint32(bits.OnesCount32(t)&1)<<7)
}

// signed writes entry n of a grid of len(q) elements an entry, negated where a bit of signs is set.
func signed(q, grid []int8, n int, signs byte) {
	for j, v := range grid[n*len(q) : (n+1)*len(q)] {
		if signs>>j&1 != 0 {
			v = -v
		}
		q[j] = v
	}
}

func oddScale(c uint32) int32 { return int32(2*c + 1) }

func codesIQ2_XXS(q *[256]int8, sc *[16]int32, b []byte) float32 {
	for g := range 8 {
		index, u := b[2+8*g:], binary.LittleEndian.Uint32(b[6+8*g:])
		for p := range 4 {
			k := 4*g + p
			signed(q[8*k:8*k+8], gridIQ2_XXS, int(index[p]), withEvenSign(u>>(7*p)))
		}
		sc[2*g] = oddScale(u >> 28)
		sc[2*g+1] = sc[2*g]
	}
	return f16at(b, 0) * 0.125
}

func codesIQ2_XS(q *[256]int8, sc *[16]int32, b []byte) float32 {
	for k := range 32 {
		v := uint32(binary.LittleEndian.Uint16(b[2+2*k:]))
		signed(q[8*k:8*k+8], gridIQ2_XS, int(v&511), withEvenSign(v>>9))
	}
	nibbleScales(sc, b[66:74])
	return f16at(b, 0) * 0.125
}

func codesIQ2_S(q *[256]int8, sc *[16]int32, b []byte) float32 {
	for k := range 32 {
		n := int(b[2+k]) | int(b[66+k/4])>>(k%4*2)&3<<8
		signed(q[8*k:8*k+8], gridIQ2_S, n, b[34+k])
	}
	nibbleScales(sc, b[74:82])
	return f16at(b, 0) * 0.125
}

// nibbleScales unpacks 16 scales, low nibbles first.
func nibbleScales(sc *[16]int32, b []byte) {
	for s := range sc {
		sc[s] = oddScale(uint32(b[s/2] >> (s % 2 * 4) & 15))
	}
}

func codesIQ3_XXS(q *[256]int8, sc *[16]int32, b []byte) float32 {
	for g := range 8 {
		u := binary.LittleEndian.Uint32(b[66+4*g:])
		for t := range 8 {
			at := 32*g + 4*t
			signed(q[at:at+4], gridIQ3_XXS, int(b[2+8*g+t]), withEvenSign(u>>(t/2*7))>>(t%2*4))
		}
		sc[2*g] = oddScale(u >> 28)
		sc[2*g+1] = sc[2*g]
	}
	return f16at(b, 0) * 0.25
}

func codesIQ3_S(q *[256]int8, sc *[16]int32, b []byte) float32 {
	for g := range 8 {
		for t := range 8 {
			at := 32*g + 4*t
			n := int(b[2+8*g+t]) | int(b[66+g])>>t&1<<8
			signed(q[at:at+4], gridIQ3_S, n, b[74+4*g+t/2]>>(t%2*4))
		}
		sc[2*g] = oddScale(uint32(b[106+g/2] >> (g % 2 * 4) & 15))
		sc[2*g+1] = sc[2*g]
	}
	return f16at(b, 0)
}

// shifted writes entry n of the IQ1 grid, in eighths, with the shift of its elements: +1/8, or -1/8 if down is not 0.
func shifted(q []int8, n int, down uint32) {
	shift := int8(1)
	if down != 0 {
		shift = -1
	}
	for j, v := range gridIQ1[8*n : 8*n+8] {
		q[j] = v + shift
	}
}

func codesIQ1_S(q *[256]int8, sc *[16]int32, b []byte) float32 {
	for g := range 8 {
		h := uint32(binary.LittleEndian.Uint16(b[34+2*g:]))
		for p := range 4 {
			k := 4*g + p
			shifted(q[8*k:8*k+8], int(b[2+k])|int(h>>(3*p)&7)<<8, h>>15)
		}
		sc[2*g] = oddScale(h >> 12 & 7)
		sc[2*g+1] = sc[2*g]
	}
	return f16at(b, 0) * 0.125
}

func codesIQ1_M(q *[256]int8, sc *[16]int32, b []byte) float32 {
	for k := range 32 {
		z := uint32(b[32+k/2] >> (k % 2 * 4) & 15)
		shifted(q[8*k:8*k+8], int(b[k])|int(z&7)<<8, z&8)
	}
	var d uint16
	for i := range 4 {
		v := binary.LittleEndian.Uint16(b[48+2*i:])
		d |= v >> 12 << (4 * i)
		for j := range 4 {
			sc[4*i+j] = oddScale(uint32(v >> (3 * j) & 7))
		}
	}
	return halfToFloat(d) * 0.125
}
