/* concat_past_kv in vectors: rows are converted in vectors. */
#include "op/concat_past_kv/concat_past_kv.h"

#include "op/simd.h"

static void copy_row(const op_call *call, const tensor *from, const tensor *cache,
                     const int64_t at[static 3])
{
    const char *in = (const char *)tensor_row2(from, at[0], at[1]) + at[2] * from->stride[2];
    char *to = concat_past_kv_place(call, cache, at);
    int64_t n = from->shape[3];
    for (int64_t i = 0; to && i < n; i += LANES)
        vf_store_n(cache->type, to, i, n - i, vf_load_n(from->type, in, i, n - i));
}

SIMD_KERNEL(concat_past_kv)(const op_call *call)
{
    const tensor *k = &call->tensors[CONCAT_PAST_KV_K]; /* (bs, n_kv_heads, max_q_len, head_size) */
    int64_t n_kv_heads = k->shape[1], max_q_len = k->shape[2];
    for (int64_t unit = call->begin; unit < call->end; unit++) {
        const int64_t at[3] = {unit / max_q_len / n_kv_heads, unit / max_q_len % n_kv_heads,
                               unit % max_q_len};
        copy_row(call, k, &call->tensors[CONCAT_PAST_KV_K_CACHE], at);
        copy_row(call, &call->tensors[CONCAT_PAST_KV_V], &call->tensors[CONCAT_PAST_KV_V_CACHE],
                 at);
    }
}
