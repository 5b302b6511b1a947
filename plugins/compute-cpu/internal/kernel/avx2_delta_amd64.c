//go:build cgo

// Delta nets, AVX2 + FMA: one token with decays by channel, and the sums over a chunk of tokens.

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

// R rows by 8*K columns stay in registers while all terms pass. The same columns of as many rows from next on are fetched,
// unless it is null.
INLINE void mix_tile(float *out, float keep, const float *p, int64_t p_row, int64_t p_term, const float *v, const float *next, int64_t n,
                     int64_t terms, const int R, const int K) {
    __m256 acc[8];
    const __m256 k = _mm256_set1_ps(keep);
    _Pragma("GCC unroll 8") for (int i = 0; i < R * K; i++) {
        acc[i] = keep == 0 ? _mm256_setzero_ps() : _mm256_mul_ps(k, _mm256_loadu_ps(out + i / K * n + i % K * 8));
    }
    for (int64_t u = 0; u < terms; u++) {
        if (next) {
            for (int c = 0; c < 8 * K; c += 16) _mm_prefetch((const char *)(next + u * n + c), _MM_HINT_T0);
        }
        __m256 x[8];
        _Pragma("GCC unroll 8") for (int c = 0; c < K; c++) x[c] = _mm256_loadu_ps(v + u * n + 8 * c);
        _Pragma("GCC unroll 8") for (int i = 0; i < R * K; i++) {
            acc[i] = _mm256_fmadd_ps(_mm256_set1_ps(p[i / K * p_row + u * p_term]), x[i % K], acc[i]);
        }
    }
    _Pragma("GCC unroll 8") for (int i = 0; i < R * K; i++) _mm256_storeu_ps(out + i / K * n + i % K * 8, acc[i]);
}

// R rows: tiles of eight registers, of one for each row, then single columns.
INLINE void mix_rows(float *out, float keep, const float *p, int64_t p_row, int64_t p_term, const float *v, int64_t n, int64_t terms,
                     const float *next, const int R) {
    int64_t c = 0;
    for (; n - c >= 64 / R; c += 64 / R) {
        mix_tile(out + c, keep, p, p_row, p_term, v + c, next ? next + c : 0, n, terms, R, 8 / R);
    }
    for (; n - c >= 8; c += 8) mix_tile(out + c, keep, p, p_row, p_term, v + c, 0, n, terms, R, 1);
    for (; c < n; c++) {
        for (int r = 0; r < R; r++) {
            float sum = keep == 0 ? 0 : keep * out[r * n + c];
            for (int64_t u = 0; u < terms; u++) sum = __builtin_fmaf(p[r * p_row + u * p_term], v[u * n + c], sum);
            out[r * n + c] = sum;
        }
    }
}

// Terms at a time, so that their rows come from memory in order and stay in the cache for all rows of out.
enum { MIX_TERMS = 32 };

TARGET void kernel_avx2_mix_rows(float *out, float keep, const float *p, int64_t p_row, int64_t p_term, const float *v, int64_t rows,
                                 int64_t n, int64_t terms) {
    do {
        int64_t t = 0, some = terms < MIX_TERMS ? terms : MIX_TERMS;
        const float *next = v + some * n;
        for (; rows - t >= 4; t += 4, next = 0) mix_rows(out + t * n, keep, p + t * p_row, p_row, p_term, v, n, some, next, 4);
        for (; rows - t >= 2; t += 2, next = 0) mix_rows(out + t * n, keep, p + t * p_row, p_row, p_term, v, n, some, next, 2);
        for (; t < rows; t++, next = 0) mix_rows(out + t * n, keep, p + t * p_row, p_row, p_term, v, n, some, next, 1);
        keep = 1;
        p += some * p_term;
        v += some * n;
        terms -= some;
    } while (terms > 0);
}
