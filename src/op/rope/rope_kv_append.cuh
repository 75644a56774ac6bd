/* rope and the kv_append of the k that it turned, of a token, as one. Where the token goes and its
 * angles are found before the kernel before this one has ended.
 */
#ifndef QUIPU_OP_ROPE_KV_APPEND_CUH
#define QUIPU_OP_ROPE_KV_APPEND_CUH

#include "op/kv_append/kv_append.cuh"
#include "op/rope/rope.cuh"

/* Turns a pair of a head, and leaves it in a slot of the cache too where `slot` is one. */
DEVICE_FN void rope_turn_into(dtype type, char *head, int a, int b, float cosine, float sine,
                              dtype cache_type, char *slot)
{
    float x = device_load(type, head, a), y = device_load(type, head, b);
    rope_pair(&x, &y, cosine, sine);
    device_store(type, head, a, x);
    device_store(type, head, b, y);
    if (!slot) return;
    /* As kv_append would read them: rounded to their type first. */
    device_store(cache_type, slot, a, device_load(type, head, a));
    device_store(cache_type, slot, b, device_load(type, head, b));
}

/* All threads of a block; their number is a multiple of head_dim / 2. */
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

#endif
