// How weights and activations lie in memory, for the AVX2 and AVX-512 products (specs/quants.md 2 and 3). Functions that
// take a type are meant for constant ones: all of their switches fold away.
#ifndef BIGMOE_KERNEL_FORMATS_H
#define BIGMOE_KERNEL_FORMATS_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#define TARGET_AVX2 __attribute__((target("avx2,fma,f16c")))
#define INLINE static inline __attribute__((always_inline)) TARGET_AVX2
#define INLINE_ANY static inline __attribute__((always_inline)) // usable outside TARGET_AVX2 too
#define UNROLL _Pragma("GCC unroll 8")

enum {
    F32 = 0, F16 = 1, Q4_0 = 2, Q4_1 = 3, Q5_0 = 6, Q5_1 = 7, Q8_0 = 8, Q2_K = 10, Q3_K = 11, Q4_K = 12, Q5_K = 13, Q6_K = 14,
    IQ2_XXS = 16, IQ2_XS = 17, IQ3_XXS = 18, IQ1_S = 19, IQ4_NL = 20, IQ3_S = 21, IQ2_S = 22, IQ4_XS = 23, IQ1_M = 29, BF16 = 30,
    TQ2_0 = 35, MXFP4 = 39, NVFP4 = 40
};

INLINE __m128i load128(const void *p) { return _mm_loadu_si128((const __m128i *)p); }
INLINE __m256i load256(const void *p) { return _mm256_loadu_si256((const __m256i *)p); }
INLINE uint16_t load_u16(const void *p) { uint16_t v; memcpy(&v, p, 2); return v; }
INLINE uint32_t load_u32(const void *p) { uint32_t v; memcpy(&v, p, 4); return v; }
INLINE uint64_t load_u64(const void *p) { uint64_t v; memcpy(&v, p, 8); return v; }
INLINE float load_f32(const void *p) { float v; memcpy(&v, p, 4); return v; }
INLINE float load_f16(const void *p) { return _cvtsh_ss(load_u16(p)); }

// The sums of the lanes of four vectors, in order, as two halves still to be added.
INLINE __m256i halfsum4(__m256i a, __m256i b, __m256i c, __m256i d) {
    return _mm256_hadd_epi32(_mm256_hadd_epi32(a, b), _mm256_hadd_epi32(c, d));
}

INLINE __m128i sum4(__m256i a, __m256i b, __m256i c, __m256i d) {
    __m256i s = halfsum4(a, b, c, d);
    return _mm_add_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
}

// Rows lie one after another, so what the next group of rows needs is one linear stretch, as long as this group.
// Touching it front to back, a bit per block, keeps the memory busy where reading short rows side by side does not
// (measured: twice the rate). It goes to the first cache while groups have at most near bytes.
typedef struct {
    const uint8_t *next;
    int far;
} stretch;

INLINE stretch stretch_after(const uint8_t *w, int64_t bytes, int64_t near) { return (stretch){w + bytes, bytes > near}; }

INLINE void prefetch(stretch *s, int bytes) {
    if (s->far) {
        UNROLL for (int i = 0; i < bytes; i += 64) _mm_prefetch((const char *)s->next + i, _MM_HINT_T1);
    } else {
        UNROLL for (int i = 0; i < bytes; i += 64) _mm_prefetch((const char *)s->next + i, _MM_HINT_T0);
    }
    s->next += bytes;
}

// ---- blocks of 32 ------------------------------------------------------------------------------------------------

INLINE_ANY int block_bytes(int type) {
    switch (type) {
    case Q4_0: case IQ4_NL: return 18;
    case Q4_1: return 20;
    case Q5_0: return 22;
    case Q5_1: return 24;
    case Q8_0: return 34;
    case MXFP4: return 17;
    case NVFP4: return 36;
    case Q2_K: return 84;
    case Q3_K: case IQ3_S: return 110;
    case Q4_K: return 144;
    case Q5_K: return 176;
    case IQ4_XS: return 136;
    case IQ1_S: return 50;
    case IQ1_M: return 56;
    case IQ2_XXS: case TQ2_0: return 66;
    case IQ2_XS: return 74;
    case IQ2_S: return 82;
    case IQ3_XXS: return 98;
    default: return 210; // Q6_K
    }
}

INLINE int has_offset(int type) { return type == Q4_1 || type == Q5_1; } // and then Q8_1 activations
INLINE int act_bytes(int type) { return has_offset(type) ? 36 : 34; }
INLINE int act_codes(int type) { return has_offset(type) ? 4 : 2; }

// What unsigned codes of codes32 exceed the true ones by.
INLINE int bias32(int type) { return type == Q4_0 ? 8 : type == Q5_0 ? 16 : type == MXFP4 ? 12 : 0; }

INLINE __m256i nibbles(const uint8_t *qs) { // low ones of 16 bytes, then high ones
    __m256i v = _mm256_srlv_epi64(_mm256_broadcastsi128_si256(load128(qs)), _mm256_setr_epi64x(0, 0, 4, 4));
    return _mm256_and_si256(v, _mm256_set1_epi8(15));
}

// All bits of byte i where bit i of bits is set.
INLINE __m256i spread_bits(uint32_t bits) {
    const __m256i byte = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i bit = _mm256_set1_epi64x((int64_t)0x8040201008040201ull);
    __m256i v = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32((int32_t)bits), byte), bit);
    return _mm256_cmpeq_epi8(v, bit);
}

INLINE __m256i fifth_bits(uint32_t qh) { return _mm256_and_si256(spread_bits(qh), _mm256_set1_epi8(16)); }

// Types whose codes stay signed: a bias would not leave room for 16-bit sums.
INLINE int has_sign(int type) { return type == Q8_0 || type == IQ4_NL || type == IQ4_XS; }

INLINE __m256i nonlinear4(__m256i codes) { // the values of IQ4_NL and IQ4_XS codes
    const __m128i values = _mm_setr_epi8(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113);
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(values), codes);
}

INLINE __m256i fp4(__m256i codes) { // their values plus 12
    const __m128i values = _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0);
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(values), codes);
}

// The codes of a block, made unsigned by bias32, unless it has_sign.
INLINE __m256i codes32(int type, const uint8_t *b) {
    switch (type) {
    case Q4_0: return nibbles(b + 2);
    case Q4_1: return nibbles(b + 4);
    case Q5_0: return _mm256_or_si256(nibbles(b + 6), fifth_bits(load_u32(b + 2)));
    case Q5_1: return _mm256_or_si256(nibbles(b + 8), fifth_bits(load_u32(b + 4)));
    case IQ4_NL: return nonlinear4(nibbles(b + 2));
    case MXFP4: return fp4(nibbles(b + 1));
    default: return load256(b + 2); // Q8_0
    }
}

// 2^(e-128) for eight E8M0 bytes, NaN for 255: e in the exponent field is 2^(e-127), except that 0 must become the
// subnormal 2^-127 and 255, which reads as Inf, NaN.
INLINE __m256 half_e8m0(const uint8_t *w, int64_t stride) {
    uint32_t lo = w[0] | (uint32_t)w[stride] << 8 | (uint32_t)w[2 * stride] << 16 | (uint32_t)w[3 * stride] << 24;
    uint32_t hi = w[4 * stride] | (uint32_t)w[5 * stride] << 8 | (uint32_t)w[6 * stride] << 16 | (uint32_t)w[7 * stride] << 24;
    __m256i e = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128((int64_t)(lo | (uint64_t)hi << 32)));
    __m256 v = _mm256_castsi256_ps(_mm256_max_epi32(_mm256_slli_epi32(e, 23), _mm256_set1_epi32(0x00400000)));
    return _mm256_add_ps(_mm256_mul_ps(v, _mm256_set1_ps(0.5f)), _mm256_sub_ps(v, v));
}

// Four binary16 numbers, stride apart.
INLINE __m128 halves4(const uint8_t *w, int64_t stride) {
    uint64_t lo = load_u16(w) | (uint64_t)load_u16(w + stride) << 16;
    uint64_t hi = load_u16(w + 2 * stride) | (uint64_t)load_u16(w + 3 * stride) << 16;
    return _mm_cvtph_ps(_mm_cvtsi64_si128((int64_t)(lo | hi << 32)));
}

INLINE __m256 halves8(const uint8_t *w, int64_t stride) {
    return _mm256_set_m128(halves4(w + 4 * stride, stride), halves4(w, stride));
}

// The scales of eight blocks.
INLINE __m256 scales8(int type, const uint8_t *w, int64_t stride) {
    return type == MXFP4 ? half_e8m0(w, stride) : halves8(w, stride);
}
// What the products need of an activation block besides its codes.
typedef struct {
    float d, s;
    int32_t bias; // what is added to each weight code * sum of these
} act32;

enum { ACTS = 2048 }; // activation blocks summarised at a time: 24 KB of stack

INLINE void summarise32(int type, int bias, act32 *info, const uint8_t *act, int64_t blocks) {
    for (int64_t b = 0; b < blocks; b++, act += act_bytes(type)) {
        __m256i y = load256(act + act_codes(type));
        __m256i p = _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8((char)bias), y), _mm256_set1_epi16(1));
        info[b].d = load_f16(act);
        info[b].s = has_offset(type) ? load_f16(act + 2) : 0;
        info[b].bias = _mm_cvtsi128_si32(sum4(p, p, p, p));
    }
}

// ---- super-blocks of 256 -----------------------------------------------------------------------------------------
//
// Q4_K and Q5_K have a scale and a min for every 32 elements. All others have, or are given, a scale for every 16; Q2_K
// has mins too.

enum { ACT_K = 292 };

INLINE_ANY int is_k(int type) {
    return (type >= Q2_K && type <= Q6_K) || (type >= IQ2_XXS && type <= IQ1_M && type != IQ4_NL) || type == TQ2_0;
}
INLINE int is_k45(int type) { return type == Q4_K || type == Q5_K; }
INLINE int is_iq1(int type) { return type == IQ1_S || type == IQ1_M; }
INLINE int is_iq2(int type) { return type == IQ2_XXS || type == IQ2_XS || type == IQ2_S; }
INLINE int is_iq23(int type) { return is_iq2(type) || type == IQ3_XXS || type == IQ3_S; } // grids with signs

// What unsigned codes exceed the true ones by. IQ2 and IQ3 codes are unsigned only in tiles.
INLINE int bias_k(int type) {
    switch (type) {
    case Q3_K: return 4;
    case Q6_K: return 32;
    case TQ2_0: return 1;
    case IQ1_S: case IQ1_M: return 9;
    case IQ2_XXS: case IQ2_XS: case IQ2_S: return 43;
    case IQ3_XXS: return 62;
    case IQ3_S: return 15;
    default: return 0;
    }
}

// Two bits a code, plane j (0..3) of each byte.
// The eight words of an IQ2_XXS or IQ3_XXS block that hold 4 times 7 signs and a scale.
INLINE __m256i sign_words(int type, const uint8_t *w) {
    if (type == IQ3_XXS) return load256(w + 66);
    __m256 a = _mm256_castsi256_ps(load256(w + 2)), b = _mm256_castsi256_ps(load256(w + 34));
    return _mm256_permute4x64_epi64(_mm256_castps_si256(_mm256_shuffle_ps(a, b, 0xdd)), 0xd8);
}

// The 8 scales and 8 mins of two Q4_K or Q5_K blocks, as bytes, one block in each half.
INLINE __m256i scales_k45(const uint8_t *w0, const uint8_t *w1) {
    const int z = -128; // shuffles in a zero
#define TWICE(...) _mm256_broadcastsi128_si256(_mm_setr_epi8(__VA_ARGS__))
    const __m256i low6 = TWICE(4, 5, 6, 7, z, z, z, z, 8, 9, 10, 11, z, z, z, z);
    const __m256i low4 = TWICE(z, z, z, z, 12, 13, 14, 15, z, z, z, z, 12, 13, 14, 15);
    const __m256i top2 = TWICE(z, z, z, z, 4, 5, 6, 7, z, z, z, z, 8, 9, 10, 11);
    const __m256i down = _mm256_setr_epi32(0, 0, 0, 4, 0, 0, 0, 4);
#undef TWICE
    __m256i v = _mm256_inserti128_si256(_mm256_castsi128_si256(load128(w0)), load128(w1), 1);
    __m256i a = _mm256_and_si256(_mm256_shuffle_epi8(v, low6), _mm256_set1_epi8(63));
    __m256i b = _mm256_and_si256(_mm256_srlv_epi32(_mm256_shuffle_epi8(v, low4), down), _mm256_set1_epi8(15));
    __m256i c = _mm256_and_si256(_mm256_srli_epi32(_mm256_shuffle_epi8(v, top2), 2), _mm256_set1_epi8(48));
    return _mm256_or_si256(_mm256_or_si256(a, b), c);
}

// Types that have one scale for every 32 elements, 16 bits wide here.
INLINE int has_8_scales(int type) {
    return type == IQ4_XS || type == IQ2_XXS || type == IQ3_XXS || type == IQ3_S || type == IQ1_S || type == TQ2_0;
}

INLINE __m128i odd16(__m128i c) { return _mm_add_epi16(_mm_add_epi16(c, c), _mm_set1_epi16(1)); }

INLINE __m128i scales_8(int type, const uint8_t *w) {
    switch (type) {
    case TQ2_0: return _mm_set1_epi16(1);
    case IQ1_S: return odd16(_mm_and_si128(_mm_srli_epi16(load128(w + 34), 12), _mm_set1_epi16(7)));
    case IQ3_S: {
        __m128i v = _mm_cvtsi32_si128((int32_t)load_u32(w + 106));
        v = _mm_and_si128(_mm_unpacklo_epi8(v, _mm_srli_epi16(v, 4)), _mm_set1_epi8(15));
        return odd16(_mm_cvtepu8_epi16(v));
    }
    case IQ4_XS: { // multiplying moves the bits of each lane to its top
        __m128i low = _mm_set1_epi32((int32_t)load_u32(w + 4)), high = _mm_set1_epi16((short)load_u16(w + 2));
        low = _mm_unpacklo_epi8(low, low); // each byte twice in a lane
        low = _mm_shuffle_epi8(low, _mm_setr_epi8(0, -128, 0, -128, 2, -128, 2, -128, 4, -128, 4, -128, 6, -128, 6, -128));
        low = _mm_and_si128(_mm_srli_epi16(_mm_mullo_epi16(low, _mm_set1_epi32(16 | 1 << 16)), 4), _mm_set1_epi16(15));
        high = _mm_mullo_epi16(high, _mm_setr_epi16(1 << 14, 1 << 12, 1 << 10, 1 << 8, 1 << 6, 1 << 4, 1 << 2, 1));
        high = _mm_slli_epi16(_mm_srli_epi16(high, 14), 4);
        return _mm_sub_epi16(_mm_or_si128(low, high), _mm_set1_epi16(32));
    }
    default: { // IQ2_XXS, IQ3_XXS
        __m256i c = _mm256_srli_epi32(sign_words(type, w), 28);
        return odd16(_mm_packs_epi32(_mm256_castsi256_si128(c), _mm256_extracti128_si256(c, 1)));
    }
    }
}

INLINE __m256i scales_16(int type, const uint8_t *w) {
    switch (type) {
    case Q2_K: return _mm256_cvtepu8_epi16(_mm_and_si128(load128(w), _mm_set1_epi8(15)));
    case Q3_K: { // the load starts early so as to end inside the block
        __m128i s = load128(w + 94);
        __m128i low = _mm_shuffle_epi8(s, _mm_setr_epi8(2, 3, 4, 5, 6, 7, 8, 9, 2, 3, 4, 5, 6, 7, 8, 9));
        __m128i high = _mm_shuffle_epi8(s, _mm_setr_epi8(10, 11, 12, 13, 10, 11, 12, 13, 10, 11, 12, 13, 10, 11, 12, 13));
        low = _mm_and_si128(_mm_srlv_epi32(low, _mm_setr_epi32(0, 0, 4, 4)), _mm_set1_epi8(15));
        high = _mm_and_si128(_mm_srlv_epi32(high, _mm_setr_epi32(0, 2, 4, 6)), _mm_set1_epi8(3));
        return _mm256_cvtepi8_epi16(_mm_sub_epi8(_mm_or_si128(low, _mm_slli_epi16(high, 4)), _mm_set1_epi8(32)));
    }
    case Q6_K: return _mm256_cvtepi8_epi16(load128(w + 192));
    case IQ1_M: {
        __m256i s = _mm256_set1_epi64x((int64_t)load_u64(w + 48)); // 16-bit lane i of each quarter from word i/4
        s = _mm256_shuffle_epi8(s, _mm256_setr_epi64x(0x0100010001000100, 0x0302030203020302, 0x0504050405040504, 0x0706070607060706));
        s = _mm256_mullo_epi16(s, _mm256_set1_epi64x(1 << 13 | 1 << 10 << 16 | (int64_t)1 << 7 << 32 | (int64_t)1 << 4 << 48));
        s = _mm256_srli_epi16(s, 13);
        return _mm256_add_epi16(_mm256_add_epi16(s, s), _mm256_set1_epi16(1));
    }
    default: { // IQ2_XS, IQ2_S
        __m128i v = _mm_cvtsi64_si128((int64_t)load_u64(w + (type == IQ2_XS ? 66 : 74)));
        v = _mm_and_si128(_mm_unpacklo_epi8(v, _mm_srli_epi16(v, 4)), _mm_set1_epi8(15));
        __m256i c = _mm256_cvtepu8_epi16(v);
        return _mm256_add_epi16(_mm256_add_epi16(c, c), _mm256_set1_epi16(1));
    }
    }
}

// A scale for every 16 elements, in order.
INLINE __m256i scales_k16(int type, const uint8_t *w) {
    if (!has_8_scales(type)) return scales_16(type, w);
    __m128i s = scales_8(type, w);
    return _mm256_set_m128i(_mm_unpackhi_epi16(s, s), _mm_unpacklo_epi16(s, s));
}

// The scales of four blocks, stride apart.
INLINE __m128 d4(int type, const uint8_t *w, int64_t stride) {
    const float eighth = is_iq1(type) || is_iq2(type) ? 0.125f : type == IQ3_XXS ? 0.25f : 1;
    __m128 d;
    if (type == IQ1_M) { // the top nibbles of four words
        uint64_t all = 0;
        UNROLL for (int r = 0; r < 4; r++) {
            uint64_t s = load_u64(w + r * stride + 48);
            all |= ((s >> 12 & 0xf) | (s >> 24 & 0xf0) | (s >> 36 & 0xf00) | (s >> 48 & 0xf000)) << (16 * r);
        }
        d = _mm_cvtph_ps(_mm_cvtsi64_si128((int64_t)all));
    } else {
        d = halves4(w + (type == Q2_K ? 80 : type == Q3_K ? 108 : type == Q6_K ? 208 : type == TQ2_0 ? 64 : 0), stride);
    }
    return eighth == 1 ? d : _mm_mul_ps(d, _mm_set1_ps(eighth));
}

// Sums of 32 activation codes, as 16-bit numbers.
INLINE __m128i bsums32(const uint8_t *act) { return _mm_hadd_epi16(load128(act + 260), load128(act + 276)); }

INLINE __m256i mins_q2_k(const uint8_t *w) {
    return _mm256_cvtepu8_epi16(_mm_and_si128(_mm_srli_epi16(load128(w), 4), _mm_set1_epi8(15)));
}

// ---- quantised products ------------------------------------------------------------------------------------------

// Where a group of count rows starts that should start at r: earlier when fewer are left, so that some rows are
// computed twice, to the same bits.
INLINE int64_t group_start(int64_t r, int64_t count, int64_t rows) { return rows - r < count ? rows - count : r; }

enum { MAX_TOKENS = 64 };

typedef void matvec_func(const uint8_t *w, int64_t stride, int64_t rows, int64_t blocks, const uint8_t *act, float *out);
typedef void matmat_func(const uint8_t *w, int64_t stride, int64_t rows, int64_t blocks, const uint8_t *act, int64_t act_stride,
                         int64_t tokens, float *out, int64_t out_stride);

// How the products of one type are computed. With fewer rows or tokens than matmat is worth, or rows too long to summarise,
// every token is a product of its own.
typedef struct {
    matvec_func *matvec;
    matmat_func *matmat;
    int64_t rows, tokens; // least for matmat; rows at least 8
} product;

static void quantised(int type, product p, const uint8_t *w, int64_t row_bytes, int64_t rows, const uint8_t *act,
                      int64_t act_stride, int64_t tokens, float *out, int64_t out_stride) {
    int64_t blocks = row_bytes / block_bytes(type), most = is_k(type) || blocks == 0 ? MAX_TOKENS : ACTS / blocks;
    if (most > MAX_TOKENS) most = MAX_TOKENS;
    for (int64_t u = 0, now; u < tokens; u += now, act += now * act_stride, out += now * out_stride) {
        now = tokens - u < most ? tokens - u : most;
        if (rows < 8) { // too few for a group: each row as a group of itself
            now = 1;
            for (int64_t r = 0; r < rows; r++) {
                float same[8];
                p.matvec(w + r * row_bytes, 0, 8, blocks, act, same);
                out[r] = same[0];
            }
        } else if (rows < p.rows || now < p.tokens) {
            now = 1;
            p.matvec(w, row_bytes, rows, blocks, act, out);
        } else {
            p.matmat(w, row_bytes, rows, blocks, act, act_stride, now, out, out_stride);
        }
    }
}

INLINE int float_bytes(int type) { return type == F32 ? 4 : 2; }

INLINE float sum8(__m256 v) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

#endif
