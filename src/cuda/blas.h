/* Large matrix products by cuBLASLt, which is opened at run time when first needed. */
#pragma once

#include "cuda/driver.h"

typedef struct cuda_blas cuda_blas;

/* Whether the library is installed. */
bool cuda_blas_is_there(void);

/* QP_DEVICE if the library is not installed: quipu's own kernels then make the products. */
qp_status cuda_blas_open(cuda_blas **out, qp_error *error);
void cuda_blas_close(cuda_blas *blas);

/* out = x weight^T (+ residual), row-major: x (m, k) and weight (n, k) BF16, residual and out (m,
 * n) F32; pitches are in elements, from row to row. Sums are in float32.
 *
 * With scales x and weight are FP8 (E4M3) instead: a sum is multiplied by those of its row of x and
 * of its row of the weight, each in F32. Sums of FP8 are the tensor cores' own, of about 14 bits
 * (cuBLASLt's "fast accumulation"). Only on Hopper. */
typedef struct cuda_product {
    int64_t m, n, k;
    cuda_address x, weight, residual, out; /* residual 0: none; it may be out */
    cuda_address x_scales, weight_scales;  /* (m), (n); 0: BF16 */
    int64_t x_pitch, weight_pitch, residual_pitch, out_pitch;
    int64_t out_bf16; /* 1: out is BF16, without a residual */
} cuda_product;

enum { CUDA_BLAS_WORKSPACE = 32 << 20 };

/* Finds the algorithm for a product of these sizes in advance, so that cuda_blas_multiply() need
 * not search. */
qp_status cuda_blas_prepare(cuda_blas *blas, const cuda_product *product, qp_error *error);

/* Enqueues the product on the stream. QP_UNSUPPORTED if the library has no algorithm for these
 * sizes.
 */
qp_status cuda_blas_multiply(cuda_blas *blas, const cuda_product *product, cuda_address workspace,
                             cuda_stream stream, qp_error *error);
