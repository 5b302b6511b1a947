//go:build cgo

// Products of quantised and float weight rows with activation rows, AVX-512 with BW, VL, DQ, VNNI and VBMI. Every result has
// the bits of the AVX2 product: the same exact integers, the same float operations in the same order.

#include "avx2_formats_amd64.h"
#include "avx512_amd64.h"

#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi,avx2,fma,f16c")))
#define INLINE512 static inline __attribute__((always_inline)) TARGET
#define UNROLL16 _Pragma("GCC unroll 16")

enum { NEAR = 20 << 10 }; // see stretch: these processors have larger first caches, or faster second ones

INLINE512 __m512i load512(const void *p) { return _mm512_loadu_si512(p); }
INLINE512 __m512i twice256(const void *p) { return _mm512_broadcast_i64x4(load256(p)); }
INLINE512 __m512i join256(__m256i low, __m256i high) { return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1); }
INLINE512 __m512i mask8(int bits) { return _mm512_set1_epi8((char)bits); }

// Words i of a in the low half, j in the high half.
INLINE512 __m512i srl2(__m512i a, int i, int j) {
    return _mm512_srlv_epi64(a, _mm512_setr_epi64(i, i, i, i, j, j, j, j));
}

INLINE512 __m512i sll2(__m512i a, int i, int j) {
    return _mm512_sllv_epi64(a, _mm512_setr_epi64(i, i, i, i, j, j, j, j));
}

// The bits of a where mask has ones, those of b elsewhere.
INLINE512 __m512i select_bits(__m512i mask, __m512i a, __m512i b) { return _mm512_ternarylogic_epi64(mask, a, b, 0xca); }

// In every 128 bits the sums of the four lanes that a, b, c and d have there.
INLINE512 __m512i quartersum4(__m512i a, __m512i b, __m512i c, __m512i d) {
    __m512i ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    __m512i cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
    return _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
}

INLINE512 __m128i fullsum4(__m512i a, __m512i b, __m512i c, __m512i d) {
    __m512i s = quartersum4(a, b, c, d);
    __m256i h = _mm256_add_epi32(_mm512_castsi512_si256(s), _mm512_extracti64x4_epi64(s, 1));
    return _mm_add_epi32(_mm256_castsi256_si128(h), _mm256_extracti128_si256(h, 1));
}

// Turns the 4 by 4 elements that four vectors have in the same 128 bits into columns.
INLINE512 void transpose4(__m512i v[4]) {
    __m512i a = _mm512_unpacklo_epi32(v[0], v[1]), b = _mm512_unpackhi_epi32(v[0], v[1]);
    __m512i c = _mm512_unpacklo_epi32(v[2], v[3]), d = _mm512_unpackhi_epi32(v[2], v[3]);
    v[0] = _mm512_unpacklo_epi64(a, c);
    v[1] = _mm512_unpackhi_epi64(a, c);
    v[2] = _mm512_unpacklo_epi64(b, d);
    v[3] = _mm512_unpackhi_epi64(b, d);
}

// Turns sixteen rows of sixteen 32-bit elements into columns.
INLINE512 void transpose16(__m512i v[16]) {
    __m512i a, b, c, d;
    UNROLL16 for (int i = 0; i < 16; i += 4) transpose4(v + i);
    UNROLL for (int i = 0; i < 4; i++) {
        a = _mm512_shuffle_i32x4(v[i], v[i + 4], 0x88), b = _mm512_shuffle_i32x4(v[i], v[i + 4], 0xdd);
        c = _mm512_shuffle_i32x4(v[i + 8], v[i + 12], 0x88), d = _mm512_shuffle_i32x4(v[i + 8], v[i + 12], 0xdd);
        v[i] = _mm512_shuffle_i32x4(a, c, 0x88);
        v[i + 4] = _mm512_shuffle_i32x4(b, d, 0x88);
        v[i + 8] = _mm512_shuffle_i32x4(a, c, 0xdd);
        v[i + 12] = _mm512_shuffle_i32x4(b, d, 0xdd);
    }
}

// Turns sixteen rows of eight 32-bit elements into eight columns.
INLINE512 void transpose16x8(__m512i out[8], const __m256i rows[16]) {
    __m512i v[8];
    UNROLL for (int r = 0; r < 8; r++) v[r] = join256(rows[r], rows[r + 8]);
    transpose4(v);
    transpose4(v + 4);
    // 128-bit pieces are now: columns i of rows 0-3, i+4 of rows 0-3, i of rows 8-11, i+4 of rows 8-11.
    UNROLL for (int i = 0; i < 4; i++) {
        out[i] = _mm512_permutex2var_epi64(v[i], _mm512_setr_epi64(0, 1, 8, 9, 4, 5, 12, 13), v[i + 4]);
        out[i + 4] = _mm512_permutex2var_epi64(v[i], _mm512_setr_epi64(2, 3, 10, 11, 6, 7, 14, 15), v[i + 4]);
    }
}

INLINE512 __m512 join256_ps(__m256 low, __m256 high) {
    return _mm512_castsi512_ps(join256(_mm256_castps_si256(low), _mm256_castps_si256(high)));
}

INLINE512 __m512 halves16(const uint8_t *w, int64_t stride) { return join256_ps(halves8(w, stride), halves8(w + 8 * stride, stride)); }

// ---- blocks of 32 ------------------------------------------------------------------------------------------------

// What the codes of codes32x2 exceed the true ones by: all are unsigned here.
INLINE int bias512(int type) { return type == Q8_0 || type == IQ4_NL ? 128 : bias32(type); }

INLINE512 __m512i values16(const __m128i table, __m512i codes) { return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), codes); }

// The codes of two blocks, made unsigned by bias512.
INLINE512 __m512i codes32x2(int type, const uint8_t *a, const uint8_t *b) {
    if (type == Q8_0) return _mm512_xor_si512(join256(load256(a + 2), load256(b + 2)), mask8(0x80));
    const int at = type == Q4_0 || type == IQ4_NL ? 2 : type == Q4_1 ? 4 : type == Q5_0 ? 6 : type == Q5_1 ? 8 : 1;
    __m512i v = _mm512_mask_broadcast_i32x4(_mm512_broadcast_i32x4(load128(a + at)), 0xff00, load128(b + at));
    v = _mm512_and_si512(_mm512_srlv_epi64(v, _mm512_setr_epi64(0, 0, 4, 4, 0, 0, 4, 4)), mask8(15));
    switch (type) {
    case Q5_0: case Q5_1: {
        uint64_t fifth = load_u32(a + at - 4) | (uint64_t)load_u32(b + at - 4) << 32;
        return _mm512_mask_add_epi8(v, fifth, v, mask8(16));
    }
    case IQ4_NL:
        return values16(_mm_setr_epi8(1, 24, 45, 63, 79, 93, 106, 118, -127, -115, -103, -90, -75, -59, -39, -15), v);
    case MXFP4:
        return values16(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0), v);
    default:
        return v;
    }
}

// Eight rows, one token.
INLINE512 __m256 vec32(int type, const uint8_t *w, int64_t stride, int64_t blocks, const uint8_t *act) {
    __m256 acc = _mm256_setzero_ps();
    stretch next = stretch_after(w, 8 * stride, NEAR);
    for (; blocks > 0; blocks--, w += block_bytes(type), act += act_bytes(type)) {
        prefetch(&next, 8 * block_bytes(type));
        __m512i y = twice256(act + act_codes(type)), p[4], start = _mm512_setzero_si512();
        if (bias512(type)) start = _mm512_sub_epi32(start, _mm512_dpbusd_epi32(start, mask8(bias512(type)), y));
        UNROLL for (int r = 0; r < 4; r++) {
            p[r] = _mm512_dpbusd_epi32(start, codes32x2(type, w + r * stride, w + (r + 4) * stride), y);
        }
        __m512i s = quartersum4(p[0], p[1], p[2], p[3]); // rows 0-3 in the low half, 4-7 in the high half
        s = _mm512_add_epi32(s, _mm512_shuffle_i32x4(s, s, 0xb1));
        __m256i sum = _mm512_castsi512_si256(_mm512_shuffle_i32x4(s, s, 0x08));
        __m256 dy = _mm256_set1_ps(load_f16(act));
        __m256 v = _mm256_mul_ps(_mm256_mul_ps(scales8(type, w, stride), dy), _mm256_cvtepi32_ps(sum));
        if (has_offset(type)) {
            v = _mm256_add_ps(v, _mm256_mul_ps(halves8(w + 2, stride), _mm256_set1_ps(load_f16(act + 2))));
        }
        acc = _mm256_add_ps(acc, v);
    }
    return acc;
}

// Sixteen rows of up to eight blocks, for many tokens: vector q[8*b+g] holds, row by row, codes 4g..4g+3 of block b.
typedef struct {
    __m512i q[64];
    __m512 d[8], m[8];
} tile32;

INLINE512 void unpack32(int type, tile32 *t, const uint8_t *w, int64_t stride, stretch *next, int blocks) {
    for (int b = 0; b < blocks; b++, w += block_bytes(type)) {
        __m512i v[8];
        __m256i rows[16];
        prefetch(next, 16 * block_bytes(type));
        UNROLL for (int r = 0; r < 8; r++) {
            v[r] = codes32x2(type, w + r * stride, w + (r + 8) * stride);
            rows[r] = _mm512_castsi512_si256(v[r]);
            rows[r + 8] = _mm512_extracti64x4_epi64(v[r], 1);
        }
        transpose16x8(t->q + 8 * b, rows);
        t->d[b] = join256_ps(scales8(type, w, stride), scales8(type, w + 8 * stride, stride));
        if (has_offset(type)) t->m[b] = halves16(w + 2, stride);
    }
}

// Adds the products of a tile with T tokens to acc.
INLINE512 void mul32(int type, const tile32 *t, int blocks, const uint8_t *act, int64_t act_stride, const act32 *info,
                     int64_t info_stride, float *acc, const int T) {
    __m512 a[8];
    UNROLL for (int u = 0; u < T; u++) a[u] = _mm512_load_ps(acc + 16 * u);
    for (int b = 0; b < blocks; b++) {
        __m512i sum[8];
        UNROLL for (int u = 0; u < T; u++) {
            sum[u] = bias512(type) ? _mm512_set1_epi32(-info[u * info_stride + b].bias) : _mm512_setzero_si512();
        }
        const uint8_t *y = act + b * act_bytes(type) + act_codes(type);
        UNROLL for (int g = 0; g < 8; g++) {
            UNROLL for (int u = 0; u < T; u++) {
                __m512i v = _mm512_set1_epi32((int32_t)load_u32(y + u * act_stride + 4 * g));
                sum[u] = _mm512_dpbusd_epi32(sum[u], t->q[8 * b + g], v);
            }
        }
        UNROLL for (int u = 0; u < T; u++) {
            const act32 *i = &info[u * info_stride + b];
            __m512 v = _mm512_mul_ps(_mm512_mul_ps(t->d[b], _mm512_set1_ps(i->d)), _mm512_cvtepi32_ps(sum[u]));
            if (has_offset(type)) v = _mm512_add_ps(v, _mm512_mul_ps(t->m[b], _mm512_set1_ps(i->s)));
            a[u] = _mm512_add_ps(a[u], v);
        }
    }
    UNROLL for (int u = 0; u < T; u++) _mm512_store_ps(acc + 16 * u, a[u]);
}

// ---- super-blocks of 256 -----------------------------------------------------------------------------------------

// Codes 64*i to 64*i+63, unsigned, bias_k more than the true ones.
INLINE512 __m512i codes64(int type, const uint8_t *w, int i) {
    const int h = i / 2, high = i % 2; // half of the block, half of that
    __m512i q, x;
    switch (type) {
    case Q2_K: return _mm512_and_si512(srl2(twice256(w + 16 + 32 * h), 4 * high, 4 * high + 2), mask8(3));
    case Q3_K: {
        q = _mm512_and_si512(srl2(twice256(w + 32 + 32 * h), 4 * high, 4 * high + 2), mask8(3));
        x = join256(_mm256_set1_epi8((char)(1 << 2 * i)), _mm256_set1_epi8((char)(2 << 2 * i)));
        return _mm512_mask_add_epi8(q, _mm512_test_epi8_mask(twice256(w), x), q, mask8(4));
    }
    case Q6_K:
        q = load512(w + 64 * h);
        x = twice256(w + 128 + 32 * h);
        if (high) q = _mm512_srli_epi16(q, 4), x = srl2(x, 0, 2);
        else x = sll2(x, 4, 2);
        return _mm512_and_si512(select_bits(mask8(15), q, x), mask8(63));
    case IQ4_XS:
        q = _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 1, 0, 1, 2, 3, 2, 3), _mm512_castsi256_si512(load256(w + 8 + 32 * i)));
        return _mm512_and_si512(_mm512_srlv_epi64(q, _mm512_setr_epi64(0, 0, 4, 4, 0, 0, 4, 4)), mask8(15));
    }
    q = _mm512_and_si512(srl2(twice256(w + (type == Q5_K ? 48 : 16) + 32 * i), 0, 4), mask8(15));
    if (type == Q5_K) {
        x = join256(_mm256_set1_epi8((char)(1 << 2 * i)), _mm256_set1_epi8((char)(2 << 2 * i)));
        q = _mm512_mask_add_epi8(q, _mm512_test_epi8_mask(twice256(w + 16), x), q, mask8(16));
    }
    return q;
}

// Types whose codes have one scale for every 32 elements; the others have one for every 16.
INLINE int per32(int type) { return is_k45(type) || type == IQ4_XS; }

// The scale of each of elements 64*i to 64*i+63, for the sums of two. scales holds those of a row: per32 types in every
// 128 bits, others once.
INLINE512 __m512i scales64(int type, __m512i scales, int i) {
    if (per32(type)) {
        const short a = (short)(0x100 * (4 * i + 1) + 4 * i), b = (short)(a + 0x202);
        return _mm512_shuffle_epi8(scales, join256(_mm256_set1_epi16(a), _mm256_set1_epi16(b)));
    }
    const __m512i lane = _mm512_setr_epi64(0, 0, 0x0001000100010001, 0x0001000100010001, 0x0002000200020002, 0x0002000200020002,
                                           0x0003000300030003, 0x0003000300030003);
    return _mm512_permutexvar_epi16(_mm512_add_epi16(lane, _mm512_set1_epi16((short)(4 * i))), scales);
}

// Adds the products of one row and super-block to sum.
INLINE512 __m512i dot_k(int type, const uint8_t *w, __m512i scales, const uint8_t *act, __m512i sum) {
    UNROLL for (int i = 0; i < 4; i++) {
        __m512i q = codes64(type, w, i), y = load512(act + 4 + 64 * i);
        if (type == IQ4_XS) { // magnitudes, and the sign moved: below 8 codes stand for negative values
            y = _mm512_mask_sub_epi8(y, _mm512_testn_epi8_mask(q, mask8(8)), _mm512_setzero_si512(), y);
            q = values16(_mm_setr_epi8(127, 104, 83, 65, 49, 35, 22, 10, 1, 13, 25, 38, 53, 69, 89, 113), q);
        }
        sum = _mm512_dpwssd_epi32(sum, _mm512_maddubs_epi16(q, y), scales64(type, scales, i));
    }
    return sum;
}

// The first 16 bytes of four blocks.
INLINE512 __m512i heads4(const uint8_t *w, int64_t stride) {
    __m512i v = _mm512_castsi128_si512(load128(w));
    v = _mm512_inserti32x4(v, load128(w + stride), 1);
    v = _mm512_inserti32x4(v, load128(w + 2 * stride), 2);
    return _mm512_inserti32x4(v, load128(w + 3 * stride), 3);
}

// The 8 scales and 8 mins, as bytes, of the four Q4_K or Q5_K blocks that start with these heads.
INLINE512 __m512i scales_k45x4(__m512i heads) {
    const char z = -128; // shuffles in a zero
#define FOUR(...) _mm512_broadcast_i32x4(_mm_setr_epi8(__VA_ARGS__))
    __m512i a = _mm512_shuffle_epi8(heads, FOUR(4, 5, 6, 7, z, z, z, z, 8, 9, 10, 11, z, z, z, z));
    __m512i b = _mm512_shuffle_epi8(heads, FOUR(z, z, z, z, 12, 13, 14, 15, z, z, z, z, 12, 13, 14, 15));
    __m512i c = _mm512_shuffle_epi8(heads, FOUR(z, z, z, z, 4, 5, 6, 7, z, z, z, z, 8, 9, 10, 11));
#undef FOUR
    a = _mm512_and_si512(a, mask8(63));
    b = _mm512_and_si512(_mm512_srlv_epi32(b, _mm512_broadcast_i32x4(_mm_setr_epi32(0, 0, 0, 4))), mask8(15));
    c = _mm512_and_si512(_mm512_srli_epi32(c, 2), mask8(48));
    return _mm512_ternarylogic_epi64(a, b, c, 0xfe);
}

// Four rows, one token, Q4_K or Q5_K.
INLINE512 __m128 vec_k45(int type, const uint8_t *w, int64_t stride, int64_t blocks, const uint8_t *act) {
    const __m512i zero = _mm512_setzero_si512();
    __m128 acc = _mm_setzero_ps();
    stretch next = stretch_after(w, 4 * stride, NEAR);
    for (; blocks > 0; blocks--, w += block_bytes(type), act += ACT_K) {
        __m512i heads = heads4(w, stride), both = scales_k45x4(heads), s[4];
        __m512i scales = _mm512_unpacklo_epi8(both, zero); // row r in 128 bits r
        UNROLL for (int r = 0; r < 4; r++) {
            prefetch(&next, block_bytes(type));
            s[r] = dot_k(type, w + r * stride, _mm512_shuffle_i32x4(scales, scales, 0x55 * r), act, zero);
        }
        __m512i m = _mm512_madd_epi16(_mm512_unpackhi_epi8(both, zero), _mm512_broadcast_i32x4(bsums32(act)));
        m = _mm512_add_epi32(m, _mm512_shuffle_epi32(m, 0x4e));
        m = _mm512_add_epi32(m, _mm512_shuffle_epi32(m, 0xb1));
        __m128i mins = _mm512_castsi512_si128(_mm512_permutexvar_epi32(_mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0), m));
        const __m512i d_dmin = _mm512_setr_epi64(0x0018001000080000, 0x0019001100090001, 0, 0, 0, 0, 0, 0);
        __m256 d = _mm256_cvtph_ps(_mm512_castsi512_si128(_mm512_permutexvar_epi16(d_dmin, heads)));
        __m128 v = _mm_mul_ps(_mm256_castps256_ps128(d), _mm_cvtepi32_ps(fullsum4(s[0], s[1], s[2], s[3])));
        v = _mm_sub_ps(v, _mm_mul_ps(_mm256_extractf128_ps(d, 1), _mm_cvtepi32_ps(mins)));
        acc = _mm_add_ps(acc, _mm_mul_ps(_mm_set1_ps(load_f32(act)), v));
    }
    return acc;
}

// The scales of a row of a type that is not Q4_K or Q5_K, as scales64 wants them.
INLINE512 __m512i row_scales(int type, const uint8_t *w) {
    return per32(type) ? _mm512_broadcast_i32x4(scales_8(type, w)) : _mm512_castsi256_si512(scales_16(type, w));
}

// Four rows, one token, other types.
INLINE512 __m128 vec_k16(int type, const uint8_t *w, int64_t stride, int64_t blocks, const uint8_t *act) {
    __m128 acc = _mm_setzero_ps();
    stretch next = stretch_after(w, 4 * stride, NEAR);
    for (; blocks > 0; blocks--, w += block_bytes(type), act += ACT_K) {
        __m512i s[4];
        __m256i m[4], bsums = load256(act + 260);
        UNROLL for (int r = 0; r < 4; r++) {
            const uint8_t *wr = w + r * stride;
            prefetch(&next, block_bytes(type));
            __m512i start = _mm512_setzero_si512(), scales = row_scales(type, wr);
            if (bias_k(type)) {
                __m256i biases = _mm256_mullo_epi16(_mm512_castsi512_si256(scales), _mm256_set1_epi16((short)bias_k(type)));
                start = _mm512_zextsi256_si512(_mm256_sub_epi32(_mm256_setzero_si256(), _mm256_madd_epi16(biases, bsums)));
            }
            if (type == Q2_K) m[r] = _mm256_madd_epi16(mins_q2_k(wr), bsums);
            s[r] = dot_k(type, wr, scales, act, start);
        }
        __m128 dy = _mm_set1_ps(load_f32(act)), d = d4(type, w, stride), v = _mm_cvtepi32_ps(fullsum4(s[0], s[1], s[2], s[3]));
        if (type == Q2_K) {
            __m128i mins = sum4(m[0], m[1], m[2], m[3]);
            v = _mm_sub_ps(_mm_mul_ps(d, v), _mm_mul_ps(halves4(w + 82, stride), _mm_cvtepi32_ps(mins)));
            acc = _mm_add_ps(acc, _mm_mul_ps(dy, v));
        } else {
            acc = _mm_add_ps(acc, _mm_mul_ps(_mm_mul_ps(dy, d), v));
        }
    }
    return acc;
}

// Sixteen rows of one super-block, for many tokens: q as in tile32; scale[i] as 32-bit numbers, for every 32 or 16 elements;
// pairs holds neighbouring mins, or scales times the bias, to multiply pairs of bsums.
typedef struct {
    __m512i q[64], scale[16], pairs[8];
    __m512 d, dmin;
} tile_k;

// As bias_k, but IQ4_XS codes are unsigned too.
INLINE int tile_bias(int type) { return type == IQ4_XS ? 128 : bias_k(type); }

INLINE512 void unpack_scales(int type, tile_k *t, const uint8_t *w, int64_t stride) {
    __m512i v[8];
    if (is_k45(type)) {
        __m512i zero = _mm512_setzero_si512();
        UNROLL for (int i = 0; i < 4; i++) {
            __m512i both = scales_k45x4(heads4(w + i * stride, 4 * stride));
            v[i] = _mm512_unpacklo_epi8(both, zero), v[i + 4] = _mm512_unpackhi_epi8(both, zero);
        }
        transpose4(v);
        transpose4(v + 4);
        UNROLL for (int i = 0; i < 4; i++) {
            t->scale[2 * i] = _mm512_and_si512(v[i], _mm512_set1_epi32(0xffff));
            t->scale[2 * i + 1] = _mm512_srli_epi32(v[i], 16);
            t->pairs[i] = v[i + 4];
        }
        t->d = halves16(w, stride);
        t->dmin = halves16(w + 2, stride);
        return;
    }
    __m256i rows[16];
    UNROLL16 for (int r = 0; r < 16; r++) rows[r] = scales_k16(type, w + r * stride);
    transpose16x8(v, rows);
    UNROLL for (int i = 0; i < 8; i++) {
        __m512i even = _mm512_srai_epi32(_mm512_slli_epi32(v[i], 16), 16);
        if (per32(type)) {
            t->scale[i] = even;
        } else {
            t->scale[2 * i] = even;
            t->scale[2 * i + 1] = _mm512_srai_epi32(v[i], 16);
        }
        if (tile_bias(type)) t->pairs[i] = _mm512_mullo_epi16(v[i], _mm512_set1_epi16((short)tile_bias(type)));
    }
    t->d = join256_ps(_mm256_set_m128(d4(type, w + 4 * stride, stride), d4(type, w, stride)),
                      _mm256_set_m128(d4(type, w + 12 * stride, stride), d4(type, w + 8 * stride, stride)));
    if (type == Q2_K) {
        UNROLL16 for (int r = 0; r < 16; r++) rows[r] = mins_q2_k(w + r * stride);
        transpose16x8(t->pairs, rows);
        t->dmin = halves16(w + 82, stride);
    }
}

INLINE512 void unpack_k(int type, tile_k *t, const uint8_t *w, int64_t stride, stretch *next) {
    unpack_scales(type, t, w, stride);
    UNROLL for (int i = 0; i < 4; i++) {
        __m512i v[16];
        prefetch(next, 4 * block_bytes(type));
        UNROLL16 for (int r = 0; r < 16; r++) {
            v[r] = codes64(type, w + r * stride, i);
            if (type == IQ4_XS) {
                v[r] = values16(_mm_setr_epi8(1, 24, 45, 63, 79, 93, 106, 118, -127, -115, -103, -90, -75, -59, -39, -15), v[r]);
            }
        }
        transpose16(v);
        UNROLL16 for (int g = 0; g < 16; g++) t->q[16 * i + g] = v[g];
    }
}

INLINE512 void mul_k(int type, const tile_k *t, const uint8_t *act, int64_t act_stride, float *acc, const int T) {
    const int scales = per32(type) ? 8 : 16, group = 64 / scales;
    __m512i sum[8];
    UNROLL for (int u = 0; u < T; u++) sum[u] = _mm512_setzero_si512();
    for (int s = 0; s < scales; s++) {
        __m512i p[8];
        UNROLL for (int u = 0; u < T; u++) p[u] = _mm512_setzero_si512();
        UNROLL for (int g = 0; g < group; g++) {
            UNROLL for (int u = 0; u < T; u++) {
                __m512i v = _mm512_set1_epi32((int32_t)load_u32(act + 4 + u * act_stride + 4 * (group * s + g)));
                p[u] = _mm512_dpbusd_epi32(p[u], t->q[group * s + g], v);
            }
        }
        UNROLL for (int u = 0; u < T; u++) sum[u] = _mm512_add_epi32(sum[u], _mm512_mullo_epi32(p[u], t->scale[s]));
    }
    UNROLL for (int u = 0; u < T; u++) {
        const uint8_t *a = act + u * act_stride;
        __m512 dy = _mm512_set1_ps(load_f32(a)), v;
        __m512i mins = _mm512_setzero_si512(); // or biases
        if (is_k45(type)) {
            uint8_t bs[16];
            _mm_storeu_si128((__m128i *)bs, bsums32(a));
            UNROLL for (int i = 0; i < 4; i++) mins = _mm512_dpwssd_epi32(mins, t->pairs[i], _mm512_set1_epi32((int32_t)load_u32(bs + 4 * i)));
        } else {
            UNROLL for (int i = 0; i < 8; i++) mins = _mm512_dpwssd_epi32(mins, t->pairs[i], _mm512_set1_epi32((int32_t)load_u32(a + 260 + 4 * i)));
        }
        if (is_k45(type) || type == Q2_K) {
            v = _mm512_sub_ps(_mm512_mul_ps(t->d, _mm512_cvtepi32_ps(sum[u])), _mm512_mul_ps(t->dmin, _mm512_cvtepi32_ps(mins)));
            v = _mm512_mul_ps(dy, v);
        } else {
            v = _mm512_mul_ps(_mm512_mul_ps(dy, t->d), _mm512_cvtepi32_ps(_mm512_sub_epi32(sum[u], mins)));
        }
        _mm512_store_ps(acc + 16 * u, _mm512_add_ps(_mm512_load_ps(acc + 16 * u), v));
    }
}

// ---- float products ----------------------------------------------------------------------------------------------

INLINE512 __m512 floats16(int type, const uint8_t *p) {
    switch (type) {
    case F32: return _mm512_loadu_ps(p);
    case F16: return _mm512_cvtph_ps(load256(p));
    default: return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load256(p)), 16)); // BF16
    }
}

// R rows by T tokens. The sixteen lanes of an accumulator are the two times eight of the AVX2 product.
INLINE512 void float_tile(int type, const uint8_t *w, int64_t row_bytes, int64_t n, const uint8_t *x, int64_t x_stride, float *out,
                          int64_t out_stride, const int R, const int T) {
    const int size = float_bytes(type);
    __m512 acc[4][4];
    UNROLL for (int r = 0; r < R; r++)
        UNROLL for (int u = 0; u < T; u++) acc[r][u] = _mm512_setzero_ps();
    stretch next = stretch_after(w, R * row_bytes, NEAR);
    int64_t i = 0;
    for (; n - i >= 16; i += 16) {
        __m512 y[4];
        prefetch(&next, R * 16 * size);
        UNROLL for (int u = 0; u < T; u++) y[u] = floats16(F32, x + u * x_stride + 4 * i);
        UNROLL for (int r = 0; r < R; r++) {
            __m512 v = floats16(type, w + r * row_bytes + size * i);
            UNROLL for (int u = 0; u < T; u++) acc[r][u] = _mm512_fmadd_ps(v, y[u], acc[r][u]);
        }
    }
    if (i < n) { // what is left, padded with zeros
        size_t left = (size_t)(n - i);
        UNROLL for (int r = 0; r < R; r++) {
            UNROLL for (int u = 0; u < T; u++) {
                uint8_t a[64] = {0}, b[64] = {0};
                memcpy(a, w + r * row_bytes + size * i, left * (size_t)size);
                memcpy(b, x + u * x_stride + 4 * i, left * 4);
                acc[r][u] = _mm512_fmadd_ps(floats16(type, a), floats16(F32, b), acc[r][u]);
            }
        }
    }
    UNROLL for (int r = 0; r < R; r++)
        UNROLL for (int u = 0; u < T; u++) {
            out[u * out_stride + r] = sum8(_mm256_add_ps(_mm512_castps512_ps256(acc[r][u]), _mm512_extractf32x8_ps(acc[r][u], 1)));
        }
}

INLINE512 void float_matmul(int type, const uint8_t *w, int64_t row_bytes, int64_t rows, int64_t n, const uint8_t *x, int64_t x_stride,
                            int64_t tokens, float *out, int64_t out_stride) {
    for (int64_t r = 0, now; r < rows; r += now, w += now * row_bytes) {
        int64_t u = 0;
        now = rows - r >= 4 ? 4 : 1;
        if (now == 4) {
            for (; tokens - u >= 4; u += 4) float_tile(type, w, row_bytes, n, x + u * x_stride, x_stride, out + u * out_stride + r, out_stride, 4, 4);
            for (; u < tokens; u++) float_tile(type, w, row_bytes, n, x + u * x_stride, 0, out + u * out_stride + r, 0, 4, 1);
        }
        for (; u < tokens; u++) float_tile(type, w, row_bytes, n, x + u * x_stride, 0, out + u * out_stride + r, 0, 1, 1);
    }
}

// ---- entry points ------------------------------------------------------------------------------------------------

#define ROWS 16
#define BIAS(type) bias512(type)
#define FEWEST(type) (is_k(type) ? 3 : 2)
#include "avx_products_amd64.h"

QUANTISED(Q4_0)
QUANTISED(Q4_1)
QUANTISED(Q5_0)
QUANTISED(Q5_1)
QUANTISED(Q8_0)
QUANTISED(MXFP4)
QUANTISED(IQ4_NL)
QUANTISED(Q2_K)
QUANTISED(Q3_K)
QUANTISED(Q4_K)
QUANTISED(Q5_K)
QUANTISED(Q6_K)
QUANTISED(IQ4_XS)
FLOATS(F32)
FLOATS(F16)
FLOATS(BF16)

int kernel_avx512_matmul(uint32_t type, const uint8_t *w, int64_t row_bytes, int64_t rows, int64_t n, const uint8_t *act,
                         int64_t act_stride, int64_t tokens, float *out, int64_t out_stride) {
    switch (type) {
        QUANTISED_CASE(Q4_0)
        QUANTISED_CASE(Q4_1)
        QUANTISED_CASE(Q5_0)
        QUANTISED_CASE(Q5_1)
        QUANTISED_CASE(Q8_0)
        QUANTISED_CASE(MXFP4)
        QUANTISED_CASE(IQ4_NL)
        QUANTISED_CASE(Q2_K)
        QUANTISED_CASE(Q3_K)
        QUANTISED_CASE(Q4_K)
        QUANTISED_CASE(Q5_K)
        QUANTISED_CASE(Q6_K)
        QUANTISED_CASE(IQ4_XS)
        FLOAT_CASE(F32)
        FLOAT_CASE(F16)
        FLOAT_CASE(BF16)
    }
    return 0;
}
