/* Stand-alone kernels of the operators: each deals a call's units over its blocks.
 *
 * The kernel's parameter is the call, with addresses of the GPU in its tensors. cuda_ops.c knows
 * every kernel's blocks and units. Each kernel may start while the previous one runs, which makes
 * its launch cheaper, and waits for it first.
 */
#include "op/add/add.cuh"
#include "op/argmax/argmax.cuh"
#include "op/embedding/embedding.cuh"
#include "op/gelu_and_mul/gelu_and_mul.cuh"
#include "op/kv_append/kv_append.cuh"
#include "op/linear/linear.cuh"
#include "op/merge_state/merge_state.cuh"
#include "op/merge_states/merge_states.cuh"
#include "op/paged_decode/paged_decode.cuh"
#include "op/paged_prefill/paged_prefill.cuh"
#include "op/ragged_prefill/ragged_prefill.cuh"
#include "op/rms_norm/rms_norm.cuh"
#include "op/rope/rope.cuh"
#include "op/rope/rope_kv_append.cuh"
#include "op/rope/rope_many.cuh"
#include "op/scale/scale.cuh"
#include "op/silu_and_mul/silu_and_mul.cuh"
#include "op/top_k/top_k.cuh"

#define KERNEL(name, threads)                                                                      \
    extern "C" __global__ void __launch_bounds__(threads)                                          \
        run_##name(const __grid_constant__ op_call call, int64_t units)                            \
    {                                                                                              \
        device_take_turn();                                                                        \
        int64_t begin = call.begin + blockIdx.x * units;                                           \
        name##_block(call, begin, min(begin + units, call.end));                                   \
    }

KERNEL(add, 256)
KERNEL(argmax, 1024)
KERNEL(embedding, 256)
KERNEL(gelu_and_mul, 256)
KERNEL(kv_append, 256)
KERNEL(merge_state, 256)
KERNEL(merge_states, 256)
KERNEL(paged_decode, ATTENTION_WARPS *WARP)
KERNEL(ragged_prefill, ATTENTION_WARPS *WARP)
KERNEL(rope, 256)
KERNEL(scale, 256)
KERNEL(silu_and_mul, 256)
KERNEL(top_k, 1024)

/* rope of a token, then the kv_append of what it rotated: one token per block. */
extern "C" __global__ void __launch_bounds__(256)
    run_rope_kv_append(const __grid_constant__ op_call rope, const __grid_constant__ op_call append)
{
    device_let_next_begin();
    rope_kv_append_block(rope, append, rope.begin + blockIdx.x);
}

/* paged_prefill_block() itself waits for the previous kernels. */
extern "C" __global__ void __launch_bounds__(ATTENTION_WARPS *WARP)
    run_paged_prefill(const __grid_constant__ op_call call, int64_t units)
{
    device_let_next_begin();
    int64_t begin = call.begin + blockIdx.x * units;
    paged_prefill_block(call, begin, min(begin + units, call.end));
}

/* One row per block. */
#define NORM(name, add, vectors)                                                                   \
    extern "C" __global__ void __launch_bounds__(NORM_THREADS, 1)                                  \
        run_##name(const __grid_constant__ norm_rows call)                                         \
    {                                                                                              \
        device_let_next_begin();                                                                   \
        norm_row<add, vectors>(call, call.begin + blockIdx.x);                                     \
    }
NORM(rms_norm, false, false)
NORM(rms_norm_vectors, false, true)
NORM(add_rms_norm, true, false)
NORM(add_rms_norm_vectors, true, true)

/* For many rows. */
#define SMALL_NORM(name, add, eights)                                                              \
    extern "C" __global__ void __launch_bounds__(2 * NORM_SMALL_THREADS)                           \
        run_##name(const __grid_constant__ norm_rows call)                                         \
    {                                                                                              \
        device_let_next_begin();                                                                   \
        norm_small_row<add, eights>(call, call.begin + blockIdx.x);                                \
    }
SMALL_NORM(rms_norm_short, false, NORM_SHORT_EIGHTS)
SMALL_NORM(rms_norm_long, false, NORM_LONG_EIGHTS)
SMALL_NORM(add_rms_norm_short, true, NORM_SHORT_EIGHTS)
SMALL_NORM(add_rms_norm_long, true, NORM_LONG_EIGHTS)

/* Kernels named bf16 do the same arithmetic on rows that are all BF16. With types that the compiler
 * knows a thread needs half as many registers, and more rows are in flight. */
#define BF16_NORM(name, add, eights)                                                               \
    extern "C" __global__ void __launch_bounds__(NORM_THREADS / eights, eights)                    \
        run_##name##_bf16_##eights(const __grid_constant__ norm_rows call)                         \
    {                                                                                              \
        device_let_next_begin();                                                                   \
        norm_rows own = call;                                                                      \
        own.x.type = own.residual.type = own.out.type = own.weight.type = DTYPE_BF16;              \
        own.narrowed.type = DTYPE_BF16;                                                            \
        norm_small_row<add, eights>(own, call.begin + blockIdx.x);                                 \
    }
BF16_NORM(rms_norm, false, 1)
BF16_NORM(rms_norm, false, 2)
BF16_NORM(rms_norm, false, 4)
BF16_NORM(add_rms_norm, true, 1)
BF16_NORM(add_rms_norm, true, 2)
BF16_NORM(add_rms_norm, true, 4)

extern "C" __global__ void __launch_bounds__(SILU_THREADS)
    run_silu_and_mul_vectors(const __grid_constant__ silu_rows call)
{
    silu_and_mul_vectors(call);
}

extern "C" __global__ void __launch_bounds__(SILU_THREADS)
    run_silu_and_mul_bf16(const __grid_constant__ silu_rows call)
{
    silu_rows own = call;
    own.x.type = own.out.type = own.narrowed.type = DTYPE_BF16;
    silu_and_mul_vectors(own);
}

extern "C" __global__ void __launch_bounds__(MERGE_THREADS)
    run_merge_state_vectors(const __grid_constant__ merge_rows call)
{
    merge_state_vectors(call);
}

extern "C" __global__ void __launch_bounds__(MERGE_THREADS)
    run_merge_state_bf16(const __grid_constant__ merge_rows call)
{
    merge_rows own = call;
    own.v_a.type = own.v_b.type = own.v.type = DTYPE_BF16;
    merge_state_vectors(own);
}

/* One token per block; per_head divides the number of threads. */
extern "C" __global__ void __launch_bounds__(ROPE_THREADS)
    run_rope_vectors(const __grid_constant__ rope_rows call)
{
    device_let_next_begin();
    rope_vectors<ROPE_HEADS>(call, call.begin + blockIdx.x, rope_in_place());
}

/* For few tokens: with one head per thread, it loads all at once and its code is short. */
extern "C" __global__ void __launch_bounds__(ROPE_FEW_THREADS)
    run_rope_few(const __grid_constant__ rope_rows call)
{
    device_let_next_begin();
    rope_vectors<1>(call, call.begin + blockIdx.x, rope_in_place());
}

#define ROPE_BF16(heads)                                                                           \
    extern "C" __global__ void __launch_bounds__(ROPE_THREADS, 4)                                  \
        run_rope_bf16_##heads(const __grid_constant__ rope_rows call, uint32_t n_tokens)           \
    {                                                                                              \
        device_let_next_begin();                                                                   \
        rope_rows own = call;                                                                      \
        own.q.type = own.k.type = DTYPE_BF16;                                                      \
        rope_many<heads>(own, n_tokens);                                                           \
    }
ROPE_BF16(1)
ROPE_BF16(2)

extern "C" __global__ void __launch_bounds__(ROPE_THREADS)
    run_rope_kv_append_vectors(const __grid_constant__ rope_rows rope,
                               const __grid_constant__ append_rows append)
{
    device_let_next_begin();
    rope_kv_append_vectors(rope, append, rope.begin + blockIdx.x);
}

/* linear for few rows: block x takes every gridDim.x-th group of LINEAR_WARPS features, block y a
 * group of M rows. */
#define LINEAR_FEW(T, M)                                                                           \
    extern "C" __global__ void __launch_bounds__(LINEAR_WARPS *WARP)                               \
        run_linear_##T##_##M(const __grid_constant__ op_call call, int64_t)                        \
    {                                                                                              \
        device_take_turn();                                                                        \
        __shared__ __align__(16) float x[LINEAR_X_FLOATS];                                         \
        linear_few_block<DTYPE_##T, M>(call, (int64_t)blockIdx.y * M,                              \
                                       call.begin + (int64_t)blockIdx.x * LINEAR_WARPS, call.end,  \
                                       (int64_t)gridDim.x * LINEAR_WARPS, x);                      \
    }
#define LINEAR_FEW_ALL(T) LINEAR_FEW(T, 1) LINEAR_FEW(T, 4) LINEAR_FEW(T, 8)

LINEAR_FEW_ALL(F32)
LINEAR_FEW_ALL(COUNT)

extern "C" __global__ void __launch_bounds__(TILE_THREADS)
    run_linear_tiles(const __grid_constant__ op_call call, int64_t)
{
    __shared__ __align__(16) linear_tile tile;
    device_take_turn();
    linear_tile_block(call, (int64_t)blockIdx.y * TILE_ROWS,
                      call.begin + (int64_t)blockIdx.x * TILE_FEATURES, call.end, tile);
}

/* A matrix as contiguous BF16, eight elements per thread; for cuBLASLt. */
extern "C" __global__ void __launch_bounds__(256)
    run_narrow(const __grid_constant__ tensor from, uint4 *to)
{
    device_take_turn();
    int64_t columns = from.shape[1], groups = columns / 8;
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= from.shape[0] * groups) return;
    float values[8];
    decode8_all_of<DTYPE_COUNT>(from.type, device_row(from, i / groups), i % groups * 8, columns,
                                values);
    to[i] = make_uint4(bf16_pair(values[0], values[1]), bf16_pair(values[2], values[3]),
                       bf16_pair(values[4], values[5]), bf16_pair(values[6], values[7]));
}

/* out += bias, one row of blocks per row of out; after cuBLASLt. */
extern "C" __global__ void __launch_bounds__(256)
    run_add_bias(const __grid_constant__ op_call call, int64_t)
{
    device_take_turn();
    const tensor &bias = call.tensors[LINEAR_BIAS], &out = call.tensors[LINEAR_OUT];
    int64_t o = call.begin + (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (o >= call.end) return;
    float *row = (float *)device_row(out, blockIdx.y);
    row[o] += device_load(bias.type, bias.data, o);
}
