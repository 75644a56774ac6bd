/* Stand-alone kernels of the fused operators. Those that multiply exist for one row and for four:
 * each row of the grid takes so many. */
#include "op/attention_output/attention_output.cuh"
#include "op/attention_partial/attention_partial.cuh"
#include "op/embedding_clear/embedding_clear.cuh"
#include "op/norm_gate_up_silu/norm_gate_up_silu.cuh"
#include "op/norm_linear/norm_linear.cuh"
#include "op/norm_mlp/norm_mlp.cuh"
#include "op/norm_qkv_rope/norm_qkv_rope.cuh"

/* Blocks take groups of units, one unit per warp, one group after another; the host chooses how
 * many blocks are on a multiprocessor. */
#define FUSED_IN_TURN(name, M)                                                                     \
    extern "C" __global__ void __launch_bounds__(FUSED_THREADS, (M) == 1 ? 3 : 2)                  \
        run_##name##_##M(const __grid_constant__ op_call call, int64_t)                            \
    {                                                                                              \
        __shared__ fused_shared<M> shared;                                                         \
        name##_block<M>(call, (int64_t)blockIdx.y * M,                                             \
                        call.begin + (int64_t)blockIdx.x * FUSED_WARPS, call.end,                  \
                        (int64_t)gridDim.x * FUSED_WARPS, shared);                                 \
    }

/* Each block takes `units` neighbouring units. */
#define FUSED_TOGETHER(name, M)                                                                    \
    extern "C" __global__ void __launch_bounds__(FUSED_THREADS, 2)                                 \
        run_##name##_##M(const __grid_constant__ op_call call, int64_t units)                      \
    {                                                                                              \
        __shared__ name##_shared<M> shared;                                                        \
        int64_t begin = call.begin + blockIdx.x * units;                                           \
        name##_block<M>(call, (int64_t)blockIdx.y * M, begin, min(begin + units, call.end),        \
                        shared);                                                                   \
    }

FUSED_IN_TURN(norm_qkv_rope, 1)
FUSED_IN_TURN(norm_qkv_rope, 4)
FUSED_IN_TURN(norm_gate_up_silu, 1)
FUSED_IN_TURN(norm_gate_up_silu, 4)
FUSED_IN_TURN(norm_linear, 1)
FUSED_IN_TURN(norm_linear, 4)
FUSED_TOGETHER(attention_output, 1)
FUSED_TOGETHER(attention_output, 4)
FUSED_TOGETHER(norm_mlp, 1)
FUSED_TOGETHER(norm_mlp, 4)

/* Block x: a member of the group for a token; block y: a unit. */
extern "C" __global__ void __launch_bounds__(ATTENTION_WARPS *WARP)
    run_attention_partial(const __grid_constant__ op_call call, int64_t)
{
    __shared__ attention_shared shared;
    int64_t group = call.tensors[ATTENTION_PARTIAL_Q].shape[1] /
                    call.tensors[ATTENTION_PARTIAL_K_CACHE].shape[2];
    int64_t unit = call.begin + blockIdx.y;
    attention_partial_block(call, blockIdx.x / group, blockIdx.x % group, unit, unit + 1, shared);
}

extern "C" __global__ void __launch_bounds__(256)
    run_embedding_clear(const __grid_constant__ op_call call, int64_t units)
{
    int64_t begin = call.begin + blockIdx.x * units;
    embedding_clear_block(call, begin, min(begin + units, call.end));
}
