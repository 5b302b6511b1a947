//go:build cgo

// Products of quantised and float weight rows with activation rows, AVX2 + FMA + F16C.
//
// Integer sums inside a block are exact, so lanes may hold anything: four rows (decode) or eight rows (prefill). The
// float part is the same for every shape: one accumulator per output, block after block, multiply and add unfused,
// as written in format.go. Change one and all must change.

#include "avx2_amd64.h"

#include <immintrin.h>
#include <string.h>

#pragma STDC FP_CONTRACT OFF // for clang; gcc does not contract under -std=c11

#define TARGET __attribute__((target("avx2,fma,f16c")))
#define INLINE static inline __attribute__((always_inline)) TARGET
#define UNROLL _Pragma("GCC unroll 8")

enum { F32 = 0, F16 = 1, Q4_0 = 2, Q4_1 = 3, Q5_0 = 6, Q5_1 = 7, Q8_0 = 8, Q4_K = 12, Q5_K = 13, Q6_K = 14, BF16 = 30, MXFP4 = 39 };

INLINE __m128i load128(const void *p) { return _mm_loadu_si128((const __m128i *)p); }
INLINE __m256i load256(const void *p) { return _mm256_loadu_si256((const __m256i *)p); }
INLINE uint16_t load_u16(const void *p) { uint16_t v; memcpy(&v, p, 2); return v; }
INLINE uint32_t load_u32(const void *p) { uint32_t v; memcpy(&v, p, 4); return v; }
INLINE float load_f32(const void *p) { float v; memcpy(&v, p, 4); return v; }
INLINE float load_f16(const void *p) { return _cvtsh_ss(load_u16(p)); }

// The sums of the lanes of four vectors, in order.
INLINE __m128i sum4(__m256i a, __m256i b, __m256i c, __m256i d) {
    __m256i s = _mm256_hadd_epi32(_mm256_hadd_epi32(a, b), _mm256_hadd_epi32(c, d));
    return _mm_add_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
}

INLINE __m128i sum4_128(__m128i a, __m128i b, __m128i c, __m128i d) {
    return _mm_hadd_epi32(_mm_hadd_epi32(a, b), _mm_hadd_epi32(c, d));
}

// sum4 for lanes so small that eight of them together fit 16 bits: packs and multiply-adds are cheaper than hadd.
INLINE __m128i sum4_small(__m256i a, __m256i b, __m256i c, __m256i d) {
    const __m256i one = _mm256_set1_epi16(1);
    __m256i ab = _mm256_madd_epi16(_mm256_packs_epi32(a, b), one);
    __m256i cd = _mm256_madd_epi16(_mm256_packs_epi32(c, d), one);
    __m256i s = _mm256_madd_epi16(_mm256_packs_epi32(ab, cd), one);
    return _mm_add_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
}

// Turns eight rows of eight 32-bit elements into eight columns.
INLINE void transpose8(__m256i v[8]) {
    __m256i t[8], u[8];
    UNROLL for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_epi32(v[i], v[i + 1]);
        t[i + 1] = _mm256_unpackhi_epi32(v[i], v[i + 1]);
    }
    UNROLL for (int i = 0; i < 8; i += 4) {
        u[i] = _mm256_unpacklo_epi64(t[i], t[i + 2]);
        u[i + 1] = _mm256_unpackhi_epi64(t[i], t[i + 2]);
        u[i + 2] = _mm256_unpacklo_epi64(t[i + 1], t[i + 3]);
        u[i + 3] = _mm256_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    UNROLL for (int i = 0; i < 4; i++) {
        v[i] = _mm256_permute2x128_si256(u[i], u[i + 4], 0x20);
        v[i + 4] = _mm256_permute2x128_si256(u[i], u[i + 4], 0x31);
    }
}

// Activation bytes k..k+3 in every 32-bit lane.
INLINE __m256i broadcast4(const uint8_t *y) { return _mm256_set1_epi32((int32_t)load_u32(y)); }

// ---- blocks of 32 ------------------------------------------------------------------------------------------------

INLINE int block_bytes(int type) {
    switch (type) {
    case Q4_0: return 18;
    case Q4_1: return 20;
    case Q5_0: return 22;
    case Q5_1: return 24;
    case Q8_0: return 34;
    case MXFP4: return 17;
    case Q4_K: return 144;
    case Q5_K: return 176;
    default: return 210; // Q6_K
    }
}

INLINE int has_offset(int type) { return type == Q4_1 || type == Q5_1; } // and then Q8_1 activations
INLINE int act_bytes(int type) { return has_offset(type) ? 36 : 34; }
INLINE int act_codes(int type) { return has_offset(type) ? 4 : 2; }

// What unsigned codes of codes32 exceed the true ones by.
INLINE int bias32(int type) { return type == Q4_0 ? 8 : type == Q5_0 ? 16 : type == MXFP4 ? 12 : 0; }

INLINE __m256i nibbles(const uint8_t *qs) {
    __m128i v = load128(qs);
    __m256i both = _mm256_inserti128_si256(_mm256_castsi128_si256(v), _mm_srli_epi16(v, 4), 1);
    return _mm256_and_si256(both, _mm256_set1_epi8(15));
}

// 16 in byte i where bit i of qh is set.
INLINE __m256i fifth_bits(uint32_t qh) {
    const __m256i byte = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i bit = _mm256_set1_epi64x((int64_t)0x8040201008040201ull);
    __m256i v = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32((int32_t)qh), byte), bit);
    return _mm256_and_si256(_mm256_cmpeq_epi8(v, bit), _mm256_set1_epi8(16));
}

// The codes of a block, made unsigned by bias32; signed for Q8_0.
INLINE __m256i codes32(int type, const uint8_t *b) {
    const __m256i fp4 = _mm256_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0, //
                                         12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0);
    switch (type) {
    case Q4_0: return nibbles(b + 2);
    case Q4_1: return nibbles(b + 4);
    case Q5_0: return _mm256_or_si256(nibbles(b + 6), fifth_bits(load_u32(b + 2)));
    case Q5_1: return _mm256_or_si256(nibbles(b + 8), fifth_bits(load_u32(b + 4)));
    case MXFP4: return _mm256_shuffle_epi8(fp4, nibbles(b + 1));
    default: return load256(b + 2); // Q8_0
    }
}

INLINE float half_e8m0(uint8_t e) { // 2^(e-128), NaN for 255
    uint32_t bits = e < 2 ? 0x00200000u << e : e == 255 ? 0x7fc00000u : (uint32_t)(e - 1) << 23;
    return load_f32(&bits);
}

// Four binary16 numbers, at the same offset of four blocks.
INLINE __m128 halves4(const uint8_t *const w[4], int64_t at) {
    uint64_t lo = load_u16(w[0] + at) | (uint64_t)load_u16(w[1] + at) << 16;
    uint64_t hi = load_u16(w[2] + at) | (uint64_t)load_u16(w[3] + at) << 16;
    return _mm_cvtph_ps(_mm_cvtsi64_si128((int64_t)(lo | hi << 32)));
}

INLINE __m128 scales4(int type, const uint8_t *const w[4], int64_t at) {
    if (type == MXFP4) {
        return _mm_setr_ps(half_e8m0(w[0][at]), half_e8m0(w[1][at]), half_e8m0(w[2][at]), half_e8m0(w[3][at]));
    }
    return halves4(w, at);
}

// Four rows, one token.
INLINE __m128 vec32(int type, const uint8_t *const w[4], int64_t ahead, int64_t blocks, const uint8_t *act) {
    const __m256i one = _mm256_set1_epi16(1);
    __m128 acc = _mm_setzero_ps();
    int64_t at = 0;
    for (int64_t b = 0; b < blocks; b++, at += block_bytes(type), act += act_bytes(type)) {
        __m256i y = load256(act + act_codes(type)), p[4];
        __m256i bias = _mm256_maddubs_epi16(_mm256_set1_epi8((char)bias32(type)), y);
        UNROLL for (int r = 0; r < 4; r++) {
            _mm_prefetch((const char *)(w[r] + at + ahead), _MM_HINT_T0);
            __m256i q = codes32(type, w[r] + at);
            if (type == Q8_0) { // unsigned by signed: move the sign; 2*128*127 fits
                p[r] = _mm256_maddubs_epi16(_mm256_abs_epi8(q), _mm256_sign_epi8(y, q));
            } else {
                p[r] = _mm256_maddubs_epi16(q, y);
                if (bias32(type)) p[r] = _mm256_sub_epi16(p[r], bias);
            }
            p[r] = _mm256_madd_epi16(p[r], one);
        }
        __m128i sum = type == Q8_0 ? sum4(p[0], p[1], p[2], p[3]) : sum4_small(p[0], p[1], p[2], p[3]);
        __m128 dy = _mm_set1_ps(load_f16(act));
        __m128 v = _mm_mul_ps(_mm_mul_ps(scales4(type, w, at), dy), _mm_cvtepi32_ps(sum));
        if (has_offset(type)) {
            v = _mm_add_ps(v, _mm_mul_ps(halves4(w, at + 2), _mm_set1_ps(load_f16(act + 2))));
        }
        acc = _mm_add_ps(acc, v);
    }
    return acc;
}

// Eight rows of up to eight blocks, for many tokens: vector q[8*b+g] holds, row by row, codes 4g..4g+3 of block b.
typedef struct {
    __m256i q[64];
    __m256 d[8], m[8];
} tile32;

// What the products need of an activation block besides its codes.
typedef struct {
    float d, s;
    int32_t bias; // bias32 * sum of the codes
} act32;

enum { ACTS = 2048 }; // activation blocks summarised at a time: 24 KB of stack

INLINE __m256 scales8(int type, const uint8_t *const w[8], int64_t at) {
    return _mm256_set_m128(scales4(type, w + 4, at), scales4(type, w, at));
}

INLINE void unpack32(int type, tile32 *t, const uint8_t *const w[8], int64_t ahead, int64_t at, int blocks) {
    for (int b = 0; b < blocks; b++, at += block_bytes(type)) {
        __m256i v[8];
        UNROLL for (int r = 0; r < 8; r++) {
            _mm_prefetch((const char *)(w[r] + at + ahead), _MM_HINT_T0);
            v[r] = codes32(type, w[r] + at);
        }
        transpose8(v);
        UNROLL for (int g = 0; g < 8; g++) t->q[8 * b + g] = v[g];
        t->d[b] = scales8(type, w, at);
        if (has_offset(type)) t->m[b] = scales8(type, w, at + 2);
    }
}

// Adds the products of a tile with T tokens to acc.
INLINE void mul32(int type, const tile32 *t, int blocks, const uint8_t *act, int64_t act_stride, const act32 *info,
                  int64_t info_stride, float *acc, const int T) {
    const __m256i one = _mm256_set1_epi16(1);
    const int group = type == Q8_0 ? 1 : type == Q4_0 || type == Q4_1 ? 8 : 4; // sums of codes that fit 16 bits
    __m256 a[4];
    UNROLL for (int u = 0; u < T; u++) a[u] = _mm256_load_ps(acc + 8 * u);
    for (int b = 0; b < blocks; b++) {
        __m256i sum[4];
        UNROLL for (int u = 0; u < T; u++) {
            sum[u] = bias32(type) ? _mm256_set1_epi32(-info[u * info_stride + b].bias) : _mm256_setzero_si256();
        }
        const uint8_t *y = act + b * act_bytes(type) + act_codes(type);
        UNROLL for (int g = 0; g < 8; g += group) {
            __m256i p[4];
            UNROLL for (int i = 0; i < group; i++) {
                __m256i q = t->q[8 * b + g + i], mag = type == Q8_0 ? _mm256_abs_epi8(q) : q;
                UNROLL for (int u = 0; u < T; u++) {
                    __m256i v = broadcast4(y + u * act_stride + 4 * (g + i));
                    if (type == Q8_0) v = _mm256_sign_epi8(v, q);
                    v = _mm256_maddubs_epi16(mag, v);
                    p[u] = i == 0 ? v : _mm256_add_epi16(p[u], v);
                }
            }
            UNROLL for (int u = 0; u < T; u++) sum[u] = _mm256_add_epi32(sum[u], _mm256_madd_epi16(p[u], one));
        }
        UNROLL for (int u = 0; u < T; u++) {
            const act32 *i = &info[u * info_stride + b];
            __m256 v = _mm256_mul_ps(_mm256_mul_ps(t->d[b], _mm256_set1_ps(i->d)), _mm256_cvtepi32_ps(sum[u]));
            if (has_offset(type)) v = _mm256_add_ps(v, _mm256_mul_ps(t->m[b], _mm256_set1_ps(i->s)));
            a[u] = _mm256_add_ps(a[u], v);
        }
    }
    UNROLL for (int u = 0; u < T; u++) _mm256_store_ps(acc + 8 * u, a[u]);
}

INLINE void summarise32(int type, act32 *info, const uint8_t *act, int64_t blocks) {
    for (int64_t b = 0; b < blocks; b++, act += act_bytes(type)) {
        __m256i y = load256(act + act_codes(type));
        __m256i p = _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8((char)bias32(type)), y), _mm256_set1_epi16(1));
        info[b].d = load_f16(act);
        info[b].s = has_offset(type) ? load_f16(act + 2) : 0;
        info[b].bias = _mm_cvtsi128_si32(sum4(p, p, p, p));
    }
}

// ---- super-blocks of 256 -----------------------------------------------------------------------------------------

enum { ACT_K = 292 };

// Unsigned codes of sub-block b (32 elements); for Q6_K 32 more than the true ones.
INLINE __m256i codes_k(int type, const uint8_t *w, int b) {
    const __m256i low4 = _mm256_set1_epi8(15);
    if (type == Q6_K) {
        int h = b / 4, j = b % 4;
        __m256i ql = load256(w + 64 * h + 32 * (j % 2)), qh = load256(w + 128 + 32 * h);
        __m256i lo = _mm256_and_si256(j < 2 ? ql : _mm256_srli_epi16(ql, 4), low4);
        __m256i hi = j == 0 ? _mm256_slli_epi16(qh, 4) : j == 1 ? _mm256_slli_epi16(qh, 2) : j == 2 ? qh : _mm256_srli_epi16(qh, 2);
        return _mm256_or_si256(lo, _mm256_and_si256(hi, _mm256_set1_epi8(48)));
    }
    __m256i q = load256(w + (type == Q5_K ? 48 : 16) + 32 * (b / 2));
    q = _mm256_and_si256(b % 2 ? _mm256_srli_epi16(q, 4) : q, low4);
    if (type == Q5_K) {
        __m256i qh = load256(w + 16);
        qh = b < 4 ? _mm256_slli_epi16(qh, 4 - b) : _mm256_srli_epi16(qh, b - 4);
        q = _mm256_or_si256(q, _mm256_and_si256(qh, _mm256_set1_epi8(16)));
    }
    return q;
}

// The 16 scales, or 8 scales and 8 mins, of a super-block as 16-bit numbers in file order.
INLINE __m256i scales_k(int type, const uint8_t *w) {
    if (type == Q6_K) return _mm256_cvtepi8_epi16(load128(w + 192));
    uint32_t s0 = load_u32(w + 4), s1 = load_u32(w + 8), s2 = load_u32(w + 12);
    uint32_t sc_hi = (s2 & 0x0f0f0f0f) | (s0 >> 2 & 0x30303030);
    uint32_t mn_hi = (s2 >> 4 & 0x0f0f0f0f) | (s1 >> 2 & 0x30303030);
    uint64_t sc = (s0 & 0x3f3f3f3f) | (uint64_t)sc_hi << 32, mn = (s1 & 0x3f3f3f3f) | (uint64_t)mn_hi << 32;
    return _mm256_cvtepu8_epi16(_mm_set_epi64x((int64_t)mn, (int64_t)sc));
}

// Sums of 32 activation codes, as 16-bit numbers.
INLINE __m128i bsums32(const uint8_t *act) { return _mm_hadd_epi16(load128(act + 260), load128(act + 276)); }

// Σ scale * code * activation of one super-block; its lanes add up to the integer of the specification. mins gets
// lanes that add up to Σ min * bsum (not for Q6_K).
INLINE __m256i dot_k(int type, const uint8_t *w, const uint8_t *act, __m256i bsums, __m128i *mins) {
    const uint8_t *y = act + 4;
    __m256i sum, sc;
    if (type == Q6_K) {
        // Even scales in the low half, odd ones in the high half: a sub-block of 32 has two, one per half.
        const __m128i split = _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
        sc = _mm256_cvtepi8_epi16(_mm_shuffle_epi8(load128(w + 192), split));
        sum = _mm256_slli_epi32(_mm256_madd_epi16(sc, bsums), 5);
        sum = _mm256_sub_epi32(_mm256_setzero_si256(), sum);
    } else {
        sc = scales_k(type, w);
        *mins = _mm_madd_epi16(_mm256_extracti128_si256(sc, 1), _mm256_castsi256_si128(bsums));
        sc = _mm256_permute2x128_si256(sc, sc, 0);
        sum = _mm256_setzero_si256();
    }
    UNROLL for (int b = 0; b < 8; b++) {
        __m256i scale = _mm256_shuffle_epi8(sc, _mm256_set1_epi16((short)(2 * b | (2 * b + 1) << 8)));
        __m256i p = _mm256_maddubs_epi16(codes_k(type, w, b), load256(y + 32 * b));
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(p, scale));
    }
    return sum;
}

// dy * (d*sum - dmin*mins), or dy * d * sum: exactly as in format.go.
INLINE __m128 combine4(__m128 dy, __m128 d, __m128 dmin, __m128i sum, __m128i mins) {
    __m128 v = _mm_sub_ps(_mm_mul_ps(d, _mm_cvtepi32_ps(sum)), _mm_mul_ps(dmin, _mm_cvtepi32_ps(mins)));
    return _mm_mul_ps(dy, v);
}

// Four rows, one token.
INLINE __m128 vec_k(int type, const uint8_t *const w[4], int64_t ahead, int64_t blocks, const uint8_t *act) {
    __m128 acc = _mm_setzero_ps();
    int64_t at = 0;
    for (int64_t b = 0; b < blocks; b++, at += block_bytes(type), act += ACT_K) {
        __m256i s[4], bsums;
        __m128i m[4];
        if (type == Q6_K) { // the order of the scales in dot_k
            const __m256i split = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
            bsums = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(load256(act + 260), split), 0xd8);
        } else {
            bsums = _mm256_castsi128_si256(bsums32(act));
        }
        UNROLL for (int r = 0; r < 4; r++) {
            UNROLL for (int line = 0; line < block_bytes(type); line += 64) {
                _mm_prefetch((const char *)(w[r] + at + ahead + line), _MM_HINT_T0);
            }
            s[r] = dot_k(type, w[r] + at, act, bsums, &m[r]);
        }
        __m128i sum = sum4(s[0], s[1], s[2], s[3]);
        __m128 dy = _mm_set1_ps(load_f32(act)), v;
        if (type == Q6_K) {
            v = _mm_mul_ps(_mm_mul_ps(dy, halves4(w, at + 208)), _mm_cvtepi32_ps(sum));
        } else {
            v = combine4(dy, halves4(w, at), halves4(w, at + 2), sum, sum4_128(m[0], m[1], m[2], m[3]));
        }
        acc = _mm_add_ps(acc, v);
    }
    return acc;
}

// Eight rows of one super-block, for many tokens: q as in tile32; sc holds each scale twice per row, to multiply the
// two 16-bit sums of that row; pairs holds neighbouring mins (or Q6_K scales), to multiply pairs of bsums.
typedef struct {
    __m256i q[64], sc[16], pairs[8];
    __m256 d, dmin;
} tile_k;

INLINE void unpack_k(int type, tile_k *t, const uint8_t *const w[8], int64_t ahead, int64_t at) {
    const __m256i even = _mm256_set1_epi64x(0x0504050401000100) , odd = _mm256_set1_epi64x(0x0706070603020302);
    const __m256i quad = _mm256_setr_epi64x(0, 0x0808080808080808, 0, 0x0808080808080808);
    __m256i v[8];
    UNROLL for (int r = 0; r < 8; r++) v[r] = scales_k(type, w[r] + at);
    transpose8(v);
    for (int i = 0; i < (type == Q6_K ? 8 : 4); i++) {
        t->sc[2 * i] = _mm256_shuffle_epi8(v[i], _mm256_add_epi8(even, quad));
        t->sc[2 * i + 1] = _mm256_shuffle_epi8(v[i], _mm256_add_epi8(odd, quad));
    }
    if (type == Q6_K) {
        UNROLL for (int i = 0; i < 8; i++) t->pairs[i] = v[i];
        t->d = scales8(type, w, at + 208);
    } else {
        UNROLL for (int i = 0; i < 4; i++) t->pairs[i] = v[4 + i];
        t->d = scales8(type, w, at);
        t->dmin = scales8(type, w, at + 2);
    }
    UNROLL for (int b = 0; b < 8; b++) {
        UNROLL for (int r = 0; r < 8; r++) v[r] = codes_k(type, w[r] + at, b);
        if (b % 2 == 0) {
            UNROLL for (int r = 0; r < 8; r++) _mm_prefetch((const char *)(w[r] + at + ahead + 32 * b), _MM_HINT_T0);
        }
        transpose8(v);
        UNROLL for (int g = 0; g < 8; g++) t->q[8 * b + g] = v[g];
    }
}

INLINE void mul_k(int type, const tile_k *t, const uint8_t *act, int64_t act_stride, float *acc, const int T) {
    const int group = type == Q4_K ? 8 : type == Q5_K ? 4 : 2; // sums of codes that fit 16 bits
    __m256i sum[4];
    UNROLL for (int u = 0; u < T; u++) sum[u] = _mm256_setzero_si256();
    for (int b = 0; b < 8; b++) {
        const uint8_t *y = act + 4 + 32 * b;
        UNROLL for (int g = 0; g < 8; g += group) {
            __m256i p[4];
            UNROLL for (int i = 0; i < group; i++) {
                __m256i q = t->q[8 * b + g + i];
                UNROLL for (int u = 0; u < T; u++) {
                    __m256i v = _mm256_maddubs_epi16(q, broadcast4(y + u * act_stride + 4 * (g + i)));
                    p[u] = i == 0 ? v : _mm256_add_epi16(p[u], v);
                }
            }
            __m256i scale = t->sc[type == Q6_K ? 2 * b + g / 4 : b];
            UNROLL for (int u = 0; u < T; u++) sum[u] = _mm256_add_epi32(sum[u], _mm256_madd_epi16(p[u], scale));
        }
    }
    UNROLL for (int u = 0; u < T; u++) {
        const uint8_t *a = act + u * act_stride;
        __m256 dy = _mm256_set1_ps(load_f32(a)), v;
        __m256i mins = _mm256_setzero_si256();
        if (type == Q6_K) {
            UNROLL for (int i = 0; i < 8; i++) {
                mins = _mm256_add_epi32(mins, _mm256_madd_epi16(t->pairs[i], broadcast4(a + 260 + 4 * i)));
            }
            __m256i s = _mm256_sub_epi32(sum[u], _mm256_slli_epi32(mins, 5));
            v = _mm256_mul_ps(_mm256_mul_ps(dy, t->d), _mm256_cvtepi32_ps(s));
        } else {
            __m256i bs = _mm256_broadcastsi128_si256(bsums32(a));
            mins = _mm256_madd_epi16(t->pairs[0], _mm256_shuffle_epi32(bs, 0x00));
            mins = _mm256_add_epi32(mins, _mm256_madd_epi16(t->pairs[1], _mm256_shuffle_epi32(bs, 0x55)));
            mins = _mm256_add_epi32(mins, _mm256_madd_epi16(t->pairs[2], _mm256_shuffle_epi32(bs, 0xaa)));
            mins = _mm256_add_epi32(mins, _mm256_madd_epi16(t->pairs[3], _mm256_shuffle_epi32(bs, 0xff)));
            v = _mm256_sub_ps(_mm256_mul_ps(t->d, _mm256_cvtepi32_ps(sum[u])), _mm256_mul_ps(t->dmin, _mm256_cvtepi32_ps(mins)));
            v = _mm256_mul_ps(dy, v);
        }
        _mm256_store_ps(acc + 8 * u, _mm256_add_ps(_mm256_load_ps(acc + 8 * u), v));
    }
}

// ---- quantised products ------------------------------------------------------------------------------------------

// The rows r0 .. r0+count-1; past the last one, the last again, whose results are dropped.
INLINE void row_pointers(const uint8_t **p, int count, const uint8_t *w, int64_t row_bytes, int64_t r0, int64_t rows) {
    for (int r = 0; r < count; r++) p[r] = w + (r0 + r < rows ? r0 + r : rows - 1) * row_bytes;
}

// One token: four rows at a time. The next four are prefetched, since short rows end before the hardware catches on.
INLINE void matvec(int type, const uint8_t *w, int64_t row_bytes, int64_t rows, const uint8_t *act, float *out) {
    int64_t blocks = row_bytes / block_bytes(type);
    for (int64_t r = 0; r < rows; r += 4) {
        const uint8_t *p[4];
        row_pointers(p, 4, w, row_bytes, r, rows);
        int64_t ahead = 4 * row_bytes;
        __m128 v = type >= Q4_K && type <= Q6_K ? vec_k(type, p, ahead, blocks, act) : vec32(type, p, ahead, blocks, act);
        if (rows - r >= 4) {
            _mm_storeu_ps(out + r, v);
        } else {
            float part[4];
            _mm_storeu_ps(part, v);
            memcpy(out + r, part, (size_t)(rows - r) * sizeof(float));
        }
    }
}

enum { MAX_TOKENS = 64 };

// Several tokens (at most MAX_TOKENS): eight rows at a time are unpacked once, block by block, and meet all tokens.
INLINE void matmat(int type, const uint8_t *w, int64_t row_bytes, int64_t rows, const uint8_t *act, int64_t act_stride,
                   int64_t tokens, const act32 *info, float *out, int64_t out_stride) {
    const int is_k = type >= Q4_K && type <= Q6_K;
    int64_t blocks = row_bytes / block_bytes(type), step = is_k ? 1 : 8;
    float acc[8 * MAX_TOKENS] __attribute__((aligned(32)));
    for (int64_t r = 0; r < rows; r += 8) {
        const uint8_t *p[8];
        row_pointers(p, 8, w, row_bytes, r, rows);
        memset(acc, 0, (size_t)tokens * 8 * sizeof(float));
        for (int64_t b = 0; b < blocks; b += step) {
            union { tile32 b32; tile_k k; } t;
            int n = (int)(blocks - b < step ? blocks - b : step);
            const uint8_t *y = act + b * (is_k ? ACT_K : act_bytes(type));
            if (is_k) unpack_k(type, &t.k, p, 8 * row_bytes, b * block_bytes(type));
            else unpack32(type, &t.b32, p, 8 * row_bytes, b * block_bytes(type), n);
            int64_t u = 0;
#define MUL(T)                                                                                         \
    for (; tokens - u >= T; u += T) {                                                                  \
        if (is_k) mul_k(type, &t.k, y + u * act_stride, act_stride, acc + 8 * u, T);                    \
        else mul32(type, &t.b32, n, y + u * act_stride, act_stride, info + u * blocks + b, blocks, acc + 8 * u, T); \
    }
            MUL(4)
            MUL(2)
            MUL(1)
#undef MUL
        }
        int64_t valid = rows - r < 8 ? rows - r : 8;
        for (int64_t u = 0; u < tokens; u++) memcpy(out + u * out_stride + r, acc + 8 * u, (size_t)valid * sizeof(float));
    }
}

INLINE void matmul(int type, const uint8_t *w, int64_t row_bytes, int64_t rows, const uint8_t *act, int64_t act_stride,
                   int64_t tokens, float *out, int64_t out_stride) {
    const int is_k = type >= Q4_K && type <= Q6_K;
    int64_t blocks = row_bytes / block_bytes(type), most = is_k ? MAX_TOKENS : blocks ? ACTS / blocks : 0;
    act32 info[ACTS];
    if (most > MAX_TOKENS) most = MAX_TOKENS;
    while (tokens > 0) {
        int64_t now = tokens < most ? tokens : most;
        if (now < 2) {
            now = 1;
            matvec(type, w, row_bytes, rows, act, out);
        } else {
            if (!is_k) {
                for (int64_t u = 0; u < now; u++) summarise32(type, info + u * blocks, act + u * act_stride, blocks);
            }
            matmat(type, w, row_bytes, rows, act, act_stride, now, info, out, out_stride);
        }
        tokens -= now;
        act += now * act_stride;
        out += now * out_stride;
    }
}

// ---- float products ----------------------------------------------------------------------------------------------

INLINE int float_bytes(int type) { return type == F32 ? 4 : 2; }

INLINE __m256 floats8(int type, const uint8_t *p) {
    switch (type) {
    case F32: return _mm256_loadu_ps((const float *)p);
    case F16: return _mm256_cvtph_ps(load128(p));
    default: return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load128(p)), 16)); // BF16
    }
}

INLINE float sum8(__m256 v) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

// R rows by T tokens. Each output has two accumulators of eight lanes, fused, whatever R and T are.
INLINE void float_tile(int type, const uint8_t *w, int64_t row_bytes, int64_t n, const uint8_t *x, int64_t x_stride, float *out,
                       int64_t out_stride, const int R, const int T) {
    const int size = float_bytes(type);
    __m256 acc[4][2][2];
    UNROLL for (int r = 0; r < R; r++)
        UNROLL for (int u = 0; u < T; u++) acc[r][u][0] = acc[r][u][1] = _mm256_setzero_ps();
    int64_t i = 0;
    for (; n - i >= 16; i += 16) {
        UNROLL for (int h = 0; h < 2; h++) {
            __m256 y[2];
            UNROLL for (int u = 0; u < T; u++) y[u] = floats8(F32, x + u * x_stride + 4 * (i + 8 * h));
            UNROLL for (int r = 0; r < R; r++) {
                __m256 v = floats8(type, w + r * row_bytes + size * (i + 8 * h));
                UNROLL for (int u = 0; u < T; u++) acc[r][u][h] = _mm256_fmadd_ps(v, y[u], acc[r][u][h]);
            }
        }
    }
    for (int h = 0; i < n; i += 8, h++) { // what is left, padded with zeros
        size_t left = (size_t)(n - i < 8 ? n - i : 8);
        UNROLL for (int r = 0; r < R; r++) {
            UNROLL for (int u = 0; u < T; u++) {
                uint8_t a[32] = {0}, b[32] = {0};
                memcpy(a, w + r * row_bytes + size * i, left * (size_t)size);
                memcpy(b, x + u * x_stride + 4 * i, left * 4);
                if (h == 0) acc[r][u][0] = _mm256_fmadd_ps(floats8(type, a), floats8(F32, b), acc[r][u][0]);
                else acc[r][u][1] = _mm256_fmadd_ps(floats8(type, a), floats8(F32, b), acc[r][u][1]);
            }
        }
    }
    UNROLL for (int r = 0; r < R; r++)
        UNROLL for (int u = 0; u < T; u++) out[u * out_stride + r] = sum8(_mm256_add_ps(acc[r][u][0], acc[r][u][1]));
}

INLINE void float_matmul(int type, const uint8_t *w, int64_t row_bytes, int64_t rows, int64_t n, const uint8_t *x, int64_t x_stride,
                         int64_t tokens, float *out, int64_t out_stride) {
    for (int64_t r = 0; r < rows;) {
        int64_t u = 0;
        if (rows - r >= 4) {
            for (; tokens - u >= 2; u += 2) {
                UNROLL for (int h = 0; h < 4; h += 2) {
                    float_tile(type, w + h * row_bytes, row_bytes, n, x + u * x_stride, x_stride, out + u * out_stride + r + h, out_stride, 2, 2);
                }
            }
            for (; u < tokens; u++) float_tile(type, w, row_bytes, n, x + u * x_stride, 0, out + u * out_stride + r, 0, 4, 1);
            r += 4;
            w += 4 * row_bytes;
        } else {
            for (; u < tokens; u++) float_tile(type, w, row_bytes, n, x + u * x_stride, 0, out + u * out_stride + r, 0, 1, 1);
            r++;
            w += row_bytes;
        }
    }
}

// ---- entry points ------------------------------------------------------------------------------------------------

#define QUANTISED(type)                                                                                                       \
    static TARGET __attribute__((noinline)) void matmul_##type(const uint8_t *w, int64_t row_bytes, int64_t rows, const uint8_t *act, \
                                                               int64_t act_stride, int64_t tokens, float *out, int64_t out_stride) {  \
        matmul(type, w, row_bytes, rows, act, act_stride, tokens, out, out_stride);                                           \
    }
QUANTISED(Q4_0)
QUANTISED(Q4_1)
QUANTISED(Q5_0)
QUANTISED(Q5_1)
QUANTISED(Q8_0)
QUANTISED(MXFP4)
QUANTISED(Q4_K)
QUANTISED(Q5_K)
QUANTISED(Q6_K)

#define FLOATS(type)                                                                                                          \
    static TARGET __attribute__((noinline)) void matmul_##type(const uint8_t *w, int64_t row_bytes, int64_t rows, int64_t n,          \
                                                               const uint8_t *x, int64_t x_stride, int64_t tokens, float *out, int64_t out_stride) { \
        float_matmul(type, w, row_bytes, rows, n, x, x_stride, tokens, out, out_stride);                                      \
    }
FLOATS(F32)
FLOATS(F16)
FLOATS(BF16)

void kernel_avx2_matmul(uint32_t type, const uint8_t *w, int64_t row_bytes, int64_t rows, int64_t n, const uint8_t *act,
                        int64_t act_stride, int64_t tokens, float *out, int64_t out_stride) {
#define CASE(type)                                                                    \
    case type:                                                                        \
        matmul_##type(w, row_bytes, rows, act, act_stride, tokens, out, out_stride);  \
        return;
#define FLOAT_CASE(type)                                                                \
    case type:                                                                          \
        matmul_##type(w, row_bytes, rows, n, act, act_stride, tokens, out, out_stride); \
        return;
    switch (type) {
        CASE(Q4_0)
        CASE(Q4_1)
        CASE(Q5_0)
        CASE(Q5_1)
        CASE(Q8_0)
        CASE(MXFP4)
        CASE(Q4_K)
        CASE(Q5_K)
        CASE(Q6_K)
        FLOAT_CASE(F32)
        FLOAT_CASE(F16)
        FLOAT_CASE(BF16)
    }
}

void kernel_avx2_dot_rows(uint32_t type, const uint8_t *w, int64_t row_bytes, int64_t rows, int64_t n, const float *x,
                          float *out) {
    kernel_avx2_matmul(type, w, row_bytes, rows, n, (const uint8_t *)x, 0, 1, out, 0);
}
