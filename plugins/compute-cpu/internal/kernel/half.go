package kernel

import "math"

// halfToFloat converts an IEEE binary16 to float32: exact, a signalling NaN becomes quiet as in VCVTPH2PS.
func halfToFloat(h uint16) float32 {
	sign := uint32(h&0x8000) << 16
	exp, frac := uint32(h>>10)&31, uint32(h&0x3ff)
	switch {
	case exp == 31 && frac != 0:
		return math.Float32frombits(sign | 0x7fc00000 | frac<<13)
	case exp == 31:
		return math.Float32frombits(sign | 0x7f800000)
	case exp == 0: // zero or subnormal: frac * 2^-24
		return math.Float32frombits(sign | math.Float32bits(float32(frac)*0x1p-24))
	}
	return math.Float32frombits(sign | (exp+112)<<23 | frac<<13)
}

// floatToHalf rounds to nearest even; overflow gives Inf, small values subnormals, a NaN keeps its upper payload and
// becomes quiet as in VCVTPS2PH.
func floatToHalf(f float32) uint16 {
	b := math.Float32bits(f)
	sign, abs := uint16(b>>16)&0x8000, b&^(1<<31)
	switch {
	case abs > 0x7f800000:
		return sign | 0x7e00 | uint16(abs>>13)&0x3ff
	case abs >= 0x477ff000: // 65520, halfway between the largest half and 2^16
		return sign | 0x7c00
	case abs < 0x38800000: // below 2^-14: a multiple of 2^-24, which the sum with 0.5 rounds to
		return sign | uint16(math.Float32bits(math.Float32frombits(abs)+0.5)-0x3f000000)
	}
	abs += 0xfff + abs>>13&1 // round the 13 dropped bits; a carry moves into the exponent
	return sign | uint16(abs>>13-112<<10)
}

// bfloatToFloat converts a bfloat16, the upper half of a float32: exact.
func bfloatToFloat(h uint16) float32 { return math.Float32frombits(uint32(h) << 16) }
