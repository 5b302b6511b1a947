// The loops around the products of one vector width, for the AVX2 and AVX-512 files, which include this after they have
// defined what computes a group of rows: vec_k45, vec_k16, vec32 (one token), tile_k, unpack_k, mul_k, tile32, unpack32,
// mul32 (several tokens), float_matmul, and
//
//	TARGET        the instruction set
//	ROWS          rows that are unpacked together, and the lanes of a tile: 8 or 16
//	BIAS(type)    what was added to the codes of a type with blocks of 32
//	FEWEST(type)  the least tokens for which unpacking pays
#ifndef BIGMOE_KERNEL_PRODUCTS_H
#define BIGMOE_KERNEL_PRODUCTS_H

#include "avx2_formats_amd64.h"

#define LOOP static inline __attribute__((always_inline)) TARGET
#define INSTANCE static TARGET __attribute__((noinline)) // of one type, kept apart so that each gets the registers to itself

// One token, at least as many rows as a group has.
LOOP void matvec(int type, const uint8_t *w, int64_t stride, int64_t rows, int64_t blocks, const uint8_t *act, float *out) {
    const int group = is_k(type) ? 4 : 8;
    for (int64_t r = 0; r < rows; r += group) {
        int64_t at = group_start(r, group, rows);
        const uint8_t *p = w + at * stride;
        if (is_k45(type)) _mm_storeu_ps(out + at, vec_k45(type, p, stride, blocks, act));
        else if (is_k(type)) _mm_storeu_ps(out + at, vec_k16(type, p, stride, blocks, act));
        else _mm256_storeu_ps(out + at, vec32(type, p, stride, blocks, act));
    }
}

// Several tokens, at most MAX_TOKENS, and at least ROWS rows: so many at a time are unpacked once, block by block, and
// meet all tokens. info is as summarise32 leaves it, blocks per token.
LOOP void matmat(int type, const uint8_t *w, int64_t stride, int64_t rows, int64_t blocks, const uint8_t *act,
                 int64_t act_stride, int64_t tokens, const act32 *info, float *out, int64_t out_stride) {
    const int step = is_k(type) ? 1 : 8;
    float acc[ROWS * MAX_TOKENS] __attribute__((aligned(4 * ROWS)));
    union { tile32 b32; tile_k k; } t;
    for (int64_t r = 0; r < rows; r += ROWS) {
        int64_t at = group_start(r, ROWS, rows);
        const uint8_t *p = w + at * stride, *y = act;
        stretch next = stretch_after(p, ROWS * stride, NEAR);
        memset(acc, 0, (size_t)tokens * ROWS * sizeof(float));
        for (int64_t b = 0; b < blocks; b += step) {
            int n = (int)(blocks - b < step ? blocks - b : step);
            if (is_k(type)) unpack_k(type, &t.k, p, stride, &next);
            else unpack32(type, &t.b32, p, stride, &next, n);
            int64_t u = 0;
#define MUL(T)                                                                                                            \
    for (; tokens - u >= T; u += T) {                                                                                     \
        if (is_k(type)) mul_k(type, &t.k, y + u * act_stride, act_stride, acc + ROWS * u, T);                             \
        else mul32(type, &t.b32, n, y + u * act_stride, act_stride, info + u * blocks + b, blocks, acc + ROWS * u, T);    \
    }
#if ROWS == 16 // and twice the registers
            MUL(8)
#endif
            MUL(4)
            MUL(2)
            MUL(1)
#undef MUL
            p += n * block_bytes(type);
            y += n * (is_k(type) ? ACT_K : act_bytes(type));
        }
        for (int64_t u = 0; u < tokens; u++) memcpy(out + u * out_stride + at, acc + ROWS * u, ROWS * sizeof(float));
    }
}

#define MATVEC(type)                                                                                                      \
    INSTANCE void matvec_##type(const uint8_t *w, int64_t stride, int64_t rows, int64_t blocks, const uint8_t *act, float *out) { \
        matvec(type, w, stride, rows, blocks, act, out);                                                                  \
    }

#define QUANTISED(type)                                                                                                   \
    MATVEC(type)                                                                                                          \
    INSTANCE void matmat_##type(const uint8_t *w, int64_t stride, int64_t rows, int64_t blocks, const uint8_t *act,       \
                                int64_t act_stride, int64_t tokens, float *out, int64_t out_stride) {                     \
        act32 info[is_k(type) ? 1 : ACTS];                                                                                \
        if (!is_k(type)) {                                                                                                \
            for (int64_t u = 0; u < tokens; u++) summarise32(type, BIAS(type), info + u * blocks, act + u * act_stride, blocks); \
        }                                                                                                                 \
        matmat(type, w, stride, rows, blocks, act, act_stride, tokens, info, out, out_stride);                            \
    }

#define FLOATS(type)                                                                                                      \
    INSTANCE void matmul_##type(const uint8_t *w, int64_t row_bytes, int64_t rows, int64_t n, const uint8_t *x,           \
                                int64_t x_stride, int64_t tokens, float *out, int64_t out_stride) {                       \
        float_matmul(type, w, row_bytes, rows, n, x, x_stride, tokens, out, out_stride);                                  \
    }

// Cases of an entry point's switch.
#define QUANTISED_CASE(type)                                                                                              \
    case type:                                                                                                            \
        quantised(type, (product){matvec_##type, matmat_##type, ROWS, FEWEST(type)}, w, row_bytes, rows, act, act_stride, \
                  tokens, out, out_stride);                                                                               \
        return 1;
#define FLOAT_CASE(type)                                                                                                  \
    case type:                                                                                                            \
        matmul_##type(w, row_bytes, rows, n, act, act_stride, tokens, out, out_stride);                                   \
        return 1;

#endif
