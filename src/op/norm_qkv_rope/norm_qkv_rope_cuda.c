/* norm_qkv_rope on the GPU. */
#include "op/fused_cuda.h"
#include "op/norm_qkv_rope/norm_qkv_rope.h"

/* A warp has a pair, so norms of heads are launches of their own. */
static bool accepts(const op_call *call)
{
    return op_call_has_no_f64(call) && !norm_qkv_rope_norms(call, PAIR_QUERY);
}

const cuda_kernel norm_qkv_rope_cuda[] = {
    {CUDA_FUSED_ROWS(NORM_QKV_ROPE, norm_qkv_rope, 0, accepts)},
    {0},
};
