/* attention_output on the GPU: a block stores a KV head's outputs in shared memory, then each of
 * its warps computes output features from that KV head's columns alone. */
#ifndef QUIPU_OP_ATTENTION_OUTPUT_CUH
#define QUIPU_OP_ATTENTION_OUTPUT_CUH

#include "op/attention_output/attention_output.h"
#include "op/attention_partial/attention_partial.cuh"
#include "op/fused.cuh"
#include "op/merge_states/merge_states.cuh"

/* `x` as in linear, the heads one after another: M tokens of LINEAR_X_FLOATS / M. */
template <int M> struct attention_output_shared {
    __align__(16) float x[LINEAR_X_FLOATS];
    attention_shared attention;
};

/* A KV head's columns of a row of the weight. Blocks begin at multiples of eight columns, so
 * columns before and after the head's may be read and multiplied by zeros; a plain type reads the
 * head's columns alone. */
struct head_columns {
    int64_t first, end; /* that are read */
    int before;         /* how many of them are before the head's */
};

DEVICE_FN head_columns attention_output_columns(dtype type, int64_t kv_head, int64_t each)
{
    int64_t begin = kv_head * each, end = begin + each;
    if (type == DTYPE_F32 || type == DTYPE_F16 || type == DTYPE_BF16)
        return head_columns{begin, end, 0};
    return head_columns{begin / 8 * 8, (end + 7) / 8 * 8, (int)(begin % 8)};
}

/* The outputs of a KV head's group for token t, one after another. */
DEVICE_FN void attention_output_heads(const op_call &call, int64_t kv_head, int64_t t, float *to,
                                      attention_shared &shared)
{
    const tensor &v = call.tensors[ATTENTION_OUTPUT_V];
    attention_paged of =
        attention_paged_of(call, ATTENTION_OUTPUT_Q, call.params[ATTENTION_OUTPUT_SM_SCALE],
                           call.params[ATTENTION_OUTPUT_CAUSAL] != 0);
    int64_t group = of.q.shape[1] / of.k_cache.shape[2], head_dim = of.q.shape[2];
    if (v.rank) {
        for (int64_t i = threadIdx.x / WARP; i < group; i += blockDim.x / WARP)
            merge_states_head(v, call.tensors[ATTENTION_OUTPUT_S], t, kv_head * group + i,
                              DTYPE_F32, to + i * head_dim);
        return;
    }
    for (int64_t i = 0; i < group; i++)
        attention_part_block(of, t, kv_head * group + i, 1, 0, DTYPE_F32,
                             (char *)(to + i * head_dim), nullptr, shared);
}

/* Features [begin, end) of one KV head. */
template <int M>
DEVICE_FN void attention_output_features(const op_call &call, int64_t first_token, int64_t kv_head,
                                         int64_t begin, int64_t end,
                                         attention_output_shared<M> &shared)
{
    const int chunk = LINEAR_X_FLOATS / M;
    const tensor &q = call.tensors[ATTENTION_OUTPUT_Q], &x = call.tensors[ATTENTION_OUTPUT_X];
    const tensor &weight = call.tensors[ATTENTION_OUTPUT_WEIGHT];
    const tensor &bias = call.tensors[ATTENTION_OUTPUT_BIAS];
    int64_t each = weight.shape[1] / call.tensors[ATTENTION_OUTPUT_K_CACHE].shape[2];
    head_columns columns = attention_output_columns(weight.type, kv_head, each);
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    int tokens = (int)min((int64_t)M, q.shape[0] - first_token);
    int64_t bytes = weight.stride[0] * each / weight.shape[1];
    for (int64_t f = begin + threadIdx.x; f < end; f += blockDim.x)
        fused_prefetch(fused_weight{weight.type, device_row(weight, f) + kv_head * bytes, bytes});
    __syncthreads();
    for (int i = threadIdx.x; i < LINEAR_X_FLOATS; i += blockDim.x)
        shared.x[i] = 0;
    __syncthreads();
    for (int m = 0; m < tokens; m++)
        attention_output_heads(call, kv_head, first_token + m,
                               shared.x + m * chunk + columns.before, shared.attention);
    __syncthreads();
    for (int64_t f = begin + warp; f < end; f += FUSED_WARPS) {
        fused_sums<M> sums =
            fused_product<M>(fused_weight_row(weight, f), columns.end, columns.first, shared.x);
        for (int m = 0; m < M; m++) {
            float sum = warp_sum(sums.of[m]);
            if (lane != m || m >= tokens) continue;
            int64_t t = first_token + m, residual = 0;
            if (kv_head == 0) {
                sum += fused_bias(bias, f);
                residual = fixed_value(((const int64_t *)device_row(x, t))[f]);
            }
            int64_t *to = (int64_t *)device_row(call.tensors[ATTENTION_OUTPUT_X_OUT], t);
            fixed_add(to + f, fixed_from(sum) + residual);
        }
    }
}

/* Units [begin, end) for M tokens from `first` on. */
template <int M>
DEVICE_FN void attention_output_block(const op_call &call, int64_t first, int64_t begin,
                                      int64_t end, attention_output_shared<M> &shared)
{
    int64_t hidden_size = call.tensors[ATTENTION_OUTPUT_X_OUT].shape[1], stop;
    for (int64_t unit = begin; unit < end; unit = stop) {
        int64_t kv_head = unit / hidden_size, base = kv_head * hidden_size;
        stop = min(base + hidden_size, end);
        attention_output_features<M>(call, first, kv_head, unit - base, stop - base, shared);
    }
}

#endif
