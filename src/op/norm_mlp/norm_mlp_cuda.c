/* norm_mlp on the GPU. */
#include "op/fused_cuda.h"

const cuda_kernel norm_mlp_cuda[] = {
    {CUDA_FUSED_ROWS(NORM_MLP, norm_mlp, 32, op_call_has_no_f64)},
    {0},
};
