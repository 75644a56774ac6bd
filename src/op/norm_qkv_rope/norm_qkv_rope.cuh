/* norm_qkv_rope on the GPU: one warp per pair of features, which the lanes that have the sums
 * rotate and store. */
#ifndef QUIPU_OP_NORM_QKV_ROPE_CUH
#define QUIPU_OP_NORM_QKV_ROPE_CUH

#include "op/fused.cuh"
#include "op/kv_append/kv_append.cuh"
#include "op/norm_qkv_rope/norm_qkv_rope.h"
#include "op/rope/rope.cuh"

struct norm_qkv_rope_job {
    enum { ROWS = 2 };
    const op_call &call;
    int64_t group, half, rotary_dim;
    bool interleaved;

    __device__ pair_place place(int64_t unit, int64_t features[2]) const
    {
        pair_place at = pair_place_of(unit, group, half);
        pair_features(at.kind, interleaved, at.pair, rotary_dim, features);
        return at;
    }
    __device__ fused_weight weight(int64_t unit, int r) const
    {
        int64_t features[2];
        pair_place at = place(unit, features);
        return fused_weight_row(call.tensors[NORM_QKV_ROPE_Q_WEIGHT + at.kind],
                                at.head * 2 * half + features[r]);
    }
    /* The head's row: of q, or in the cache. */
    __device__ char *head(const pair_place &at, int64_t t, dtype *type) const
    {
        const tensor &q = call.tensors[NORM_QKV_ROPE_Q];
        *type = q.type;
        if (at.kind == PAIR_QUERY) return device_row2(q, t, at.head);
        const tensor &cache =
            call.tensors[at.kind == PAIR_KEY ? NORM_QKV_ROPE_K_CACHE : NORM_QKV_ROPE_V_CACHE];
        kv_place to = kv_append_place(call.tensors[NORM_QKV_ROPE_QO_INDPTR],
                                      call.tensors[NORM_QKV_ROPE_POSITIONS],
                                      call.tensors[NORM_QKV_ROPE_KV_INDPTR],
                                      call.tensors[NORM_QKV_ROPE_KV_INDICES], cache.shape[1], t);
        *type = cache.type;
        return device_row2(cache, to.page, to.slot) + at.head * cache.stride[2];
    }
    __device__ void finish(int64_t unit, int64_t t, const float *sums) const
    {
        int64_t features[2];
        pair_place at = place(unit, features);
        const tensor &bias = call.tensors[NORM_QKV_ROPE_Q_BIAS + at.kind];
        float a = sums[0] + fused_bias(bias, at.head * 2 * half + features[0]);
        float b = sums[1] + fused_bias(bias, at.head * 2 * half + features[1]);
        if (call.params[NORM_QKV_ROPE_TURNS] != 0 && pair_turns(at.kind, at.pair, rotary_dim)) {
            int row = ((const int32_t *)call.tensors[NORM_QKV_ROPE_ROPE_ROWS].data)[t];
            const float *cosines =
                (const float *)device_row(call.tensors[NORM_QKV_ROPE_COS_SIN], row);
            rope_pair(&a, &b, cosines[at.pair], cosines[rotary_dim / 2 + at.pair]);
        }
        dtype type;
        char *to = head(at, t, &type);
        device_store(type, to, features[0], a);
        device_store(type, to, features[1], b);
    }
};

/* Pairs [begin, end), the block's being `step` apart, of M tokens from `first` on. */
template <int M>
DEVICE_FN void norm_qkv_rope_block(const op_call &call, int64_t first, int64_t begin, int64_t end,
                                   int64_t step, fused_shared<M> &shared)
{
    const tensor &x = call.tensors[NORM_QKV_ROPE_X], &q = call.tensors[NORM_QKV_ROPE_Q];
    fused_rows rows = {&x,         &call.tensors[NORM_QKV_ROPE_NORM_WEIGHT], nullptr, first,
                       x.shape[0], (float)call.params[NORM_QKV_ROPE_EPS]};
    norm_qkv_rope_job job = {call, q.shape[1] / call.tensors[NORM_QKV_ROPE_K_CACHE].shape[2],
                             q.shape[2] / 2, call.tensors[NORM_QKV_ROPE_COS_SIN].shape[1],
                             call.params[NORM_QKV_ROPE_INTERLEAVED] != 0};
    fused_block<M>(job, rows, begin, end, step, shared);
}

#endif
