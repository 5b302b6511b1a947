//go:build cgo

// Activation quantisers and vector operations, for every 64-bit ARM processor. The tails of the element-wise loops go
// through the same four-lane code as the rest, padded, so an element's result does not depend on its position.

#include "neon_arm64.h"

#include <arm_neon.h>
#include <math.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

// ---- quantisers: every byte as in act.go -------------------------------------------------------------------------

INLINE uint32x4_t abs_bits(const float *x) {
    return vandq_u32(vreinterpretq_u32_f32(vld1q_f32(x)), vdupq_n_u32(0x7fffffff));
}

// Magnitudes compare like the integers of their bits, infinities and NaN above all numbers.
INLINE uint32_t largest_bits(const float *x, int n) {
    uint32x4_t top = vdupq_n_u32(0);
    for (int i = 0; i < n; i += 4) top = vmaxq_u32(top, abs_bits(x + i));
    return vmaxvq_u32(top);
}

INLINE float float_of(uint32_t bits) { float f; memcpy(&f, &bits, 4); return f; }
INLINE void store_f16(uint8_t *dst, float f) { __fp16 h = (__fp16)f; memcpy(dst, &h, 2); }

INLINE float inverse(float num, float v) {
    float inv = num / v;
    return v != 0 && fabsf(inv) <= 3.402823466e38f ? inv : 0;
}

// 16 integers to bytes, with saturation.
INLINE int8x16_t pack16(const int32x4_t v[4]) {
    int16x8_t low = vqmovn_high_s32(vqmovn_s32(v[0]), v[1]), high = vqmovn_high_s32(vqmovn_s32(v[2]), v[3]);
    return vqmovn_high_s16(vqmovn_s16(low), high);
}

INLINE void store_codes(uint8_t *q, int8x16_t v) { vst1q_u8(q, vreinterpretq_u8_s8(v)); }

INLINE void quantize_block(uint8_t *q, const float *x, float *d, int32_t *sum) {
    uint32_t top = largest_bits(x, 32);
    *sum = 0;
    if (top >= 0x7f800000) {
        memset(q, 0, 32);
        *d = float_of(0x7fc00000);
        return;
    }
    *d = float_of(top) / 127;
    float inv = inverse(1, *d);
    for (int i = 0; i < 32; i += 16) {
        int32x4_t v[4];
        for (int j = 0; j < 4; j++) v[j] = vcvtaq_s32_f32(vmulq_n_f32(vld1q_f32(x + i + 4 * j), inv));
        int8x16_t codes = pack16(v);
        store_codes(q + i, codes);
        *sum += vaddlvq_s8(codes);
    }
}

void kernel_neon_quantize_q8_0(uint8_t *dst, const float *x, int64_t n) {
    for (int64_t i = 0; i < n; i += 32, dst += 34) {
        float d;
        int32_t sum;
        quantize_block(dst + 2, x + i, &d, &sum);
        store_f16(dst, d);
    }
}

void kernel_neon_quantize_q8_1(uint8_t *dst, const float *x, int64_t n) {
    for (int64_t i = 0; i < n; i += 32, dst += 36) {
        float d;
        int32_t sum;
        quantize_block(dst + 4, x + i, &d, &sum);
        store_f16(dst, d);
        store_f16(dst + 2, (float)sum * d);
    }
}

INLINE void quantize_super_block(uint8_t *dst, const float *x) {
    uint32_t top = largest_bits(x, 256);
    int first = 0; // the first element of that magnitude gives the sign
    while (vmaxvq_u32(abs_bits(x + first)) != top) first += 4;
    while (vgetq_lane_u32(vreinterpretq_u32_f32(vabsq_f32(vdupq_n_f32(x[first]))), 0) != top) first++;
    float inv = inverse(-127, x[first]);
    if (top >= 0x7f800000 || inv == 0) {
        float d = top >= 0x7f800000 ? float_of(0x7fc00000) : 0;
        memset(dst, 0, 292);
        memcpy(dst, &d, 4);
        return;
    }
    float d = 1 / inv;
    memcpy(dst, &d, 4);
    for (int s = 0; s < 16; s++) {
        int32x4_t v[4];
        for (int j = 0; j < 4; j++) v[j] = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + 16 * s + 4 * j), inv)); // pack16 caps at 127
        int8x16_t codes = pack16(v);
        store_codes(dst + 4 + 16 * s, codes);
        int16_t sum = vaddlvq_s8(codes);
        memcpy(dst + 260 + 2 * s, &sum, 2);
    }
}

void kernel_neon_quantize_q8_k(uint8_t *dst, const float *x, int64_t n) {
    for (int64_t i = 0; i < n; i += 256, dst += 292) quantize_super_block(dst, x + i);
}

// ---- element-wise ------------------------------------------------------------------------------------------------

INLINE float32x4_t load_tail(const float *p, int64_t left) { // zeros where nothing is left
    float v[4] = {0};
    memcpy(v, p, (size_t)left * 4);
    return vld1q_f32(v);
}

INLINE void store_tail(float *p, float32x4_t v, int64_t left) {
    float a[4];
    vst1q_f32(a, v);
    memcpy(p, a, (size_t)left * 4);
}

// Runs body for every four elements, and once more for a partial four, which LOAD pads with zeros and STORE cuts.
#define FOR_EACH_4(n, body)                   \
    do {                                      \
        int64_t i = 0;                        \
        for (; (n) - i >= 4; i += 4) {        \
            body(vld1q_f32, vst1q_f32)        \
        }                                     \
        if (i < (n)) {                        \
            const int64_t left = (n) - i;     \
            body(LOAD_TAIL, STORE_TAIL)       \
        }                                     \
    } while (0)
#define LOAD_TAIL(p) load_tail(p, left)
#define STORE_TAIL(p, v) store_tail(p, v, left)

void kernel_neon_axpy(float *dst, float a, const float *x, int64_t n) {
#define BODY(LOAD, STORE) STORE(dst + i, vfmaq_n_f32(LOAD(dst + i), LOAD(x + i), a));
    FOR_EACH_4(n, BODY);
#undef BODY
}

void kernel_neon_add(float *dst, const float *a, const float *b, int64_t n) {
#define BODY(LOAD, STORE) STORE(dst + i, vaddq_f32(LOAD(a + i), LOAD(b + i)));
    FOR_EACH_4(n, BODY);
#undef BODY
}

void kernel_neon_mul(float *dst, const float *a, const float *b, int64_t n) {
#define BODY(LOAD, STORE) STORE(dst + i, vmulq_f32(LOAD(a + i), LOAD(b + i)));
    FOR_EACH_4(n, BODY);
#undef BODY
}

void kernel_neon_rope_neox(float *x, const float *cos, const float *sin, int64_t h) {
#define BODY(LOAD, STORE)                                                                 \
    float32x4_t a = LOAD(x + i), b = LOAD(x + h + i), c = LOAD(cos + i), s = LOAD(sin + i); \
    STORE(x + i, vsubq_f32(vmulq_f32(a, c), vmulq_f32(b, s)));                            \
    STORE(x + h + i, vaddq_f32(vmulq_f32(a, s), vmulq_f32(b, c)));
    FOR_EACH_4(h, BODY);
#undef BODY
}

// exp within 2 units in the last place: x = k ln 2 + r, |r| <= ln(2)/2, and the Taylor series of exp(r), whose eighth
// term is below 2^-27. 2^k is applied in two factors, so that results reach down to subnormals and up to Inf. NaN stays.
INLINE float32x4_t exp4(float32x4_t x) {
    x = vminq_f32(vmaxq_f32(x, vdupq_n_f32(-104)), vdupq_n_f32(89));
    int32x4_t ki = vcvtnq_s32_f32(vmulq_n_f32(x, 0x1.715476p+0f));
    float32x4_t k = vcvtq_f32_s32(ki);
    float32x4_t r = vfmsq_n_f32(x, k, 0x1.62e400p-1f);
    r = vfmsq_n_f32(r, k, 0x1.7f7d1cp-20f);
    float32x4_t e = vdupq_n_f32(1 / 5040.f);
    e = vfmaq_f32(vdupq_n_f32(1 / 720.f), e, r);
    e = vfmaq_f32(vdupq_n_f32(1 / 120.f), e, r);
    e = vfmaq_f32(vdupq_n_f32(1 / 24.f), e, r);
    e = vfmaq_f32(vdupq_n_f32(1 / 6.f), e, r);
    e = vfmaq_f32(vdupq_n_f32(0.5f), e, r);
    e = vfmaq_f32(vdupq_n_f32(1), e, r);
    e = vfmaq_f32(vdupq_n_f32(1), e, r);
    const int32x4_t bias = vdupq_n_s32(127);
    int32x4_t half = vshrq_n_s32(ki, 1), rest = vsubq_s32(ki, half);
    e = vmulq_f32(e, vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(half, bias), 23)));
    return vmulq_f32(e, vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(rest, bias), 23)));
}

void kernel_neon_swiglu(float *dst, const float *gate, const float *up, int64_t n) {
#define BODY(LOAD, STORE)                                                              \
    float32x4_t g = LOAD(gate + i);                                                    \
    float32x4_t s = vdivq_f32(g, vaddq_f32(vdupq_n_f32(1), exp4(vnegq_f32(g))));       \
    STORE(dst + i, vmulq_f32(s, LOAD(up + i)));
    FOR_EACH_4(n, BODY);
#undef BODY
}

// ---- reductions --------------------------------------------------------------------------------------------------

INLINE float64x2_t low_f64(float32x4_t v) { return vcvt_f64_f32(vget_low_f32(v)); }
INLINE float64x2_t high_f64(float32x4_t v) { return vcvt_high_f64_f32(v); }

void kernel_neon_rms_norm(float *dst, const float *x, const float *w, int64_t n, float eps) {
    float64x2_t low = vdupq_n_f64(0), high = low;
#define BODY(LOAD, STORE)                             \
    float32x4_t v = LOAD(x + i);                      \
    low = vfmaq_f64(low, low_f64(v), low_f64(v));     \
    high = vfmaq_f64(high, high_f64(v), high_f64(v));
    FOR_EACH_4(n, BODY);
#undef BODY
    double mean = vaddvq_f64(vaddq_f64(low, high)) / (double)n;
    float scale = (float)(1 / sqrt(mean + (double)eps));
    if (w == 0) {
#define BODY(LOAD, STORE) STORE(dst + i, vmulq_n_f32(LOAD(x + i), scale));
        FOR_EACH_4(n, BODY);
#undef BODY
        return;
    }
#define BODY(LOAD, STORE) STORE(dst + i, vmulq_f32(vmulq_n_f32(LOAD(x + i), scale), LOAD(w + i)));
    FOR_EACH_4(n, BODY);
#undef BODY
}

void kernel_neon_softmax(float *x, int64_t n) {
    float32x4_t most = vdupq_n_f32(-INFINITY);
    int64_t j = 0;
    for (; n - j >= 4; j += 4) most = vmaxq_f32(most, vld1q_f32(x + j)); // keeps a NaN
    float top = vmaxvq_f32(most);
    for (; j < n; j++) top = x[j] > top ? x[j] : top; // may lose one; it comes back in the sum

    float64x2_t low = vdupq_n_f64(0), high = low;
    int64_t i = 0;
    for (; n - i >= 4; i += 4) {
        float32x4_t e = exp4(vsubq_f32(vld1q_f32(x + i), vdupq_n_f32(top)));
        vst1q_f32(x + i, e);
        low = vaddq_f64(low, low_f64(e));
        high = vaddq_f64(high, high_f64(e));
    }
    if (i < n) {
        float32x4_t e = exp4(vsubq_f32(load_tail(x + i, n - i), vdupq_n_f32(top)));
        store_tail(x + i, e, n - i);
        e = load_tail(x + i, n - i);
        low = vaddq_f64(low, low_f64(e));
        high = vaddq_f64(high, high_f64(e));
    }
    float scale = (float)(1 / vaddvq_f64(vaddq_f64(low, high)));
#define BODY(LOAD, STORE) STORE(x + i, vmulq_n_f32(LOAD(x + i), scale));
    FOR_EACH_4(n, BODY);
#undef BODY
}

// ---- weighted sums of rows ---------------------------------------------------------------------------------------

INLINE float value(const void *v, int64_t at, int is_f16) {
    return is_f16 ? (float)((const __fp16 *)v)[at] : ((const float *)v)[at];
}

INLINE float32x4_t value4(const void *v, int64_t at, int is_f16) {
    return is_f16 ? vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16((const uint16_t *)v + at))) : vld1q_f32((const float *)v + at);
}

// Columns 4*K at a time stay in registers while all rows pass.
#define ACC_COLUMNS(K)                                                                                          \
    for (; n - c >= 4 * K; c += 4 * K) {                                                                        \
        float32x4_t a[K];                                                                                       \
        for (int k = 0; k < K; k++) a[k] = vld1q_f32(out + c + 4 * k);                                          \
        for (int64_t u = 0; u < rows; u++) {                                                                    \
            for (int k = 0; k < K; k++) a[k] = vfmaq_n_f32(a[k], value4(v, u * stride + c + 4 * k, is_f16), p[u]); \
        }                                                                                                       \
        for (int k = 0; k < K; k++) vst1q_f32(out + c + 4 * k, a[k]);                                           \
    }

INLINE void acc_rows(float *out, const float *p, const void *v, int64_t stride, int64_t rows, int64_t n, const int is_f16) {
    int64_t c = 0;
    ACC_COLUMNS(16)
    ACC_COLUMNS(1)
    for (; c < n; c++) {
        float a = out[c];
        for (int64_t u = 0; u < rows; u++) a = fmaf(p[u], value(v, u * stride + c, is_f16), a);
        out[c] = a;
    }
}

void kernel_neon_acc_rows_f32(float *out, const float *p, const float *v, int64_t stride, int64_t rows, int64_t n) {
    acc_rows(out, p, v, stride, rows, n, 0);
}

void kernel_neon_acc_rows_f16(float *out, const float *p, const uint16_t *v, int64_t stride, int64_t rows, int64_t n) {
    acc_rows(out, p, v, stride, rows, n, 1);
}

void kernel_neon_to_f16(uint16_t *dst, const float *x, int64_t n) {
    int64_t i = 0;
    for (; n - i >= 4; i += 4) vst1_u16(dst + i, vreinterpret_u16_f16(vcvt_f16_f32(vld1q_f32(x + i))));
    for (; i < n; i++) store_f16((uint8_t *)(dst + i), x[i]);
}

// ---- delta nets --------------------------------------------------------------------------------------------------

// The products of one row with two vectors.
INLINE void dot2(const float *s, const float *a, const float *b, int64_t n, float *sa, float *sb) {
    float32x4_t va[4], vb[4];
    for (int u = 0; u < 4; u++) va[u] = vb[u] = vdupq_n_f32(0);
    int64_t i = 0;
    for (; n - i >= 16; i += 16) {
        for (int u = 0; u < 4; u++) {
            float32x4_t x = vld1q_f32(s + i + 4 * u);
            va[u] = vfmaq_f32(va[u], x, vld1q_f32(a + i + 4 * u));
            vb[u] = vfmaq_f32(vb[u], x, vld1q_f32(b + i + 4 * u));
        }
    }
    float ta = vaddvq_f32(vaddq_f32(vaddq_f32(va[0], va[1]), vaddq_f32(va[2], va[3])));
    float tb = vaddvq_f32(vaddq_f32(vaddq_f32(vb[0], vb[1]), vaddq_f32(vb[2], vb[3])));
    for (; i < n; i++) {
        ta = fmaf(s[i], a[i], ta);
        tb = fmaf(s[i], b[i], tb);
    }
    *sa = ta;
    *sb = tb;
}

void kernel_neon_delta(float *s, float *out, const float *v, int64_t rows, const float *q, const float *k, int64_t n,
                       float beta, float decay) {
    float kq, unused;
    dot2(k, q, q, n, &kq, &unused);
    for (int64_t j = 0; j < rows; j++, s += n) {
        float mu, rho;
        dot2(s, k, q, n, &mu, &rho);
        float e = beta * (v[j] - decay * mu);
        out[j] = decay * rho + kq * e;
#define BODY(LOAD, STORE) STORE(s + i, vfmaq_n_f32(vmulq_n_f32(LOAD(s + i), decay), LOAD(k + i), e));
        FOR_EACH_4(n, BODY);
#undef BODY
    }
}

// R rows by 4*K columns stay in registers while all terms pass.
INLINE void mix_tile(float *out, float keep, const float *p, int64_t p_row, int64_t p_term, const float *v, int64_t n, int64_t terms,
                     const int R, const int K) {
    float32x4_t acc[16];
    for (int i = 0; i < R * K; i++) acc[i] = keep == 0 ? vdupq_n_f32(0) : vmulq_n_f32(vld1q_f32(out + i / K * n + i % K * 4), keep);
    for (int64_t u = 0; u < terms; u++) {
        float32x4_t x[16];
        for (int c = 0; c < K; c++) x[c] = vld1q_f32(v + u * n + 4 * c);
        for (int i = 0; i < R * K; i++) acc[i] = vfmaq_n_f32(acc[i], x[i % K], p[i / K * p_row + u * p_term]);
    }
    for (int i = 0; i < R * K; i++) vst1q_f32(out + i / K * n + i % K * 4, acc[i]);
}

// R rows: tiles of 16 registers, of one for each row, then single columns.
INLINE void mix_rows(float *out, float keep, const float *p, int64_t p_row, int64_t p_term, const float *v, int64_t n, int64_t terms,
                     const int R) {
    int64_t c = 0;
    for (; n - c >= 64 / R; c += 64 / R) mix_tile(out + c, keep, p, p_row, p_term, v + c, n, terms, R, 16 / R);
    for (; n - c >= 4; c += 4) mix_tile(out + c, keep, p, p_row, p_term, v + c, n, terms, R, 1);
    for (; c < n; c++) {
        for (int r = 0; r < R; r++) {
            float sum = keep == 0 ? 0 : keep * out[r * n + c];
            for (int64_t u = 0; u < terms; u++) sum = fmaf(p[r * p_row + u * p_term], v[u * n + c], sum);
            out[r * n + c] = sum;
        }
    }
}

void kernel_neon_mix_rows(float *out, float keep, const float *p, int64_t p_row, int64_t p_term, const float *v, int64_t rows,
                          int64_t n, int64_t terms) {
    int64_t t = 0;
    for (; rows - t >= 4; t += 4) mix_rows(out + t * n, keep, p + t * p_row, p_row, p_term, v, n, terms, 4);
    for (; rows - t >= 2; t += 2) mix_rows(out + t * n, keep, p + t * p_row, p_row, p_term, v, n, terms, 2);
    for (; t < rows; t++) mix_rows(out + t * n, keep, p + t * p_row, p_row, p_term, v, n, terms, 1);
}
