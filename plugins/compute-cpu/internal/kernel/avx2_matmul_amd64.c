//go:build cgo

// Products of quantised and float weight rows with activation rows, AVX2 + FMA + F16C.
//
// Integer sums inside a block are exact, so lanes may hold anything: the elements of a block or the rows of a group. The
// float part is the same for every shape: one accumulator per output, block after block, multiply and add unfused,
// as written in format.go. Change one and all must change.

#include "avx2_amd64.h"
#include "avx2_formats_amd64.h"

#define TARGET TARGET_AVX2

enum { NEAR = 9 << 10 }; // see stretch: two groups fit the first cache with room to spare

// Pins a running sum: without it gcc regroups the additions of an unrolled loop and spills all their terms.
#define KEEP(v) __asm__("" : "+x"(v))

// The grids of grids.go, an entry of eight or four bytes each.
static uint64_t grid_iq2_xxs[256], grid_iq2_xs[512], grid_iq2_s[1024], grid_iq1[2048];
static uint32_t grid_iq3_xxs[256], grid_iq3_s[512];

void kernel_avx2_set_grids(const int8_t *iq2_xxs, const int8_t *iq2_xs, const int8_t *iq2_s, const int8_t *iq3_xxs,
                           const int8_t *iq3_s, const int8_t *iq1) {
    memcpy(grid_iq2_xxs, iq2_xxs, sizeof grid_iq2_xxs);
    memcpy(grid_iq2_xs, iq2_xs, sizeof grid_iq2_xs);
    memcpy(grid_iq2_s, iq2_s, sizeof grid_iq2_s);
    memcpy(grid_iq3_xxs, iq3_xxs, sizeof grid_iq3_xxs);
    memcpy(grid_iq3_s, iq3_s, sizeof grid_iq3_s);
    memcpy(grid_iq1, iq1, sizeof grid_iq1);
}

// The same for lanes so small that eight of them together fit 16 bits: packs and multiply-adds are cheaper than hadd.
INLINE __m256i halfsum4_small(__m256i a, __m256i b, __m256i c, __m256i d) {
    const __m256i one = _mm256_set1_epi16(1);
    __m256i ab = _mm256_madd_epi16(_mm256_packs_epi32(a, b), one);
    __m256i cd = _mm256_madd_epi16(_mm256_packs_epi32(c, d), one);
    return _mm256_madd_epi16(_mm256_packs_epi32(ab, cd), one);
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

// Eight rows, one token, blocks of 32.
INLINE __m256 vec_blocks32(int type, const uint8_t *w, int64_t stride, int64_t blocks, const uint8_t *act) {
    const __m256i one = _mm256_set1_epi16(1);
    __m256 acc = _mm256_setzero_ps();
    stretch next = stretch_after(w, 8 * stride, NEAR);
    for (; blocks > 0; blocks--, w += block_bytes(type), act += act_bytes(type)) {
        prefetch(&next, 8 * block_bytes(type));
        __m256i y = load256(act + act_codes(type)), s[2];
        __m256i bias = _mm256_maddubs_epi16(_mm256_set1_epi8((char)bias32(type)), y);
        UNROLL for (int h = 0; h < 2; h++) {
            __m256i p[4];
            UNROLL for (int r = 0; r < 4; r++) {
                __m256i q = codes32(type, w + (4 * h + r) * stride);
                if (has_sign(type)) { // unsigned by signed: move the sign; 2*128*127 fits
                    p[r] = _mm256_maddubs_epi16(_mm256_abs_epi8(q), _mm256_sign_epi8(y, q));
                } else {
                    p[r] = _mm256_maddubs_epi16(q, y);
                    if (bias32(type)) p[r] = _mm256_sub_epi16(p[r], bias);
                }
                p[r] = _mm256_madd_epi16(p[r], one);
            }
            s[h] = has_sign(type) ? halfsum4(p[0], p[1], p[2], p[3]) : halfsum4_small(p[0], p[1], p[2], p[3]);
        }
        __m256i sum = _mm256_add_epi32(_mm256_permute2x128_si256(s[0], s[1], 0x20), _mm256_permute2x128_si256(s[0], s[1], 0x31));
        __m256 dy = _mm256_set1_ps(load_f16(act));
        __m256 v = _mm256_mul_ps(_mm256_mul_ps(scales8(type, w, stride), dy), _mm256_cvtepi32_ps(sum));
        if (has_offset(type)) {
            v = _mm256_add_ps(v, _mm256_mul_ps(halves8(w + 2, stride), _mm256_set1_ps(load_f16(act + 2))));
        }
        acc = _mm256_add_ps(acc, v);
    }
    return acc;
}

// The UE4M3 scales of eight NVFP4 blocks, stride apart: sub-block s's in byte s. NaN is 0 here.
INLINE __m256i scales_nvfp4(const uint8_t *w, int64_t stride) {
    uint32_t v[8];
    UNROLL for (int r = 0; r < 8; r++) v[r] = load_u32(w + r * stride);
    __m256i nan = _mm256_set1_epi8(0x7f), sc = _mm256_and_si256(load256(v), nan);
    return _mm256_andnot_si256(_mm256_cmpeq_epi8(sc, nan), sc);
}

// Eight rows, one token, NVFP4: blocks of 64 with a scale for every 16, which meet two blocks of activations.
INLINE __m256 vec_nvfp4(const uint8_t *w, int64_t stride, int64_t blocks, const uint8_t *act) {
    const __m256i one = _mm256_set1_epi16(1), odd = _mm256_setr_epi64x(0, 4, 0, 4);
    __m256 acc = _mm256_setzero_ps();
    stretch next = stretch_after(w, 8 * stride, NEAR);
    for (; blocks > 0; blocks--, w += block_bytes(NVFP4)) {
        prefetch(&next, 8 * block_bytes(NVFP4));
        __m256i scales = scales_nvfp4(w, stride);
        for (int h = 0; h < 2; h++, act += 34) {
            __m256i y = load256(act + 2), s[2], bias = _mm256_maddubs_epi16(_mm256_set1_epi8(12), y);
            __m256 dy = _mm256_set1_ps(load_f16(act));
            UNROLL for (int i = 0; i < 2; i++) {
                __m256i p[4];
                UNROLL for (int r = 0; r < 4; r++) { // eight bytes hold 16 elements: low nibbles, then high ones
                    __m256i q = _mm256_castsi128_si256(load128(w + (4 * i + r) * stride + 4 + 16 * h));
                    q = _mm256_srlv_epi64(_mm256_permute4x64_epi64(q, 0x50), odd);
                    p[r] = _mm256_maddubs_epi16(fp4(_mm256_and_si256(q, _mm256_set1_epi8(15))), y);
                    p[r] = _mm256_madd_epi16(_mm256_sub_epi16(p[r], bias), one);
                }
                s[i] = halfsum4_small(p[0], p[1], p[2], p[3]);
            }
            UNROLL for (int k = 0; k < 2; k++, scales = _mm256_srli_epi32(scales, 8)) {
                __m256i sum = k == 0 ? _mm256_permute2x128_si256(s[0], s[1], 0x20) : _mm256_permute2x128_si256(s[0], s[1], 0x31);
                __m256i sc = _mm256_slli_epi32(_mm256_and_si256(scales, _mm256_set1_epi32(0xff)), 20);
                __m256 d = _mm256_mul_ps(_mm256_castsi256_ps(sc), _mm256_set1_ps(0x1p119f)); // 2^(e-127) to 2^(e-8)
                acc = _mm256_add_ps(acc, _mm256_mul_ps(_mm256_mul_ps(d, dy), _mm256_cvtepi32_ps(sum)));
            }
        }
    }
    return acc;
}

INLINE __m256 vec32(int type, const uint8_t *w, int64_t stride, int64_t blocks, const uint8_t *act) {
    return type == NVFP4 ? vec_nvfp4(w, stride, blocks, act) : vec_blocks32(type, w, stride, blocks, act);
}

// Eight rows of up to eight blocks, for many tokens: vector q[8*b+g] holds, row by row, codes 4g..4g+3 of block b.
typedef struct {
    __m256i q[64];
    __m256 d[8], m[8];
} tile32;

INLINE void unpack32(int type, tile32 *t, const uint8_t *w, int64_t stride, stretch *next, int blocks) {
    for (int b = 0; b < blocks; b++, w += block_bytes(type)) {
        __m256i v[8];
        prefetch(next, 8 * block_bytes(type));
        UNROLL for (int r = 0; r < 8; r++) v[r] = codes32(type, w + r * stride);
        transpose8(v);
        UNROLL for (int g = 0; g < 8; g++) t->q[8 * b + g] = v[g];
        t->d[b] = scales8(type, w, stride);
        if (has_offset(type)) t->m[b] = halves8(w + 2, stride);
    }
}

// Adds the products of a tile with T tokens to acc.
INLINE void mul32(int type, const tile32 *t, int blocks, const uint8_t *act, int64_t act_stride, const act32 *info,
                  int64_t info_stride, float *acc, const int T) {
    const __m256i one = _mm256_set1_epi16(1);
    const int group = has_sign(type) ? 1 : type == Q4_0 || type == Q4_1 ? 8 : 4; // sums of codes that fit 16 bits
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
                __m256i q = t->q[8 * b + g + i], mag = has_sign(type) ? _mm256_abs_epi8(q) : q;
                UNROLL for (int u = 0; u < T; u++) {
                    __m256i v = broadcast4(y + u * act_stride + 4 * (g + i));
                    if (has_sign(type)) v = _mm256_sign_epi8(v, q);
                    v = _mm256_maddubs_epi16(mag, v);
                    p[u] = i == 0 ? v : _mm256_add_epi16(p[u], v);
                    KEEP(p[u]);
                }
            }
            UNROLL for (int u = 0; u < T; u++) {
                sum[u] = _mm256_add_epi32(sum[u], _mm256_madd_epi16(p[u], one));
                KEEP(sum[u]);
            }
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

INLINE __m256i two_bits(const uint8_t *qs, int j) {
    return _mm256_and_si256(_mm256_srli_epi16(load256(qs), 2 * j), _mm256_set1_epi8(3));
}

// Loads of one stored vector, part by part, are cheaper than the shuffles gcc would make of them.
#define STORED(p) __asm__("" : "+m"(*(p)))

// What the 32-element sub-blocks of one codebook block share.
typedef struct {
    uint16_t index[64]; // of grid entries, where they are not bytes of the block
    uint8_t signs[32];
} codebook;

INLINE int is_wide(int type) { return type == IQ2_XS || type == IQ2_S || type == IQ3_S || is_iq1(type); }

// 16 bytes, and above each the bits of high (16 lanes, bits 8 and up).
INLINE __m256i indices16(const uint8_t *low, __m256i high) {
    return _mm256_or_si256(_mm256_cvtepu8_epi16(load128(low)), high);
}

// Shifts lane i left by shift[i%4].
INLINE __m256i shift4(__m256i v, int s0, int s1, int s2, int s3) {
    return _mm256_mullo_epi16(v, _mm256_set1_epi64x(1 << s0 | 1 << s1 << 16 | (int64_t)1 << s2 << 32 | (int64_t)1 << s3 << 48));
}

// Grid indices 16*i .. 16*i+15.
INLINE __m256i indices(int type, const uint8_t *w, int i) {
    const __m256i each4 = _mm256_setr_epi64x(0x8000800080008000, 0x8001800180018001, 0x8002800280028002, 0x8003800380038003);
    const __m256i each4x16 = _mm256_setr_epi64x(0x0100010001000100, 0x0302030203020302, 0x0504050405040504, 0x0706070607060706);
    const __m256i bits11 = _mm256_set1_epi16(0x700);
    __m256i high;
    switch (type) {
    case IQ2_XS: return _mm256_and_si256(load256(w + 2 + 32 * i), _mm256_set1_epi16(511));
    case IQ2_S: // two bits each
        high = shift4(_mm256_shuffle_epi8(_mm256_set1_epi32((int32_t)load_u32(w + 66 + 4 * i)), each4), 8, 6, 4, 2);
        return indices16(w + 2 + 16 * i, _mm256_and_si256(high, _mm256_set1_epi16(0x300)));
    case IQ3_S: { // one bit each
        const __m256i bit = _mm256_setr_epi16(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, -32768);
        high = _mm256_and_si256(_mm256_set1_epi16((short)load_u16(w + 66 + 2 * i)), bit);
        return indices16(w + 2 + 16 * i, _mm256_and_si256(_mm256_cmpeq_epi16(high, bit), _mm256_set1_epi16(256)));
    }
    case IQ1_S: // three bits each
        high = shift4(_mm256_shuffle_epi8(_mm256_set1_epi64x((int64_t)load_u64(w + 34 + 8 * i)), each4x16), 13, 10, 7, 4);
        return indices16(w + 2 + 16 * i, _mm256_and_si256(_mm256_srli_epi16(high, 5), bits11));
    default: // IQ1_M: the same, in nibbles
        high = _mm256_cvtepu8_epi16(load128(w + 32 + 8 * i));
        high = _mm256_permute4x64_epi64(high, 0x50);
        high = shift4(_mm256_unpacklo_epi16(high, high), 8, 4, 8, 4);
        return indices16(w + 16 * i, _mm256_and_si256(high, bits11));
    }
}

// Entries of eight bytes.
INLINE __m256i grid8(const uint64_t *grid, unsigned a, unsigned b, unsigned c, unsigned d) {
    return _mm256_setr_epi64x((int64_t)grid[a], (int64_t)grid[b], (int64_t)grid[c], (int64_t)grid[d]);
}

// Entries of four bytes, in sub-block g; index is of bytes or 16-bit numbers.
#define GRID4(grid, i)                                                                                                  \
    _mm256_setr_epi32((int32_t)grid[(i)[0]], (int32_t)grid[(i)[1]], (int32_t)grid[(i)[2]], (int32_t)grid[(i)[3]],       \
                      (int32_t)grid[(i)[4]], (int32_t)grid[(i)[5]], (int32_t)grid[(i)[6]], (int32_t)grid[(i)[7]])
#define GRID8(grid, i) grid8(grid, (i)[0], (i)[1], (i)[2], (i)[3])

// Magnitudes of sub-block g of an IQ2 or IQ3 block, codes of an IQ1 block.
INLINE __m256i grid_codes(int type, const uint8_t *w, const codebook *c, int g) {
    switch (type) {
    case IQ2_XXS: return GRID8(grid_iq2_xxs, w + 2 + 8 * g);
    case IQ2_XS: return GRID8(grid_iq2_xs, c->index + 4 * g);
    case IQ2_S: return GRID8(grid_iq2_s, c->index + 4 * g);
    case IQ3_XXS: return GRID4(grid_iq3_xxs, w + 2 + 8 * g);
    case IQ3_S: return GRID4(grid_iq3_s, c->index + 8 * g);
    case IQ1_S: return _mm256_add_epi8(GRID8(grid_iq1, c->index + 4 * g), _mm256_set1_epi8(load_u16(w + 34 + 2 * g) >> 15 ? 8 : 10));
    default: { // IQ1_M: bits 3, 7, 11, 15 say which eights are shifted down
        __m256i down = _mm256_srlv_epi64(_mm256_set1_epi64x(load_u16(w + 32 + 2 * g)), _mm256_setr_epi64x(2, 6, 10, 14));
        down = _mm256_shuffle_epi8(_mm256_and_si256(down, _mm256_set1_epi64x(2)), _mm256_setr_epi64x(0, 0x0808080808080808, 0, 0x0808080808080808));
        return _mm256_add_epi8(GRID8(grid_iq1, c->index + 4 * g), _mm256_sub_epi8(_mm256_set1_epi8(10), down));
    }
    }
}

// Bit 7 set where bits 0 to 6 of a byte are odd in number.
INLINE __m256i with_parity(__m256i t) {
    const char x = -128;
    const __m256i odd = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, x, x, 0, x, 0, 0, x, x, 0, 0, x, 0, x, x, 0));
    __m256i folded = _mm256_and_si256(_mm256_xor_si256(t, _mm256_srli_epi16(t, 4)), _mm256_set1_epi8(15));
    return _mm256_or_si256(t, _mm256_shuffle_epi8(odd, folded));
}

// The sign bits of an IQ2 or IQ3 block that does not have them as such.
INLINE __m256i sign_bits(int type, const uint8_t *w) {
    __m256i t, u;
    if (type == IQ2_XS) {
        t = _mm256_packus_epi16(_mm256_srli_epi16(load256(w + 2), 9), _mm256_srli_epi16(load256(w + 34), 9));
        return with_parity(_mm256_permute4x64_epi64(t, 0xd8));
    }
    u = sign_words(type, w);
    t = _mm256_and_si256(u, _mm256_set1_epi32(0x7f));
    t = _mm256_or_si256(t, _mm256_and_si256(_mm256_slli_epi32(u, 1), _mm256_set1_epi32(0x7f00)));
    t = _mm256_or_si256(t, _mm256_and_si256(_mm256_slli_epi32(u, 2), _mm256_set1_epi32(0x7f0000)));
    t = _mm256_or_si256(t, _mm256_and_si256(_mm256_slli_epi32(u, 3), _mm256_set1_epi32(0x7f000000)));
    return with_parity(t);
}

INLINE int has_sign_bytes(int type) { return type == IQ2_S || type == IQ3_S; }

INLINE void open_codebook(int type, const uint8_t *w, codebook *c) {
    if (is_wide(type)) {
        const int n = type == IQ3_S ? 4 : 2;
        for (int i = 0; i < n; i++) {
            _mm256_storeu_si256((__m256i *)(c->index + 16 * i), indices(type, w, i));
        }
        STORED(&c->index);
    }
    if (is_iq23(type) && !has_sign_bytes(type)) {
        _mm256_storeu_si256((__m256i *)c->signs, sign_bits(type, w));
        STORED(&c->signs);
    }
}

// 1 or -1 for each element of sub-block g of an IQ2 or IQ3 block.
INLINE __m256i plus_minus(int type, const uint8_t *w, const codebook *c, int g) {
    const uint8_t *signs = type == IQ2_S ? w + 34 : type == IQ3_S ? w + 74 : c->signs;
    return _mm256_or_si256(spread_bits(load_u32(signs + 4 * g)), _mm256_set1_epi8(1));
}

// Codes of sub-block b (32 elements): unsigned, bias_k more than the true ones, or as they are if the type has_sign; of
// IQ2 and IQ3 blocks the magnitudes.
INLINE __m256i codes_k(int type, const uint8_t *w, const codebook *c, int b) {
    const __m256i low4 = _mm256_set1_epi8(15);
    int h = b / 4, j = b % 4;
    if (is_iq1(type) || is_iq23(type)) return grid_codes(type, w, c, b);
    switch (type) {
    case TQ2_0: return two_bits(w + 32 * h, j);
    case Q2_K: return two_bits(w + 16 + 32 * h, j);
    case Q3_K: {
        __m256i mask = load256(w);
        mask = b < 2 ? _mm256_slli_epi16(mask, 2 - b) : _mm256_srli_epi16(mask, b < 2 ? 0 : b - 2);
        return _mm256_or_si256(two_bits(w + 32 + 32 * h, j), _mm256_and_si256(mask, _mm256_set1_epi8(4)));
    }
    case IQ4_XS: return nonlinear4(nibbles(w + 8 + 16 * b));
    case Q6_K: {
        __m256i ql = load256(w + 64 * h + 32 * (j % 2)), qh = load256(w + 128 + 32 * h);
        __m256i lo = _mm256_and_si256(j < 2 ? ql : _mm256_srli_epi16(ql, 4), low4);
        __m256i hi = j == 0 ? _mm256_slli_epi16(qh, 4) : j == 1 ? _mm256_slli_epi16(qh, 2) : j == 2 ? qh : _mm256_srli_epi16(qh, 2);
        return _mm256_or_si256(lo, _mm256_and_si256(hi, _mm256_set1_epi8(48)));
    }
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

// Adds Σ scale * code * activation of one super-block to the lanes of sum. scales holds in each half those that half
// needs: for Q4_K and Q5_K bytes, sub-block b's at byte b; for others 16-bit numbers, of even sixteens in the low half,
// of odd ones in the high half.
INLINE __m256i dot_k(int type, const uint8_t *w, const codebook *c, const uint8_t *act, __m256i scales, __m256i sum) {
    const uint8_t *y = act + 4;
    UNROLL for (int b = 0; b < 8; b++) {
        // A scale in all 16-bit lanes, zero-extended if a byte.
        int pick = is_k45(type) ? b | 0x8000 : 2 * b | (2 * b + 1) << 8;
        __m256i scale = _mm256_shuffle_epi8(scales, _mm256_set1_epi16((short)pick));
        __m256i q = codes_k(type, w, c, b), v = load256(y + 32 * b);
        if (is_iq23(type)) v = _mm256_sign_epi8(v, plus_minus(type, w, c, b));
        if (has_sign(type)) v = _mm256_sign_epi8(v, q), q = _mm256_abs_epi8(q);
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(q, v), scale));
        KEEP(sum);
    }
    return sum;
}

// Four rows, one token, Q4_K or Q5_K.
INLINE __m128 vec_k45(int type, const uint8_t *w, int64_t stride, int64_t blocks, const uint8_t *act) {
    __m128 acc = _mm_setzero_ps();
    stretch next = stretch_after(w, 4 * stride, NEAR);
    for (; blocks > 0; blocks--, w += block_bytes(type), act += ACT_K) {
        __m256i s[4], m[2], bsums = _mm256_broadcastsi128_si256(bsums32(act));
        UNROLL for (int r = 0; r < 4; r += 2) {
            const uint8_t *w0 = w + r * stride, *w1 = w + (r + 1) * stride;
            prefetch(&next, 2 * block_bytes(type));
            __m256i scales = scales_k45(w0, w1), zero = _mm256_setzero_si256();
            m[r / 2] = _mm256_madd_epi16(_mm256_unpackhi_epi8(scales, zero), bsums);
            s[r] = dot_k(type, w0, 0, act, _mm256_permute2x128_si256(scales, scales, 0x00), zero);
            s[r + 1] = dot_k(type, w1, 0, act, _mm256_permute2x128_si256(scales, scales, 0x11), zero);
        }
        __m128i sum = sum4(s[0], s[1], s[2], s[3]);
        __m256i even_odd = _mm256_hadd_epi32(m[0], m[1]); // rows 0 and 2 | rows 1 and 3
        even_odd = _mm256_hadd_epi32(even_odd, even_odd);
        __m128i mins = _mm_unpacklo_epi32(_mm256_castsi256_si128(even_odd), _mm256_extracti128_si256(even_odd, 1));
        __m128 v = _mm_mul_ps(halves4(w, stride), _mm_cvtepi32_ps(sum));
        v = _mm_sub_ps(v, _mm_mul_ps(halves4(w + 2, stride), _mm_cvtepi32_ps(mins)));
        acc = _mm_add_ps(acc, _mm_mul_ps(_mm_set1_ps(load_f32(act)), v));
    }
    return acc;
}

// Four rows, one token, a scale for every 16.
INLINE __m128 vec_k16(int type, const uint8_t *w, int64_t stride, int64_t blocks, const uint8_t *act) {
    const __m256i pairs = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
    __m128 acc = _mm_setzero_ps();
    stretch next = stretch_after(w, 4 * stride, NEAR);
    for (; blocks > 0; blocks--, w += block_bytes(type), act += ACT_K) {
        __m256i s[4], m[4], bsums = load256(act + 260);
        codebook books[4]; // all before the first use: what was stored takes a while to load
        UNROLL for (int r = 0; r < 4; r++) open_codebook(type, w + r * stride, &books[r]);
        UNROLL for (int r = 0; r < 4; r++) {
            const uint8_t *wr = w + r * stride;
            prefetch(&next, block_bytes(type));
            __m256i start = _mm256_setzero_si256(), scales;
            if (has_8_scales(type)) {
                scales = _mm256_broadcastsi128_si256(scales_8(type, wr));
            } else {
                scales = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(scales_16(type, wr), pairs), 0xd8);
            }
            if (bias_k(type) && !is_iq23(type)) {
                __m256i biases = _mm256_mullo_epi16(scales_k16(type, wr), _mm256_set1_epi16((short)bias_k(type)));
                start = _mm256_sub_epi32(start, _mm256_madd_epi16(biases, bsums));
            }
            if (type == Q2_K) m[r] = _mm256_madd_epi16(mins_q2_k(wr), bsums);
            s[r] = dot_k(type, wr, &books[r], act, scales, start);
        }
        __m128 dy = _mm_set1_ps(load_f32(act)), d = d4(type, w, stride), v = _mm_cvtepi32_ps(sum4(s[0], s[1], s[2], s[3]));
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

// Eight rows of one super-block, for many tokens: q as in tile32; sc holds each scale twice per row, to multiply the
// two 16-bit sums of that row; pairs holds neighbouring mins, or scales times bias_k, to multiply pairs of bsums.
typedef struct {
    __m256i q[64], sc[16], pairs[8];
    __m256 d, dmin;
} tile_k;

INLINE void unpack_k(int type, tile_k *t, const uint8_t *w, int64_t stride, stretch *next) {
    // Each 32-bit lane holds two neighbouring scales of one row; sc wants twice the first and twice the second.
    const __m256i even = _mm256_setr_epi64x(0x0504050401000100, 0x0d0c0d0c09080908, 0x0504050401000100, 0x0d0c0d0c09080908);
    const __m256i odd = _mm256_add_epi8(even, _mm256_set1_epi8(2));
    const int scales = is_k45(type) ? 4 : 8; // lanes of scales; the mins of Q4_K and Q5_K follow
    __m256i v[8];
    if (is_k45(type)) {
        UNROLL for (int r = 0; r < 8; r += 2) {
            __m256i two = scales_k45(w + r * stride, w + (r + 1) * stride);
            v[r] = _mm256_cvtepu8_epi16(_mm256_castsi256_si128(two));
            v[r + 1] = _mm256_cvtepu8_epi16(_mm256_extracti128_si256(two, 1));
        }
        t->d = halves8(w, stride);
        t->dmin = halves8(w + 2, stride);
    } else {
        UNROLL for (int r = 0; r < 8; r++) v[r] = scales_k16(type, w + r * stride);
        t->d = _mm256_set_m128(d4(type, w + 4 * stride, stride), d4(type, w, stride));
    }
    transpose8(v);
    for (int i = 0; i < scales; i++) {
        t->sc[2 * i] = _mm256_shuffle_epi8(v[i], even);
        t->sc[2 * i + 1] = _mm256_shuffle_epi8(v[i], odd);
    }
    if (is_k45(type)) {
        for (int i = 0; i < 4; i++) t->pairs[i] = v[i + 4];
    } else if (type == Q2_K) {
        UNROLL for (int r = 0; r < 8; r++) v[r] = mins_q2_k(w + r * stride);
        transpose8(v);
        for (int i = 0; i < 8; i++) t->pairs[i] = v[i];
        t->dmin = halves8(w + 82, stride);
    } else if (bias_k(type)) {
        for (int i = 0; i < 8; i++) t->pairs[i] = _mm256_mullo_epi16(v[i], _mm256_set1_epi16((short)bias_k(type)));
    }
    codebook books[8];
    UNROLL for (int r = 0; r < 8; r++) open_codebook(type, w + r * stride, &books[r]);
    UNROLL for (int b = 0; b < 8; b++) {
        prefetch(next, block_bytes(type));
        UNROLL for (int r = 0; r < 8; r++) {
            const uint8_t *wr = w + r * stride;
            v[r] = codes_k(type, wr, &books[r], b);
            if (is_iq23(type)) {
                v[r] = _mm256_add_epi8(_mm256_sign_epi8(v[r], plus_minus(type, wr, &books[r], b)), _mm256_set1_epi8((char)bias_k(type)));
            }
        }
        transpose8(v);
        UNROLL for (int g = 0; g < 8; g++) t->q[8 * b + g] = v[g];
    }
}

// How many products of two codes and activations fit 16 bits together, at most as many as share a scale.
INLINE int group_k(int type) {
    switch (type) {
    case Q4_K: return 8;
    case Q6_K: return 2;
    case IQ4_XS: case IQ2_XXS: case IQ2_XS: case IQ2_S: case IQ3_XXS: return 1;
    default: return 4;
    }
}

INLINE void mul_k(int type, const tile_k *t, const uint8_t *act, int64_t act_stride, float *acc, const int T) {
    const int group = group_k(type);
    __m256i sum[4];
    UNROLL for (int u = 0; u < T; u++) sum[u] = _mm256_setzero_si256();
    for (int b = 0; b < 8; b++) {
        const uint8_t *y = act + 4 + 32 * b;
        UNROLL for (int g = 0; g < 8; g += group) {
            __m256i p[4];
            UNROLL for (int i = 0; i < group; i++) {
                __m256i q = t->q[8 * b + g + i], mag = has_sign(type) ? _mm256_abs_epi8(q) : q;
                UNROLL for (int u = 0; u < T; u++) {
                    __m256i v = broadcast4(y + u * act_stride + 4 * (g + i));
                    if (has_sign(type)) v = _mm256_sign_epi8(v, q);
                    v = _mm256_maddubs_epi16(mag, v);
                    p[u] = i == 0 ? v : _mm256_add_epi16(p[u], v);
                    KEEP(p[u]);
                }
            }
            __m256i scale = t->sc[is_k45(type) ? b : 2 * b + g / 4];
            UNROLL for (int u = 0; u < T; u++) {
                sum[u] = _mm256_add_epi32(sum[u], _mm256_madd_epi16(p[u], scale));
                KEEP(sum[u]);
            }
        }
    }
    UNROLL for (int u = 0; u < T; u++) {
        const uint8_t *a = act + u * act_stride;
        __m256 dy = _mm256_set1_ps(load_f32(a)), v;
        __m256i mins = _mm256_setzero_si256(); // or biases
        if (is_k45(type)) {
            __m256i bs = _mm256_broadcastsi128_si256(bsums32(a));
            mins = _mm256_madd_epi16(t->pairs[0], _mm256_shuffle_epi32(bs, 0x00));
            mins = _mm256_add_epi32(mins, _mm256_madd_epi16(t->pairs[1], _mm256_shuffle_epi32(bs, 0x55)));
            mins = _mm256_add_epi32(mins, _mm256_madd_epi16(t->pairs[2], _mm256_shuffle_epi32(bs, 0xaa)));
            mins = _mm256_add_epi32(mins, _mm256_madd_epi16(t->pairs[3], _mm256_shuffle_epi32(bs, 0xff)));
        } else if (type == Q2_K || bias_k(type)) {
            UNROLL for (int i = 0; i < 8; i++) {
                mins = _mm256_add_epi32(mins, _mm256_madd_epi16(t->pairs[i], broadcast4(a + 260 + 4 * i)));
            }
        }
        if (is_k45(type) || type == Q2_K) {
            v = _mm256_sub_ps(_mm256_mul_ps(t->d, _mm256_cvtepi32_ps(sum[u])), _mm256_mul_ps(t->dmin, _mm256_cvtepi32_ps(mins)));
            v = _mm256_mul_ps(dy, v);
        } else {
            v = _mm256_mul_ps(_mm256_mul_ps(dy, t->d), _mm256_cvtepi32_ps(_mm256_sub_epi32(sum[u], mins)));
        }
        _mm256_store_ps(acc + 8 * u, _mm256_add_ps(_mm256_load_ps(acc + 8 * u), v));
    }
}

// ---- float products ----------------------------------------------------------------------------------------------

INLINE __m256 floats8(int type, const uint8_t *p) {
    switch (type) {
    case F32: return _mm256_loadu_ps((const float *)p);
    case F16: return _mm256_cvtph_ps(load128(p));
    default: return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load128(p)), 16)); // BF16
    }
}

// R rows by T tokens. Each output has two accumulators of eight lanes, fused, whatever R and T are.
INLINE void float_tile(int type, const uint8_t *w, int64_t row_bytes, int64_t n, const uint8_t *x, int64_t x_stride, float *out,
                       int64_t out_stride, const int R, const int T) {
    const int size = float_bytes(type);
    __m256 acc[4][2][2];
    UNROLL for (int r = 0; r < R; r++)
        UNROLL for (int u = 0; u < T; u++) acc[r][u][0] = acc[r][u][1] = _mm256_setzero_ps();
    stretch next = stretch_after(w, R * row_bytes, NEAR);
    int64_t i = 0;
    for (; n - i >= 16; i += 16) {
        prefetch(&next, R * 16 * size);
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

#define ROWS 8
#define BIAS(type) bias32(type)
#define FEWEST(type) (type == Q8_0 ? 4 : 2)
#include "avx_products_amd64.h"

QUANTISED(Q4_0)
QUANTISED(Q4_1)
QUANTISED(Q5_0)
QUANTISED(Q5_1)
QUANTISED(Q8_0)
QUANTISED(MXFP4)
QUANTISED(Q4_K)
QUANTISED(Q5_K)
QUANTISED(Q6_K)
QUANTISED(Q2_K)
QUANTISED(Q3_K)
QUANTISED(IQ4_NL)
QUANTISED(IQ4_XS)
QUANTISED(IQ2_XXS)
QUANTISED(IQ2_XS)
QUANTISED(IQ2_S)
QUANTISED(IQ3_XXS)
QUANTISED(IQ3_S)
QUANTISED(IQ1_S)
QUANTISED(IQ1_M)
QUANTISED(TQ2_0)
MATVEC(NVFP4)
FLOATS(F32)
FLOATS(F16)
FLOATS(BF16)

int kernel_avx2_matmul(uint32_t type, const uint8_t *w, int64_t row_bytes, int64_t rows, int64_t n, const uint8_t *act,
                        int64_t act_stride, int64_t tokens, float *out, int64_t out_stride) {
    switch (type) {
        QUANTISED_CASE(Q4_0)
        QUANTISED_CASE(Q4_1)
        QUANTISED_CASE(Q5_0)
        QUANTISED_CASE(Q5_1)
        QUANTISED_CASE(Q8_0)
        QUANTISED_CASE(MXFP4)
        QUANTISED_CASE(Q4_K)
        QUANTISED_CASE(Q5_K)
        QUANTISED_CASE(Q6_K)
        QUANTISED_CASE(Q2_K)
        QUANTISED_CASE(Q3_K)
        QUANTISED_CASE(IQ4_NL)
        QUANTISED_CASE(IQ4_XS)
        QUANTISED_CASE(IQ2_XXS)
        QUANTISED_CASE(IQ2_XS)
        QUANTISED_CASE(IQ2_S)
        QUANTISED_CASE(IQ3_XXS)
        QUANTISED_CASE(IQ3_S)
        QUANTISED_CASE(IQ1_S)
        QUANTISED_CASE(IQ1_M)
        QUANTISED_CASE(TQ2_0)
    case NVFP4:
        quantised(NVFP4, (product){matvec_NVFP4, 0, INT64_MAX, 0}, w, row_bytes, rows, act, act_stride, tokens, out, out_stride);
        return 1;
        FLOAT_CASE(F32)
        FLOAT_CASE(F16)
        FLOAT_CASE(BF16)
    }
    return 0;
}

void kernel_avx2_dot_rows(uint32_t type, const uint8_t *w, int64_t row_bytes, int64_t rows, int64_t n, const float *x,
                          float *out) {
    kernel_avx2_matmul(type, w, row_bytes, rows, n, (const uint8_t *)x, 0, 1, out, 0);
}
