/* repeat_kv in vectors: rows are converted in vectors. */
#include "op/repeat_kv/repeat_kv.h"

#include "op/simd.h"

static void copy_row(const op_call *call, const tensor *cache, const tensor *out,
                     const int64_t at[static 3])
{
    char *to = (char *)tensor_row2(out, at[0], at[1]) + at[2] * out->stride[2];
    const void *in = repeat_kv_source(call, cache, out, at);
    int64_t n = out->shape[3];
    for (int64_t i = 0; i < n; i += LANES)
        vf_store_n(out->type, to, i, n - i, in ? vf_load_n(cache->type, in, i, n - i) : vf_zero());
}

SIMD_KERNEL(repeat_kv)(const op_call *call)
{
    const tensor *k = &call->tensors[REPEAT_KV_K]; /* (bs, n_heads, max_kv_len, head_size) */
    int64_t n_heads = k->shape[1], max_kv_len = k->shape[2];
    for (int64_t unit = call->begin; unit < call->end; unit++) {
        const int64_t at[3] = {unit / max_kv_len / n_heads, unit / max_kv_len % n_heads,
                               unit % max_kv_len};
        copy_row(call, &call->tensors[REPEAT_KV_K_CACHE], k, at);
        copy_row(call, &call->tensors[REPEAT_KV_V_CACHE], &call->tensors[REPEAT_KV_V], at);
    }
}
