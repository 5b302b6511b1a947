// The kernels of the avx2 set. Contracts are those of the fields of Set in kernel.go; lengths are checked there.
// Types are GGUF ids. No pointer needs alignment, none is kept.
#ifndef BIGMOE_KERNEL_AVX2_H
#define BIGMOE_KERNEL_AVX2_H

#include <stdint.h>

// A product and a sum stay two roundings, as in Go. gcc fuses them unless told an ISO standard (cgo refuses the flag
// that says so directly); clang takes the pragma.
#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#elif !defined(__STRICT_ANSI__)
#error "compile with -std=c11"
#endif

// The grids of the codebook formats, elements in order, copied. To be called once, before any product.
void kernel_avx2_set_grids(const int8_t *iq2_xxs, const int8_t *iq2_xs, const int8_t *iq2_s, const int8_t *iq3_xxs,
                           const int8_t *iq3_s, const int8_t *iq1);

// Returns 0, having done nothing, for a type there is no product for here.
int kernel_avx2_matmul(uint32_t type, const uint8_t *w, int64_t row_bytes, int64_t rows, int64_t n, const uint8_t *act,
                        int64_t act_stride, int64_t tokens, float *out, int64_t out_stride);

// Products with float rows row_bytes apart: out[u] = x . row u. type is F32, F16 or BF16.
void kernel_avx2_dot_rows(uint32_t type, const uint8_t *w, int64_t row_bytes, int64_t rows, int64_t n, const float *x,
                          float *out);

void kernel_avx2_quantize_q8_0(uint8_t *dst, const float *x, int64_t n);
void kernel_avx2_quantize_q8_1(uint8_t *dst, const float *x, int64_t n);
void kernel_avx2_quantize_q8_k(uint8_t *dst, const float *x, int64_t n);

void kernel_avx2_rms_norm(float *dst, const float *x, const float *w, int64_t n, float eps);
void kernel_avx2_swiglu(float *dst, const float *gate, const float *up, int64_t n);
void kernel_avx2_softmax(float *x, int64_t n);
void kernel_avx2_axpy(float *dst, float a, const float *x, int64_t n);
void kernel_avx2_add(float *dst, const float *a, const float *b, int64_t n);
void kernel_avx2_mul(float *dst, const float *a, const float *b, int64_t n);
void kernel_avx2_rope_neox(float *x, const float *cos, const float *sin, int64_t h);
void kernel_avx2_acc_rows_f32(float *out, const float *p, const float *v, int64_t stride, int64_t rows, int64_t n);
void kernel_avx2_acc_rows_f16(float *out, const float *p, const uint16_t *v, int64_t stride, int64_t rows, int64_t n);
void kernel_avx2_delta(float *s, float *out, const float *v, int64_t rows, const float *q, const float *k, int64_t n,
                       float beta, float decay);
void kernel_avx2_mix_rows(float *out, float keep, const float *p, int64_t p_row, int64_t p_term, const float *v, int64_t rows,
                         int64_t n, int64_t terms);
void kernel_avx2_to_f16(uint16_t *dst, const float *x, int64_t n);

#endif
