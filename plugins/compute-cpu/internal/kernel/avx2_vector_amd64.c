//go:build cgo

// Activation quantisers and vector operations, AVX2 + FMA + F16C. The tails of the element-wise loops go through the
// same eight-lane code as the rest, padded, so an element's result does not depend on its position.

#include "avx2_amd64.h"

#include <immintrin.h>
#include <math.h>
#include <string.h>

#define TARGET __attribute__((target("avx2,fma,f16c")))
#define INLINE static inline __attribute__((always_inline)) TARGET

// ---- quantisers: every byte as in act.go -------------------------------------------------------------------------

INLINE __m256i abs_bits(const float *x) {
    return _mm256_and_si256(_mm256_loadu_si256((const __m256i *)x), _mm256_set1_epi32(0x7fffffff));
}

// Magnitudes compare like the integers of their bits, infinities and NaN above all numbers.
INLINE uint32_t largest_bits(const float *x, int n) {
    __m256i top = _mm256_setzero_si256();
    for (int i = 0; i < n; i += 8) top = _mm256_max_epi32(top, abs_bits(x + i));
    __m128i m = _mm_max_epi32(_mm256_castsi256_si128(top), _mm256_extracti128_si256(top, 1));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1));
    return (uint32_t)_mm_cvtsi128_si32(m);
}

INLINE float float_of(uint32_t bits) { float f; memcpy(&f, &bits, 4); return f; }

INLINE float inverse(float num, float v) {
    float inv = num / v;
    return v != 0 && fabsf(inv) <= 3.402823466e38f ? inv : 0;
}

INLINE __m256i round_away(__m256 v) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    __m256 t = _mm256_round_ps(v, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
    __m256 rest = _mm256_andnot_ps(sign, _mm256_sub_ps(v, t)); // exact
    __m256 step = _mm256_or_ps(_mm256_and_ps(v, sign), _mm256_set1_ps(1));
    step = _mm256_and_ps(step, _mm256_cmp_ps(rest, _mm256_set1_ps(0.5f), _CMP_GE_OQ));
    return _mm256_cvtps_epi32(_mm256_add_ps(t, step));
}

// 32 integers to bytes, in order.
INLINE __m256i pack32(__m256i a, __m256i b, __m256i c, __m256i d) {
    __m256i v = _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
    return _mm256_permutevar8x32_epi32(v, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

INLINE int32_t sum8_epi32(__m256i v) {
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1));
    return _mm_cvtsi128_si32(s);
}

INLINE void quantize_block(uint8_t *q, const float *x, float *d, int32_t *sum) {
    uint32_t top = largest_bits(x, 32);
    if (top >= 0x7f800000) {
        memset(q, 0, 32);
        *d = float_of(0x7fc00000);
        *sum = 0;
        return;
    }
    *d = float_of(top) / 127;
    __m256 inv = _mm256_set1_ps(inverse(1, *d));
    __m256i v[4];
    for (int i = 0; i < 4; i++) v[i] = round_away(_mm256_mul_ps(_mm256_loadu_ps(x + 8 * i), inv));
    _mm256_storeu_si256((__m256i *)q, pack32(v[0], v[1], v[2], v[3]));
    *sum = sum8_epi32(_mm256_add_epi32(_mm256_add_epi32(v[0], v[1]), _mm256_add_epi32(v[2], v[3])));
}

INLINE void store_f16(uint8_t *dst, float f) {
    uint16_t h = _cvtss_sh(f, _MM_FROUND_TO_NEAREST_INT);
    memcpy(dst, &h, 2);
}

TARGET void kernel_avx2_quantize_q8_0(uint8_t *dst, const float *x, int64_t n) {
    for (int64_t i = 0; i < n; i += 32, dst += 34) {
        float d;
        int32_t sum;
        quantize_block(dst + 2, x + i, &d, &sum);
        store_f16(dst, d);
    }
}

TARGET void kernel_avx2_quantize_q8_1(uint8_t *dst, const float *x, int64_t n) {
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
    for (int mask; first < 256; first += 8) {
        __m256i hit = _mm256_cmpeq_epi32(abs_bits(x + first), _mm256_set1_epi32((int32_t)top));
        if ((mask = _mm256_movemask_ps(_mm256_castsi256_ps(hit))) != 0) {
            first += __builtin_ctz((unsigned)mask);
            break;
        }
    }
    float inv = inverse(-127, x[first]);
    if (top >= 0x7f800000 || inv == 0) {
        float d = top >= 0x7f800000 ? float_of(0x7fc00000) : 0;
        memset(dst, 0, 292);
        memcpy(dst, &d, 4);
        return;
    }
    float d = 1 / inv;
    memcpy(dst, &d, 4);
    __m256 scale = _mm256_set1_ps(inv);
    for (int i = 0; i < 256; i += 128) {
        __m256i m[4];
        for (int j = 0; j < 4; j++) {
            __m256i v[4];
            for (int k = 0; k < 4; k++) {
                v[k] = _mm256_cvtps_epi32(_mm256_mul_ps(scale, _mm256_loadu_ps(x + i + 32 * j + 8 * k))); // packs caps at 127
            }
            __m256i q = pack32(v[0], v[1], v[2], v[3]);
            _mm256_storeu_si256((__m256i *)(dst + 4 + i + 32 * j), q);
            m[j] = _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), q), _mm256_set1_epi16(1));
        }
        __m256i s = _mm256_hadd_epi32(_mm256_hadd_epi32(m[0], m[1]), _mm256_hadd_epi32(m[2], m[3]));
        __m128i even = _mm256_castsi256_si128(s), odd = _mm256_extracti128_si256(s, 1); // first and second 16 of each 32
        __m128i sums = _mm_packs_epi32(_mm_unpacklo_epi32(even, odd), _mm_unpackhi_epi32(even, odd));
        _mm_storeu_si128((__m128i *)(dst + 260 + i / 8), sums);
    }
}

TARGET void kernel_avx2_quantize_q8_k(uint8_t *dst, const float *x, int64_t n) {
    for (int64_t i = 0; i < n; i += 256, dst += 292) quantize_super_block(dst, x + i);
}

// ---- element-wise ------------------------------------------------------------------------------------------------

INLINE __m256i tail_mask(int64_t left) { // lanes below left
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int32_t)left), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

// Runs body for every eight elements and, with m selecting the rest, once more for a partial eight. LOAD and STORE use
// the mask; outside it, loads give zero.
#define FOR_EACH_8(n, body)                          \
    do {                                             \
        int64_t i = 0;                               \
        for (; (n) - i >= 8; i += 8) {               \
            body(_mm256_loadu_ps, _mm256_storeu_ps)  \
        }                                            \
        if (i < (n)) {                               \
            const __m256i m = tail_mask((n) - i);    \
            body(LOAD_TAIL, STORE_TAIL)              \
        }                                            \
    } while (0)
#define LOAD_TAIL(p) _mm256_maskload_ps(p, m)
#define STORE_TAIL(p, v) _mm256_maskstore_ps(p, m, v)

TARGET void kernel_avx2_axpy(float *dst, float a, const float *x, int64_t n) {
    const __m256 va = _mm256_set1_ps(a);
#define BODY(LOAD, STORE) STORE(dst + i, _mm256_fmadd_ps(va, LOAD(x + i), LOAD(dst + i)));
    FOR_EACH_8(n, BODY);
#undef BODY
}

TARGET void kernel_avx2_add(float *dst, const float *a, const float *b, int64_t n) {
#define BODY(LOAD, STORE) STORE(dst + i, _mm256_add_ps(LOAD(a + i), LOAD(b + i)));
    FOR_EACH_8(n, BODY);
#undef BODY
}

TARGET void kernel_avx2_mul(float *dst, const float *a, const float *b, int64_t n) {
#define BODY(LOAD, STORE) STORE(dst + i, _mm256_mul_ps(LOAD(a + i), LOAD(b + i)));
    FOR_EACH_8(n, BODY);
#undef BODY
}

TARGET void kernel_avx2_rope_neox(float *x, const float *cos, const float *sin, int64_t h) {
#define BODY(LOAD, STORE)                                                                           \
    __m256 a = LOAD(x + i), b = LOAD(x + h + i), c = LOAD(cos + i), s = LOAD(sin + i);              \
    STORE(x + i, _mm256_sub_ps(_mm256_mul_ps(a, c), _mm256_mul_ps(b, s)));                          \
    STORE(x + h + i, _mm256_add_ps(_mm256_mul_ps(a, s), _mm256_mul_ps(b, c)));
    FOR_EACH_8(h, BODY);
#undef BODY
}

// exp within 2 units in the last place: x = k ln 2 + r, |r| <= ln(2)/2, and the Taylor series of exp(r), whose eighth
// term is below 2^-27. 2^k is applied in two factors, so that results reach down to subnormals and up to Inf.
INLINE __m256 exp8(__m256 x) {
    x = _mm256_min_ps(_mm256_set1_ps(89), _mm256_max_ps(_mm256_set1_ps(-104), x)); // NaN stays: it is the second operand
    __m256 k = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(0x1.715476p+0f)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256 r = _mm256_fnmadd_ps(k, _mm256_set1_ps(0x1.62e400p-1f), x);
    r = _mm256_fnmadd_ps(k, _mm256_set1_ps(0x1.7f7d1cp-20f), r);
    __m256 e = _mm256_set1_ps(1 / 5040.f);
    e = _mm256_fmadd_ps(e, r, _mm256_set1_ps(1 / 720.f));
    e = _mm256_fmadd_ps(e, r, _mm256_set1_ps(1 / 120.f));
    e = _mm256_fmadd_ps(e, r, _mm256_set1_ps(1 / 24.f));
    e = _mm256_fmadd_ps(e, r, _mm256_set1_ps(1 / 6.f));
    e = _mm256_fmadd_ps(e, r, _mm256_set1_ps(0.5f));
    e = _mm256_fmadd_ps(e, r, _mm256_set1_ps(1));
    e = _mm256_fmadd_ps(e, r, _mm256_set1_ps(1));
    __m256i ki = _mm256_cvtps_epi32(k), half = _mm256_srai_epi32(ki, 1), rest = _mm256_sub_epi32(ki, half);
    const __m256i bias = _mm256_set1_epi32(127);
    e = _mm256_mul_ps(e, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23)));
    return _mm256_mul_ps(e, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23)));
}

TARGET void kernel_avx2_swiglu(float *dst, const float *gate, const float *up, int64_t n) {
    const __m256 one = _mm256_set1_ps(1), sign = _mm256_set1_ps(-0.0f);
#define BODY(LOAD, STORE)                                                       \
    __m256 g = LOAD(gate + i);                                                  \
    __m256 s = _mm256_div_ps(g, _mm256_add_ps(one, exp8(_mm256_xor_ps(g, sign)))); \
    STORE(dst + i, _mm256_mul_ps(s, LOAD(up + i)));
    FOR_EACH_8(n, BODY);
#undef BODY
}

// ---- reductions --------------------------------------------------------------------------------------------------

INLINE double sum4_pd(__m256d v) {
    __m128d s = _mm_add_pd(_mm256_castpd256_pd128(v), _mm256_extractf128_pd(v, 1));
    return _mm_cvtsd_f64(_mm_add_sd(s, _mm_unpackhi_pd(s, s)));
}

INLINE __m256d low_pd(__m256 v) { return _mm256_cvtps_pd(_mm256_castps256_ps128(v)); }
INLINE __m256d high_pd(__m256 v) { return _mm256_cvtps_pd(_mm256_extractf128_ps(v, 1)); }

TARGET void kernel_avx2_rms_norm(float *dst, const float *x, const float *w, int64_t n, float eps) {
    __m256d lo = _mm256_setzero_pd(), hi = lo;
#define BODY(LOAD, STORE)                                 \
    __m256 v = LOAD(x + i);                               \
    lo = _mm256_fmadd_pd(low_pd(v), low_pd(v), lo);       \
    hi = _mm256_fmadd_pd(high_pd(v), high_pd(v), hi);
    FOR_EACH_8(n, BODY);
#undef BODY
    double mean = sum4_pd(_mm256_add_pd(lo, hi)) / (double)n;
    const __m256 scale = _mm256_set1_ps((float)(1 / sqrt(mean + (double)eps)));
    if (w == 0) {
#define BODY(LOAD, STORE) STORE(dst + i, _mm256_mul_ps(LOAD(x + i), scale));
        FOR_EACH_8(n, BODY);
#undef BODY
        return;
    }
#define BODY(LOAD, STORE) STORE(dst + i, _mm256_mul_ps(_mm256_mul_ps(LOAD(x + i), scale), LOAD(w + i)));
    FOR_EACH_8(n, BODY);
#undef BODY
}

TARGET void kernel_avx2_softmax(float *x, int64_t n) {
    __m256 top = _mm256_set1_ps(-INFINITY);
    int64_t j = 0;
    for (; n - j >= 8; j += 8) top = _mm256_max_ps(top, _mm256_loadu_ps(x + j));
    __m128 t = _mm_max_ps(_mm256_castps256_ps128(top), _mm256_extractf128_ps(top, 1));
    t = _mm_max_ps(t, _mm_movehl_ps(t, t));
    t = _mm_max_ss(t, _mm_movehdup_ps(t));
    float max = _mm_cvtss_f32(t); // a NaN may be lost here; it comes back in the sum
    for (; j < n; j++) max = x[j] > max ? x[j] : max;

    const __m256 vmax = _mm256_set1_ps(max);
    __m256d lo = _mm256_setzero_pd(), hi = lo;
    int64_t i = 0;
    for (; n - i >= 8; i += 8) {
        __m256 e = exp8(_mm256_sub_ps(_mm256_loadu_ps(x + i), vmax));
        _mm256_storeu_ps(x + i, e);
        lo = _mm256_add_pd(lo, low_pd(e));
        hi = _mm256_add_pd(hi, high_pd(e));
    }
    if (i < n) {
        const __m256i m = tail_mask(n - i);
        __m256 e = exp8(_mm256_sub_ps(_mm256_maskload_ps(x + i, m), vmax));
        e = _mm256_and_ps(e, _mm256_castsi256_ps(m));
        _mm256_maskstore_ps(x + i, m, e);
        lo = _mm256_add_pd(lo, low_pd(e));
        hi = _mm256_add_pd(hi, high_pd(e));
    }
    const __m256 scale = _mm256_set1_ps((float)(1 / sum4_pd(_mm256_add_pd(lo, hi))));
#define BODY(LOAD, STORE) STORE(x + i, _mm256_mul_ps(LOAD(x + i), scale));
    FOR_EACH_8(n, BODY);
#undef BODY
}

// ---- weighted sums of rows ---------------------------------------------------------------------------------------

INLINE __m256 value8(const void *v, int64_t at, int is_f16) {
    return is_f16 ? _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)((const uint16_t *)v + at)))
                  : _mm256_loadu_ps((const float *)v + at);
}

// Columns 8*K at a time stay in registers while all rows pass.
#define ACC_COLUMNS(K)                                                                                          \
    for (; n - c >= 8 * K; c += 8 * K) {                                                                        \
        __m256 a[K];                                                                                            \
        _Pragma("GCC unroll 8") for (int k = 0; k < K; k++) a[k] = _mm256_loadu_ps(out + c + 8 * k);            \
        for (int64_t u = 0; u < rows; u++) {                                                                    \
            __m256 w = _mm256_set1_ps(p[u]);                                                                    \
            _Pragma("GCC unroll 8") for (int k = 0; k < K; k++) {                                               \
                a[k] = _mm256_fmadd_ps(w, value8(v, u * stride + c + 8 * k, is_f16), a[k]);                     \
            }                                                                                                   \
        }                                                                                                       \
        _Pragma("GCC unroll 8") for (int k = 0; k < K; k++) _mm256_storeu_ps(out + c + 8 * k, a[k]);            \
    }

INLINE void acc_rows(float *out, const float *p, const void *v, int64_t stride, int64_t rows, int64_t n, const int is_f16) {
    int64_t c = 0;
    ACC_COLUMNS(8)
    ACC_COLUMNS(1)
    for (; c < n; c++) {
        float a = out[c];
        for (int64_t u = 0; u < rows; u++) {
            float x = is_f16 ? _cvtsh_ss(((const uint16_t *)v)[u * stride + c]) : ((const float *)v)[u * stride + c];
            a = __builtin_fmaf(p[u], x, a);
        }
        out[c] = a;
    }
}

TARGET void kernel_avx2_acc_rows_f32(float *out, const float *p, const float *v, int64_t stride, int64_t rows, int64_t n) {
    acc_rows(out, p, v, stride, rows, n, 0);
}

TARGET void kernel_avx2_acc_rows_f16(float *out, const float *p, const uint16_t *v, int64_t stride, int64_t rows, int64_t n) {
    acc_rows(out, p, v, stride, rows, n, 1);
}

TARGET void kernel_avx2_to_f16(uint16_t *dst, const float *x, int64_t n) {
    int64_t i = 0;
    for (; n - i >= 8; i += 8) {
        _mm_storeu_si128((__m128i *)(dst + i), _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT));
    }
    for (; i < n; i++) dst[i] = _cvtss_sh(x[i], _MM_FROUND_TO_NEAREST_INT);
}
