//go:build cgo

// Products for every 64-bit ARM processor: the dot product of bytes is made of what the base instruction set has.

#include "neon_arm64.h"

#include <arm_neon.h>

#define TARGET
#define MATMUL kernel_neon_matmul

// Lane i of the result is that of acc plus a[4i]*b[4i] + ... + a[4i+3]*b[4i+3]. b is an activation and so never -128,
// and two products fit 16 bits.
static inline __attribute__((always_inline)) int32x4_t dot(int32x4_t acc, int8x16_t a, int8x16_t b) {
    int16x8_t low = vmull_s8(vget_low_s8(a), vget_low_s8(b)), high = vmull_high_s8(a, b);
    return vpadalq_s16(acc, vpaddq_s16(low, high));
}

// The same with the four bytes of one 32-bit lane of b for all lanes of a.
#define DOT_LANE(acc, a, b, lane) dot(acc, a, vreinterpretq_s8_s32(vdupq_laneq_s32(vreinterpretq_s32_s8(b), lane)))

#include "neon_products_arm64.h"
