/* norm_linear on the GPU. */
#include "op/fused_cuda.h"

const cuda_kernel norm_linear_cuda[] = {
    {CUDA_FUSED_ROWS(NORM_LINEAR, norm_linear, 0, op_call_has_no_f64)},
    {0},
};
