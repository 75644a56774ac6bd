/* head_norm on the GPU. */
#include "op/cuda_ops.h"
#include "op/variants.h"

const cuda_kernel head_norm_cuda[] = {
    {CUDA_UNITS(HEAD_NORM, "head_norm", head_norm, 256, 1, op_call_has_no_f64), .early = true},
    {0},
};
