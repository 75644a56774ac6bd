/* gelu_and_mul on the GPU. */
#include "op/cuda_ops.h"
#include "op/variants.h"

const cuda_kernel gelu_and_mul_cuda[] = {
    {CUDA_UNITS(GELU_AND_MUL, "cuda_ops", gelu_and_mul, 256, 1024, op_call_has_no_f64),
     .early = true},
    {0},
};
