//go:build cgo

// Delta nets, AVX2 + FMA: one token, and what a chunk of tokens leaves.

#include "avx2_amd64.h"

#include <immintrin.h>

#define TARGET __attribute__((target("avx2,fma")))
#define INLINE static inline __attribute__((always_inline)) TARGET

INLINE float sum8(__m256 v) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

// The products of one row with two vectors.
INLINE void dot2(const float *s, const float *a, const float *b, int64_t n, float *sa, float *sb) {
    __m256 va[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()}, vb[2] = {va[0], va[0]};
    int64_t i = 0;
    for (; n - i >= 16; i += 16) {
        for (int u = 0; u < 2; u++) {
            __m256 x = _mm256_loadu_ps(s + i + 8 * u);
            va[u] = _mm256_fmadd_ps(x, _mm256_loadu_ps(a + i + 8 * u), va[u]);
            vb[u] = _mm256_fmadd_ps(x, _mm256_loadu_ps(b + i + 8 * u), vb[u]);
        }
    }
    float ta = sum8(_mm256_add_ps(va[0], va[1])), tb = sum8(_mm256_add_ps(vb[0], vb[1]));
    for (; i < n; i++) {
        ta = __builtin_fmaf(s[i], a[i], ta);
        tb = __builtin_fmaf(s[i], b[i], tb);
    }
    *sa = ta;
    *sb = tb;
}

TARGET void kernel_avx2_delta(float *s, float *out, const float *v, int64_t rows, const float *q, const float *k, int64_t n,
                              float beta, float decay) {
    float kq, unused;
    dot2(k, q, q, n, &kq, &unused);
    for (int64_t j = 0; j < rows; j++, s += n) {
        float mu, rho;
        dot2(s, k, q, n, &mu, &rho);
        float e = beta * (v[j] - decay * mu);
        out[j] = decay * rho + kq * e;
        const __m256 vd = _mm256_set1_ps(decay), ve = _mm256_set1_ps(e);
        int64_t i = 0;
        for (; n - i >= 8; i += 8) {
            _mm256_storeu_ps(s + i, _mm256_fmadd_ps(ve, _mm256_loadu_ps(k + i), _mm256_mul_ps(vd, _mm256_loadu_ps(s + i))));
        }
        for (; i < n; i++) s[i] = __builtin_fmaf(e, k[i], decay * s[i]);
    }
}

// R rows by 16 columns stay in registers while all terms pass.
INLINE void outer_tile(float *s, __m256 decay, const float *a, const float *k, int64_t rows, int64_t n, int64_t terms, const int R) {
    __m256 acc[4][2];
    _Pragma("GCC unroll 4") for (int r = 0; r < R; r++) {
        acc[r][0] = _mm256_mul_ps(decay, _mm256_loadu_ps(s + r * n));
        acc[r][1] = _mm256_mul_ps(decay, _mm256_loadu_ps(s + r * n + 8));
    }
    for (int64_t u = 0; u < terms; u++) {
        __m256 x = _mm256_loadu_ps(k + u * n), y = _mm256_loadu_ps(k + u * n + 8);
        _Pragma("GCC unroll 4") for (int r = 0; r < R; r++) {
            __m256 factor = _mm256_set1_ps(a[u * rows + r]);
            acc[r][0] = _mm256_fmadd_ps(factor, x, acc[r][0]);
            acc[r][1] = _mm256_fmadd_ps(factor, y, acc[r][1]);
        }
    }
    _Pragma("GCC unroll 4") for (int r = 0; r < R; r++) {
        _mm256_storeu_ps(s + r * n, acc[r][0]);
        _mm256_storeu_ps(s + r * n + 8, acc[r][1]);
    }
}

TARGET void kernel_avx2_outer(float *s, float decay, const float *a, const float *k, int64_t rows, int64_t n, int64_t terms) {
    const __m256 d = _mm256_set1_ps(decay);
    for (int64_t j = 0; j < rows;) {
        int64_t i = 0, R = rows - j >= 4 ? 4 : 1;
        for (; n - i >= 16; i += 16) {
            if (R == 4) outer_tile(s + j * n + i, d, a + j, k + i, rows, n, terms, 4);
            else outer_tile(s + j * n + i, d, a + j, k + i, rows, n, terms, 1);
        }
        for (int64_t r = j; r < j + R; r++) {
            for (int64_t c = i; c < n; c++) {
                float sum = decay * s[r * n + c];
                for (int64_t u = 0; u < terms; u++) sum = __builtin_fmaf(a[u * rows + r], k[u * n + c], sum);
                s[r * n + c] = sum;
            }
        }
        j += R;
    }
}
