/* norm_qkv_rope on the GPU. */
#include "op/fused_cuda.h"

const cuda_kernel norm_qkv_rope_cuda[] = {
    {CUDA_FUSED_ROWS(NORM_QKV_ROPE, norm_qkv_rope, 0, op_call_has_no_f64)},
    {0},
};
