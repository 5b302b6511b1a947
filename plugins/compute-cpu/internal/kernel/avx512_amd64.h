// The kernels of the avx512 set that differ from those of avx2_amd64.h, with the same contracts and the same results.
#ifndef BIGMOE_KERNEL_AVX512_H
#define BIGMOE_KERNEL_AVX512_H

#include "avx2_amd64.h"

// Returns 0, having done nothing, for a type there is no product for here.
int kernel_avx512_matmul(uint32_t type, const uint8_t *w, int64_t row_bytes, int64_t rows, int64_t n, const uint8_t *act,
                         int64_t act_stride, int64_t tokens, float *out, int64_t out_stride);

#endif
