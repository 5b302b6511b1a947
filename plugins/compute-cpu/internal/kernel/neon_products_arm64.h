// Products of quantised and float weight rows with activation rows. A template for the neon_*_arm64.c that include it
// after defining TARGET (a function attribute), MATMUL (the name of the one function it exports), dot and DOT_LANE.
//
// Integer sums inside a block are exact, so lanes may hold anything: the elements of a row or the rows of a group. The
// float part is the same for every shape: one accumulator per output, block after block, multiply and add unfused, as
// written in format.go. Change one and all must change.
//
// The shapes fit the 32 vector registers and four-wide pipelines; they have been read as machine code and checked in an
// emulator, not timed on a processor.

#include <string.h>

#define INLINE static inline __attribute__((always_inline)) TARGET
#define INLINE_ANY static inline __attribute__((always_inline)) // usable outside TARGET too
#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

enum {
    F32 = 0, F16 = 1, Q4_0 = 2, Q4_1 = 3, Q5_0 = 6, Q5_1 = 7, Q8_0 = 8, Q2_K = 10, Q3_K = 11, Q4_K = 12, Q5_K = 13, Q6_K = 14,
    IQ4_NL = 20, IQ4_XS = 23, BF16 = 30, MXFP4 = 39
};

INLINE uint8x16_t load16(const uint8_t *p) { return vld1q_u8(p); }
INLINE int8x16_t load16s(const uint8_t *p) { return vreinterpretq_s8_u8(vld1q_u8(p)); }
INLINE uint16_t load_u16(const void *p) { uint16_t v; memcpy(&v, p, 2); return v; }
INLINE uint32_t load_u32(const void *p) { uint32_t v; memcpy(&v, p, 4); return v; }
INLINE float load_f32(const void *p) { float v; memcpy(&v, p, 4); return v; }
INLINE float load_f16(const void *p) { __fp16 v; memcpy(&v, p, 2); return (float)v; }

// Shifts every byte left by k, or right by -k.
INLINE uint8x16_t shift(uint8x16_t v, int k) { return vshlq_u8(v, vdupq_n_s8((int8_t)k)); }

// The sums of the lanes of four vectors, in order.
INLINE int32x4_t sum4(const int32x4_t v[4]) { return vpaddq_s32(vpaddq_s32(v[0], v[1]), vpaddq_s32(v[2], v[3])); }

// Turns four rows of four 32-bit elements into four columns.
INLINE void transpose4(int32x4_t v[4]) {
    int64x2_t a = vreinterpretq_s64_s32(vtrn1q_s32(v[0], v[1])), b = vreinterpretq_s64_s32(vtrn2q_s32(v[0], v[1]));
    int64x2_t c = vreinterpretq_s64_s32(vtrn1q_s32(v[2], v[3])), d = vreinterpretq_s64_s32(vtrn2q_s32(v[2], v[3]));
    v[0] = vreinterpretq_s32_s64(vtrn1q_s64(a, c));
    v[1] = vreinterpretq_s32_s64(vtrn1q_s64(b, d));
    v[2] = vreinterpretq_s32_s64(vtrn2q_s64(a, c));
    v[3] = vreinterpretq_s32_s64(vtrn2q_s64(b, d));
}

// Four binary16 numbers, stride apart.
INLINE float32x4_t halves4(const uint8_t *w, int64_t stride) {
    uint64_t low = load_u16(w) | (uint64_t)load_u16(w + stride) << 16;
    uint64_t high = load_u16(w + 2 * stride) | (uint64_t)load_u16(w + 3 * stride) << 16;
    return vcvt_f32_f16(vreinterpret_f16_u64(vcreate_u64(low | high << 32)));
}

// ---- types -------------------------------------------------------------------------------------------------------

INLINE_ANY int is_k(int type) { return (type >= Q2_K && type <= Q6_K) || type == IQ4_XS; } // super-blocks of 256

INLINE_ANY int block_bytes(int type) {
    switch (type) {
    case Q4_0: case IQ4_NL: return 18;
    case Q4_1: return 20;
    case Q5_0: return 22;
    case Q5_1: return 24;
    case Q8_0: return 34;
    case MXFP4: return 17;
    case Q2_K: return 84;
    case Q3_K: return 110;
    case Q4_K: return 144;
    case Q5_K: return 176;
    case IQ4_XS: return 136;
    default: return 210; // Q6_K
    }
}

INLINE_ANY int has_offset(int type) { return type == Q4_1 || type == Q5_1; } // and then Q8_1 activations
INLINE_ANY int act_bytes(int type) { return is_k(type) ? 292 : has_offset(type) ? 36 : 34; }
INLINE_ANY int act_codes(int type) { return is_k(type) || has_offset(type) ? 4 : 2; }

// ---- blocks of 32 ------------------------------------------------------------------------------------------------

// All bits of byte i where bit i of bits is set.
INLINE uint8x16_t spread_bits(uint32_t bits) {
    const uint8x16_t bit = vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201));
    return vtstq_u8(vcombine_u8(vdup_n_u8((uint8_t)bits), vdup_n_u8((uint8_t)(bits >> 8))), bit);
}

INLINE int8x16_t lookup(const int8_t table[16], uint8x16_t codes) { return vqtbl1q_s8(vld1q_s8(table), codes); }

static const int8_t fp4[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12}; // twice the E2M1 values
static const int8_t nonlinear4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

// Half c of the codes of a block.
INLINE int8x16_t codes32(int type, const uint8_t *b, int c) {
    if (type == Q8_0) return load16s(b + 2 + 16 * c);
    uint8x16_t q = load16(b + block_bytes(type) - 16);
    q = c == 0 ? vandq_u8(q, vdupq_n_u8(15)) : vshrq_n_u8(q, 4);
    if (type == Q5_0 || type == Q5_1) {
        uint32_t fifth = load_u32(b + (type == Q5_0 ? 2 : 4)) >> (16 * c);
        q = vorrq_u8(q, vandq_u8(spread_bits(fifth), vdupq_n_u8(16)));
    }
    switch (type) {
    case IQ4_NL: return lookup(nonlinear4, q);
    case MXFP4: return lookup(fp4, q);
    case Q4_0: return vsubq_s8(vreinterpretq_s8_u8(q), vdupq_n_s8(8));
    case Q5_0: return vsubq_s8(vreinterpretq_s8_u8(q), vdupq_n_s8(16));
    default: return vreinterpretq_s8_u8(q);
    }
}

// 2^(e-128) for four E8M0 bytes, NaN for 255: e in the exponent field is 2^(e-127), except that 0 must become the
// subnormal 2^-127 and 255, which reads as Inf, NaN.
INLINE float32x4_t half_e8m0(const uint8_t *w, int64_t stride) {
    uint32_t e = w[0] | (uint32_t)w[stride] << 8 | (uint32_t)w[2 * stride] << 16 | (uint32_t)w[3 * stride] << 24;
    uint32x4_t bits = vshlq_n_u32(vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(e)))), 23);
    float32x4_t v = vreinterpretq_f32_u32(vmaxq_u32(bits, vdupq_n_u32(0x00400000)));
    return vaddq_f32(vmulq_n_f32(v, 0.5f), vsubq_f32(v, v));
}

// The scales of four blocks.
INLINE float32x4_t scales4(int type, const uint8_t *w, int64_t stride) {
    return type == MXFP4 ? half_e8m0(w, stride) : halves4(w, stride);
}

// Adds one block to acc: d and m are scale and offset of the rows, sum their integer products.
INLINE float32x4_t add32(int type, float32x4_t acc, float32x4_t d, float32x4_t m, int32x4_t sum, const uint8_t *act) {
    float32x4_t v = vmulq_f32(vmulq_n_f32(d, load_f16(act)), vcvtq_f32_s32(sum));
    if (has_offset(type)) v = vaddq_f32(v, vmulq_n_f32(m, load_f16(act + 2)));
    return vaddq_f32(acc, v);
}

// Four rows, one token.
INLINE float32x4_t vec32(int type, const uint8_t *w, int64_t stride, int64_t blocks, const uint8_t *act) {
    float32x4_t acc = vdupq_n_f32(0);
    for (; blocks > 0; blocks--, w += block_bytes(type), act += act_bytes(type)) {
        const uint8_t *y = act + act_codes(type);
        int8x16_t y0 = load16s(y), y1 = load16s(y + 16);
        int32x4_t p[4];
        UNROLL for (int r = 0; r < 4; r++) {
            p[r] = dot(vdupq_n_s32(0), codes32(type, w + r * stride, 0), y0);
            p[r] = dot(p[r], codes32(type, w + r * stride, 1), y1);
        }
        float32x4_t m = has_offset(type) ? halves4(w + 2, stride) : acc;
        acc = add32(type, acc, scales4(type, w, stride), m, sum4(p), act);
    }
    return acc;
}

// ---- super-blocks of 256 -----------------------------------------------------------------------------------------

INLINE_ANY int has_mins(int type) { return type == Q2_K || type == Q4_K || type == Q5_K; }
INLINE_ANY int scales(int type) { return type == Q2_K || type == Q3_K || type == Q6_K ? 16 : 8; } // in a block
INLINE_ANY int at_d(int type) { return type == Q2_K ? 80 : type == Q3_K ? 108 : type == Q6_K ? 208 : 0; }

// Codes 16c .. 16c+15 of a block.
INLINE int8x16_t codes_k(int type, const uint8_t *w, int c) {
    const int h = c / 8, j = c % 8 / 2, s = 16 * (c % 2); // half of the block, plane of 32, bytes into the plane
    if (type == IQ4_XS) {
        uint8x16_t q = load16(w + 8 + 16 * (c / 2));
        return lookup(nonlinear4, c % 2 == 0 ? vandq_u8(q, vdupq_n_u8(15)) : vshrq_n_u8(q, 4));
    }
    if (type == Q2_K || type == Q3_K) {
        uint8x16_t q = vandq_u8(shift(load16(w + (type == Q2_K ? 16 : 32) + 32 * h + s), -2 * j), vdupq_n_u8(3));
        if (type == Q2_K) return vreinterpretq_s8_u8(q);
        q = vorrq_u8(q, vandq_u8(shift(load16(w + s), 2 - c / 2), vdupq_n_u8(4)));
        return vsubq_s8(vreinterpretq_s8_u8(q), vdupq_n_s8(4));
    }
    if (type == Q6_K) {
        uint8x16_t q = load16(w + 64 * h + 32 * (j % 2) + s);
        q = j < 2 ? vandq_u8(q, vdupq_n_u8(15)) : vshrq_n_u8(q, 4);
        q = vorrq_u8(q, vandq_u8(shift(load16(w + 128 + 32 * h + s), 4 - 2 * j), vdupq_n_u8(48)));
        return vsubq_s8(vreinterpretq_s8_u8(q), vdupq_n_s8(32));
    }
    uint8x16_t q = load16(w + (type == Q5_K ? 48 : 16) + 32 * (c / 4) + s);
    q = j % 2 == 0 ? vandq_u8(q, vdupq_n_u8(15)) : vshrq_n_u8(q, 4);
    if (type == Q5_K) q = vorrq_u8(q, vandq_u8(shift(load16(w + 16 + s), 4 - c / 2), vdupq_n_u8(16)));
    return vreinterpretq_s8_u8(q);
}

// The integer scales and mins of a block, four to a vector.
typedef struct {
    int32x4_t sc[4], mn[4];
} scales_k;

INLINE void widen(int32x4_t v[4], int8x16_t bytes) {
    int16x8_t low = vmovl_s8(vget_low_s8(bytes)), high = vmovl_high_s8(bytes);
    v[0] = vmovl_s16(vget_low_s16(low));
    v[1] = vmovl_high_s16(low);
    v[2] = vmovl_s16(vget_low_s16(high));
    v[3] = vmovl_high_s16(high);
}

INLINE scales_k unpack_scales(int type, const uint8_t *w) {
    scales_k s;
    int8x16_t sc, mn = vdupq_n_s8(0);
    if (type == Q6_K) {
        sc = load16s(w + 192);
    } else if (type == Q2_K) {
        uint8x16_t v = load16(w);
        sc = vreinterpretq_s8_u8(vandq_u8(v, vdupq_n_u8(15)));
        mn = vreinterpretq_s8_u8(vshrq_n_u8(v, 4));
    } else if (type == Q3_K) { // low four bits of two scales in each of 8 bytes, high two of four in each of 4
        const int8x16_t down = vreinterpretq_s8_u32((uint32x4_t){0, 0xfefefefe, 0xfcfcfcfc, 0xfafafafa});
        uint8x8_t v = vld1_u8(w + 96);
        uint8x16_t low = vcombine_u8(vand_u8(v, vdup_n_u8(15)), vshr_n_u8(v, 4));
        uint8x16_t high = vshlq_u8(vreinterpretq_u8_u32(vdupq_n_u32(load_u32(w + 104))), down);
        low = vorrq_u8(low, vshlq_n_u8(vandq_u8(high, vdupq_n_u8(3)), 4));
        sc = vsubq_s8(vreinterpretq_s8_u8(low), vdupq_n_s8(32));
    } else if (type == IQ4_XS) { // low four bits of two scales in each of 4 bytes, high two of all in 16 bits
        const int32x4_t down0 = {0, -2, -4, -6}, down1 = {-8, -10, -12, -14};
        uint8x8_t v = vcreate_u8(load_u32(w + 4));
        uint8x8_t low = vzip1_u8(vand_u8(v, vdup_n_u8(15)), vshr_n_u8(v, 4));
        uint32x4_t bits = vdupq_n_u32(load_u16(w + 2)), three = vdupq_n_u32(3);
        uint16x8_t high = vcombine_u16(vmovn_u32(vandq_u32(vshlq_u32(bits, down0), three)),
                                       vmovn_u32(vandq_u32(vshlq_u32(bits, down1), three)));
        low = vorr_u8(low, vshl_n_u8(vmovn_u16(high), 4));
        sc = vcombine_s8(vsub_s8(vreinterpret_s8_u8(low), vdup_n_s8(32)), vdup_n_s8(0));
    } else { // Q4_K and Q5_K: the first four have their six bits in one place, of the others the upper two lie with the first
        uint32_t a = load_u32(w + 4), b = load_u32(w + 8), c = load_u32(w + 12);
        uint32_t sc_high = (c & 0x0f0f0f0f) | (a >> 2 & 0x30303030);
        uint32_t mn_high = (c >> 4 & 0x0f0f0f0f) | (b >> 2 & 0x30303030);
        sc = vcombine_s8(vcreate_s8((a & 0x3f3f3f3f) | (uint64_t)sc_high << 32), vdup_n_s8(0));
        mn = vcombine_s8(vcreate_s8((b & 0x3f3f3f3f) | (uint64_t)mn_high << 32), vdup_n_s8(0));
    }
    widen(s.sc, sc);
    widen(s.mn, mn);
    return s;
}

// The sums of as many activation codes as a scale spans, four to a vector.
INLINE void bsums(int type, int32x4_t v[4], const uint8_t *act) {
    int16x8_t low = vreinterpretq_s16_u8(load16(act + 260)), high = vreinterpretq_s16_u8(load16(act + 276));
    if (scales(type) == 8) {
        v[0] = vpaddlq_s16(low);
        v[1] = vpaddlq_s16(high);
    } else {
        v[0] = vmovl_s16(vget_low_s16(low));
        v[1] = vmovl_high_s16(low);
        v[2] = vmovl_s16(vget_low_s16(high));
        v[3] = vmovl_high_s16(high);
    }
}

// Adds one block to acc: d and dmin are the scales of the rows, sum and mins their integer products.
INLINE float32x4_t add_k(int type, float32x4_t acc, float32x4_t d, float32x4_t dmin, int32x4_t sum, int32x4_t mins,
                         const uint8_t *act) {
    float dy = load_f32(act);
    if (!has_mins(type)) return vaddq_f32(acc, vmulq_f32(vmulq_n_f32(d, dy), vcvtq_f32_s32(sum)));
    float32x4_t v = vsubq_f32(vmulq_f32(d, vcvtq_f32_s32(sum)), vmulq_f32(dmin, vcvtq_f32_s32(mins)));
    return vaddq_f32(acc, vmulq_n_f32(v, dy));
}

// Four rows, one token.
INLINE float32x4_t vec_k(int type, const uint8_t *w, int64_t stride, int64_t blocks, const uint8_t *act) {
    const int n = scales(type), chunks = 16 / n;
    float32x4_t acc = vdupq_n_f32(0);
    for (; blocks > 0; blocks--, w += block_bytes(type), act += act_bytes(type)) {
        int32x4_t sum[4], mins[4], bs[4];
        bsums(type, bs, act);
        UNROLL for (int r = 0; r < 4; r++) {
            const uint8_t *wr = w + r * stride;
            scales_k s = unpack_scales(type, wr);
            sum[r] = mins[r] = vdupq_n_s32(0);
            UNROLL for (int b = 0; b < n; b++) {
                int32x4_t p = vdupq_n_s32(0);
                UNROLL for (int c = chunks * b; c < chunks * (b + 1); c++) {
                    p = dot(p, codes_k(type, wr, c), load16s(act + 4 + 16 * c));
                }
                sum[r] = vmlaq_n_s32(sum[r], p, s.sc[b / 4][b % 4]);
            }
            UNROLL for (int i = 0; i < n / 4; i++) mins[r] = vmlaq_s32(mins[r], s.mn[i], bs[i]);
        }
        float32x4_t d = halves4(w + at_d(type), stride), dmin = has_mins(type) ? halves4(w + at_d(type) + 2, stride) : d;
        acc = add_k(type, acc, d, dmin, sum4(sum), sum4(mins), act);
    }
    return acc;
}

// ---- many tokens -------------------------------------------------------------------------------------------------

// Eight rows of up to 256 elements, unpacked for many tokens. Vector q[c][h][g] holds, row by row, codes 4g .. 4g+3 of
// the 16 of chunk c, in rows 4h .. 4h+3. Scales and the rest hold those of four rows, too.
typedef struct {
    int8x16_t q[16][2][4];
    int32x4_t sc[16][2], mn[16][2]; // super-blocks
    float32x4_t d[8][2], m[8][2];   // each block of 32, or one super-block
} tile;

// Unpacks count blocks of 32, at most eight.
INLINE void unpack32(int type, tile *t, const uint8_t *w, int64_t stride, int count) {
    for (int b = 0; b < count; b++, w += block_bytes(type)) {
        UNROLL for (int h = 0; h < 2; h++) {
            const uint8_t *wh = w + 4 * h * stride;
            UNROLL for (int c = 0; c < 2; c++) {
                int32x4_t v[4];
                UNROLL for (int r = 0; r < 4; r++) v[r] = vreinterpretq_s32_s8(codes32(type, wh + r * stride, c));
                transpose4(v);
                UNROLL for (int g = 0; g < 4; g++) t->q[2 * b + c][h][g] = vreinterpretq_s8_s32(v[g]);
            }
            t->d[b][h] = scales4(type, wh, stride);
            if (has_offset(type)) t->m[b][h] = halves4(wh + 2, stride);
        }
    }
}

INLINE void unpack_k(int type, tile *t, const uint8_t *w, int64_t stride) {
    UNROLL for (int h = 0; h < 2; h++) {
        const uint8_t *wh = w + 4 * h * stride;
        UNROLL for (int c = 0; c < 16; c++) {
            int32x4_t v[4];
            UNROLL for (int r = 0; r < 4; r++) v[r] = vreinterpretq_s32_s8(codes_k(type, wh + r * stride, c));
            transpose4(v);
            UNROLL for (int g = 0; g < 4; g++) t->q[c][h][g] = vreinterpretq_s8_s32(v[g]);
        }
        scales_k s[4];
        UNROLL for (int r = 0; r < 4; r++) s[r] = unpack_scales(type, wh + r * stride);
        UNROLL for (int i = 0; i < scales(type) / 4; i++) {
            int32x4_t sc[4] = {s[0].sc[i], s[1].sc[i], s[2].sc[i], s[3].sc[i]};
            int32x4_t mn[4] = {s[0].mn[i], s[1].mn[i], s[2].mn[i], s[3].mn[i]};
            transpose4(sc);
            transpose4(mn);
            UNROLL for (int b = 0; b < 4; b++) {
                t->sc[4 * i + b][h] = sc[b];
                if (has_mins(type)) t->mn[4 * i + b][h] = mn[b];
            }
        }
        t->d[0][h] = halves4(wh + at_d(type), stride);
        if (has_mins(type)) t->m[0][h] = halves4(wh + at_d(type) + 2, stride);
    }
}

// Adds the products of 16 codes of eight rows with those of T tokens, stride apart, to p.
INLINE void dot_chunk(int32x4_t p[4][2], const int8x16_t q[2][4], const uint8_t *y, int64_t stride, const int T) {
    UNROLL for (int u = 0; u < T; u++) {
        int8x16_t v = load16s(y + u * stride);
        UNROLL for (int h = 0; h < 2; h++) {
            p[u][h] = DOT_LANE(p[u][h], q[h][0], v, 0);
            p[u][h] = DOT_LANE(p[u][h], q[h][1], v, 1);
            p[u][h] = DOT_LANE(p[u][h], q[h][2], v, 2);
            p[u][h] = DOT_LANE(p[u][h], q[h][3], v, 3);
        }
    }
}

// Add the products of a tile with T tokens to acc, eight rows a token.
INLINE void mul32(int type, const tile *t, int count, const uint8_t *act, int64_t act_stride, float *acc, const int T) {
    float32x4_t a[4][2];
    UNROLL for (int u = 0; u < T; u++)
        UNROLL for (int h = 0; h < 2; h++) a[u][h] = vld1q_f32(acc + 8 * u + 4 * h);
    for (int b = 0; b < count; b++, act += act_bytes(type)) {
        int32x4_t p[4][2];
        UNROLL for (int u = 0; u < T; u++) p[u][0] = p[u][1] = vdupq_n_s32(0);
        const uint8_t *y = act + act_codes(type);
        UNROLL for (int c = 0; c < 2; c++) dot_chunk(p, t->q[2 * b + c], y + 16 * c, act_stride, T);
        UNROLL for (int u = 0; u < T; u++)
            UNROLL for (int h = 0; h < 2; h++) {
                a[u][h] = add32(type, a[u][h], t->d[b][h], t->m[b][h], p[u][h], act + u * act_stride);
            }
    }
    UNROLL for (int u = 0; u < T; u++)
        UNROLL for (int h = 0; h < 2; h++) vst1q_f32(acc + 8 * u + 4 * h, a[u][h]);
}

INLINE void mul_k(int type, const tile *t, const uint8_t *act, int64_t act_stride, float *acc, const int T) {
    const int n = scales(type), chunks = 16 / n;
    int32x4_t sum[4][2];
    UNROLL for (int u = 0; u < T; u++) sum[u][0] = sum[u][1] = vdupq_n_s32(0);
    for (int b = 0; b < n; b++) {
        int32x4_t p[4][2];
        UNROLL for (int u = 0; u < T; u++) p[u][0] = p[u][1] = vdupq_n_s32(0);
        UNROLL for (int i = 0; i < chunks; i++) {
            int c = chunks * b + i;
            dot_chunk(p, t->q[c], act + 4 + 16 * c, act_stride, T);
        }
        UNROLL for (int u = 0; u < T; u++)
            UNROLL for (int h = 0; h < 2; h++) sum[u][h] = vmlaq_s32(sum[u][h], p[u][h], t->sc[b][h]);
    }
    UNROLL for (int u = 0; u < T; u++) {
        const uint8_t *y = act + u * act_stride;
        int32x4_t mins[2] = {vdupq_n_s32(0), vdupq_n_s32(0)}, bs[4];
        if (has_mins(type)) {
            bsums(type, bs, y);
            UNROLL for (int b = 0; b < n; b++)
                UNROLL for (int h = 0; h < 2; h++) mins[h] = vmlaq_n_s32(mins[h], t->mn[b][h], bs[b / 4][b % 4]);
        }
        UNROLL for (int h = 0; h < 2; h++) {
            float *a = acc + 8 * u + 4 * h;
            vst1q_f32(a, add_k(type, vld1q_f32(a), t->d[0][h], t->m[0][h], sum[u][h], mins[h], y));
        }
    }
}

// ---- quantised products ------------------------------------------------------------------------------------------

// Where a group of count rows starts that should start at r: earlier when fewer are left, so that some rows are
// computed twice, to the same bits.
INLINE int64_t group_start(int64_t r, int64_t count, int64_t rows) { return rows - r < count ? rows - count : r; }

// One token, at least four rows.
INLINE void matvec(int type, const uint8_t *w, int64_t stride, int64_t rows, int64_t blocks, const uint8_t *act, float *out) {
    for (int64_t r = 0; r < rows; r += 4) {
        int64_t at = group_start(r, 4, rows);
        const uint8_t *p = w + at * stride;
        vst1q_f32(out + at, is_k(type) ? vec_k(type, p, stride, blocks, act) : vec32(type, p, stride, blocks, act));
    }
}

enum { MAX_TOKENS = 64 };

// Several tokens, at most MAX_TOKENS, and at least eight rows: eight at a time are unpacked once, block by block, and
// meet all tokens.
INLINE void matmat(int type, const uint8_t *w, int64_t stride, int64_t rows, int64_t blocks, const uint8_t *act,
                   int64_t act_stride, int64_t tokens, float *out, int64_t out_stride) {
    const int step = is_k(type) ? 1 : 8;
    float acc[8 * MAX_TOKENS];
    tile t;
    for (int64_t r = 0; r < rows; r += 8) {
        int64_t at = group_start(r, 8, rows);
        const uint8_t *p = w + at * stride, *y = act;
        memset(acc, 0, (size_t)tokens * 8 * sizeof(float));
        for (int64_t b = 0; b < blocks; b += step) {
            int n = (int)(blocks - b < step ? blocks - b : step);
            if (is_k(type)) unpack_k(type, &t, p, stride);
            else unpack32(type, &t, p, stride, n);
            int64_t u = 0;
#define MUL(T)                                                                                      \
    for (; tokens - u >= T; u += T) {                                                               \
        if (is_k(type)) mul_k(type, &t, y + u * act_stride, act_stride, acc + 8 * u, T);            \
        else mul32(type, &t, n, y + u * act_stride, act_stride, acc + 8 * u, T);                    \
    }
            MUL(4)
            MUL(2)
            MUL(1)
#undef MUL
            p += n * block_bytes(type);
            y += n * act_bytes(type);
        }
        for (int64_t u = 0; u < tokens; u++) memcpy(out + u * out_stride + at, acc + 8 * u, 8 * sizeof(float));
    }
}

INLINE void quantised(int type, const uint8_t *w, int64_t row_bytes, int64_t rows, const uint8_t *act, int64_t act_stride,
                      int64_t tokens, float *out, int64_t out_stride) {
    int64_t blocks = row_bytes / block_bytes(type);
    if (tokens > 1 && rows >= 8) {
        for (int64_t u = 0; u < tokens; u += MAX_TOKENS) {
            int64_t now = tokens - u < MAX_TOKENS ? tokens - u : MAX_TOKENS;
            matmat(type, w, row_bytes, rows, blocks, act + u * act_stride, act_stride, now, out + u * out_stride, out_stride);
        }
        return;
    }
    for (int64_t u = 0; u < tokens; u++, act += act_stride, out += out_stride) {
        if (rows >= 4) {
            matvec(type, w, row_bytes, rows, blocks, act, out);
            continue;
        }
        for (int64_t r = 0; r < rows; r++) { // too few for a group: each row as a group of itself
            float same[4];
            matvec(type, w + r * row_bytes, 0, 4, blocks, act, same);
            out[r] = same[0];
        }
    }
}

// ---- float products ----------------------------------------------------------------------------------------------

INLINE_ANY int is_float(int type) { return type == F32 || type == F16 || type == BF16; }
INLINE_ANY int float_bytes(int type) { return type == F32 ? 4 : 2; }

INLINE float32x4_t floats4(int type, const uint8_t *p) {
    if (type == F32) return vreinterpretq_f32_u8(load16(p));
    uint16x4_t v = vreinterpret_u16_u8(vld1_u8(p));
    if (type == F16) return vcvt_f32_f16(vreinterpret_f16_u16(v));
    return vreinterpretq_f32_u32(vshlq_n_u32(vmovl_u16(v), 16)); // BF16
}

// 16 columns of R rows by T tokens. Each output has four accumulators of four lanes, fused, whatever R and T are.
INLINE void float_step(int type, float32x4_t acc[4][2][4], const uint8_t *w, int64_t row_bytes, const uint8_t *x,
                       int64_t x_stride, const int R, const int T) {
    UNROLL for (int i = 0; i < 4; i++) {
        float32x4_t y[2];
        UNROLL for (int u = 0; u < T; u++) y[u] = floats4(F32, x + u * x_stride + 16 * i);
        UNROLL for (int r = 0; r < R; r++) {
            float32x4_t v = floats4(type, w + r * row_bytes + 4 * i * float_bytes(type));
            UNROLL for (int u = 0; u < T; u++) acc[r][u][i] = vfmaq_f32(acc[r][u][i], v, y[u]);
        }
    }
}

INLINE void float_tile(int type, const uint8_t *w, int64_t row_bytes, int64_t n, const uint8_t *x, int64_t x_stride, float *out,
                       int64_t out_stride, const int R, const int T) {
    const int size = float_bytes(type);
    float32x4_t acc[4][2][4];
    UNROLL for (int r = 0; r < R; r++)
        UNROLL for (int u = 0; u < T; u++)
            UNROLL for (int i = 0; i < 4; i++) acc[r][u][i] = vdupq_n_f32(0);
    int64_t i = 0;
    for (; n - i >= 16; i += 16) float_step(type, acc, w + size * i, row_bytes, x + 4 * i, x_stride, R, T);
    if (i < n) { // what is left, padded with zeros
        uint8_t a[4 * 64] = {0}, b[2 * 64] = {0};
        for (int r = 0; r < R; r++) memcpy(a + 64 * r, w + r * row_bytes + size * i, (size_t)((n - i) * size));
        for (int u = 0; u < T; u++) memcpy(b + 64 * u, x + u * x_stride + 4 * i, (size_t)((n - i) * 4));
        float_step(type, acc, a, 64, b, 64, R, T);
    }
    UNROLL for (int r = 0; r < R; r++)
        UNROLL for (int u = 0; u < T; u++) {
            float32x4_t *s = acc[r][u];
            out[u * out_stride + r] = vaddvq_f32(vaddq_f32(vaddq_f32(s[0], s[1]), vaddq_f32(s[2], s[3])));
        }
}

INLINE void floats(int type, const uint8_t *w, int64_t row_bytes, int64_t rows, int64_t n, const uint8_t *x, int64_t x_stride,
                   int64_t tokens, float *out, int64_t out_stride) {
    int64_t r = 0;
    for (; rows - r >= 4; r += 4) {
        int64_t u = 0;
        for (; tokens - u >= 2; u += 2) {
            for (int h = 0; h < 4; h += 2) {
                float_tile(type, w + (r + h) * row_bytes, row_bytes, n, x + u * x_stride, x_stride,
                           out + u * out_stride + r + h, out_stride, 2, 2);
            }
        }
        if (u < tokens) float_tile(type, w + r * row_bytes, row_bytes, n, x + u * x_stride, 0, out + u * out_stride + r, 0, 4, 1);
    }
    for (; r < rows; r++) {
        for (int64_t u = 0; u < tokens; u++) {
            float_tile(type, w + r * row_bytes, row_bytes, n, x + u * x_stride, 0, out + u * out_stride + r, 0, 1, 1);
        }
    }
}

// ---- entry point -------------------------------------------------------------------------------------------------

// Instances of one type, kept apart so that each gets the registers to itself.
#define PRODUCT(type)                                                                                             \
    static TARGET __attribute__((noinline)) void product_##type(                                                  \
        const uint8_t *w, int64_t row_bytes, int64_t rows, int64_t n, const uint8_t *act, int64_t act_stride,     \
        int64_t tokens, float *out, int64_t out_stride) {                                                         \
        if (is_float(type)) floats(type, w, row_bytes, rows, n, act, act_stride, tokens, out, out_stride);        \
        else quantised(type, w, row_bytes, rows, act, act_stride, tokens, out, out_stride);                       \
    }
#define TYPES(X)                                                                                        \
    X(F32) X(F16) X(BF16) X(Q8_0) X(Q4_0) X(Q4_1) X(Q5_0) X(Q5_1) X(IQ4_NL) X(MXFP4) X(Q2_K) X(Q3_K)    \
    X(Q4_K) X(Q5_K) X(Q6_K) X(IQ4_XS)
TYPES(PRODUCT)

int MATMUL(uint32_t type, const uint8_t *w, int64_t row_bytes, int64_t rows, int64_t n, const uint8_t *act,
           int64_t act_stride, int64_t tokens, float *out, int64_t out_stride) {
#define CASE(type)                                                                       \
    case type:                                                                           \
        product_##type(w, row_bytes, rows, n, act, act_stride, tokens, out, out_stride); \
        return 1;
    switch (type) { TYPES(CASE) }
    return 0;
}
