/* rope of a token, and the kv_append of the rotated k: by eights, or by pairs if rows are not
 * aligned. The token's place in the cache and its angles are loaded before the previous kernel has
 * ended. */
#pragma once

#include "op/kv_append/kv_append.cuh"
#include "op/rope/rope.cuh"

/* Rotates a pair of a head, and stores it also in a slot of the cache if `slot` is not NULL. */
DEVICE_FN void rope_turn_into(dtype type, char *head, int a, int b, float cosine, float sine,
                              dtype cache_type, char *slot)
{
    float x = device_load(type, head, a), y = device_load(type, head, b);
    rope_pair(&x, &y, cosine, sine);
    device_store(type, head, a, x);
    device_store(type, head, b, y);
    if (!slot) return;
    /* Rounded to their type first, as kv_append would load them. */
    device_store(cache_type, slot, a, device_load(type, head, a));
    device_store(cache_type, slot, b, device_load(type, head, b));
}

/* Stores elements of k's heads from `first` on, which rope leaves as they are, in a slot. */
DEVICE_FN void rope_append_rest(const tensor &k, int64_t t, int first, const tensor &k_cache,
                                char *slot)
{
    int rest = (int)k.shape[2] - first;
    for (int i = threadIdx.x; i < (int)k.shape[1] * rest; i += blockDim.x) {
        int head = i / rest, at = first + i % rest;
        device_store(k_cache.type, slot + head * k_cache.stride[2], at,
                     device_load(k.type, device_row2(k, t, head), at));
    }
}

/* All threads of a block; their number is a multiple of the pairs of a head. */
DEVICE_FN void rope_kv_append_pairs(const op_call &rope, const op_call &append, int64_t t,
                                    const kv_place &place)
{
    const tensor &table = rope.tensors[ROPE_COS_SIN], &q = rope.tensors[ROPE_Q];
    const tensor &k = rope.tensors[ROPE_K], &k_cache = append.tensors[KV_APPEND_K_CACHE];
    int half = (int)(table.shape[1] / 2), pair = (int)threadIdx.x % half;
    bool interleaved = rope.params[ROPE_INTERLEAVED] != 0;
    int a = interleaved ? 2 * pair : pair, b = interleaved ? 2 * pair + 1 : pair + half;
    const float *angles =
        (const float *)device_row(table, ((const int32_t *)rope.tensors[ROPE_POSITIONS].data)[t]);
    float cosine = angles[pair], sine = angles[half + pair];
    char *slot = device_row2(k_cache, place.page, place.slot);
    int n_q = (int)q.shape[1], n = n_q + (int)k.shape[1], step = (int)blockDim.x / half;
    device_wait_for_last();
#pragma unroll 4
    for (int head = (int)threadIdx.x / half; head < n; head += step) {
        bool of_k = head >= n_q;
        char *row = of_k ? device_row2(k, t, head - n_q) : device_row2(q, t, head);
        rope_turn_into(of_k ? k.type : q.type, row, a, b, cosine, sine, k_cache.type,
                       of_k ? slot + (head - n_q) * k_cache.stride[2] : nullptr);
    }
    rope_append_rest(k, t, 2 * half, k_cache, slot);
}

DEVICE_FN void rope_kv_append_block(const op_call &rope, const op_call &append, int64_t t)
{
    kv_place place = kv_append_place_of(append, t);
    int half = (int)(rope.tensors[ROPE_COS_SIN].shape[1] / 2);
    if (blockDim.x % half == 0) {
        rope_kv_append_pairs(rope, append, t, place);
    } else {
        device_wait_for_last();
        rope_block(rope, t, t + 1);
        __syncthreads(); /* the token's k is turned */
        kv_append_token(append.tensors[KV_APPEND_K], t, append.tensors[KV_APPEND_K_CACHE],
                        place.page, place.slot);
    }
    kv_append_token(append.tensors[KV_APPEND_V], t, append.tensors[KV_APPEND_V_CACHE], place.page,
                    place.slot);
}

/* By eights: stores what rope rotated, and v, in the token's slots of the cache. */
struct rope_also_append {
    const append_rows &call;
    int64_t token;
    int n_heads;      /* of k, and of v */
    device_rows k, v; /* the token's slots */

    DEVICE_METHOD void begin() const
    {
        int per_head = call.head_dim / 8;
        for (int i = (int)threadIdx.x; i < n_heads * per_head; i += (int)blockDim.x) {
            int head = i / per_head, at = i % per_head * 8;
            device_rows from = call.v, to = v;
            float values[8];
            from.data += head * call.v_head;
            to.data += head * call.v_cache_head;
            device_unpack8(from.type, device_fetch8<true>(from, token, at, at + 8), values);
            device_store8<true>(to, 0, at, at + 8, values);
        }
    }
    DEVICE_METHOD void turned(int head, int at, const float (&values)[8]) const
    {
        device_rows to = k;
        to.data += head * call.k_cache_head;
        device_store8<true>(to, 0, at, at + 8, values);
    }
};

DEVICE_FN void rope_kv_append_vectors(const rope_rows &rope, const append_rows &append,
                                      int64_t token)
{
    kv_place place = kv_append_place(append.qo_indptr, append.n_sequences, append.positions,
                                     append.kv_indptr, append.kv_indices, append.page_size, token);
    rope_also_append also = {append, token, rope.n_heads - rope.n_q_heads, append.k_cache,
                             append.v_cache};
    also.k.data += place.page * append.k_cache.stride + place.slot * append.k_slot;
    also.v.data += place.page * append.v_cache.stride + place.slot * append.v_slot;
    rope_vectors<ROPE_HEADS>(rope, token, also);
}
