// The kernels of the neon sets. Contracts are those of the fields of Set in kernel.go; lengths are checked there. Types
// are GGUF ids. No pointer needs alignment, none is kept.
#ifndef BIGMOE_KERNEL_NEON_H
#define BIGMOE_KERNEL_NEON_H

#include <stdint.h>

// A product and a sum stay two roundings, as in the reference. gcc fuses them unless told an ISO standard (cgo refuses
// the flag that says so directly); clang takes the pragma.
#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#elif !defined(__STRICT_ANSI__)
#error "compile with -std=c11"
#endif

// Return 0, having done nothing, for types they have no kernel for. The second uses the dot product instructions.
int kernel_neon_matmul(uint32_t type, const uint8_t *w, int64_t row_bytes, int64_t rows, int64_t n, const uint8_t *act,
                       int64_t act_stride, int64_t tokens, float *out, int64_t out_stride);
int kernel_neon_dotprod_matmul(uint32_t type, const uint8_t *w, int64_t row_bytes, int64_t rows, int64_t n,
                               const uint8_t *act, int64_t act_stride, int64_t tokens, float *out, int64_t out_stride);

void kernel_neon_quantize_q8_0(uint8_t *dst, const float *x, int64_t n);
void kernel_neon_quantize_q8_1(uint8_t *dst, const float *x, int64_t n);
void kernel_neon_quantize_q8_k(uint8_t *dst, const float *x, int64_t n);

void kernel_neon_rms_norm(float *dst, const float *x, const float *w, int64_t n, float eps);
void kernel_neon_swiglu(float *dst, const float *gate, const float *up, int64_t n);
void kernel_neon_softmax(float *x, int64_t n);
void kernel_neon_axpy(float *dst, float a, const float *x, int64_t n);
void kernel_neon_add(float *dst, const float *a, const float *b, int64_t n);
void kernel_neon_mul(float *dst, const float *a, const float *b, int64_t n);
void kernel_neon_rope_neox(float *x, const float *cos, const float *sin, int64_t h);
void kernel_neon_acc_rows_f32(float *out, const float *p, const float *v, int64_t stride, int64_t rows, int64_t n);
void kernel_neon_acc_rows_f16(float *out, const float *p, const uint16_t *v, int64_t stride, int64_t rows, int64_t n);
void kernel_neon_delta(float *s, float *out, const float *v, int64_t rows, const float *q, const float *k, int64_t n,
                       float beta, float decay);
void kernel_neon_mix_rows(float *out, float keep, const float *p, int64_t p_row, int64_t p_term, const float *v, int64_t rows,
                         int64_t n, int64_t terms);
void kernel_neon_to_f16(uint16_t *dst, const float *x, int64_t n);

#endif
