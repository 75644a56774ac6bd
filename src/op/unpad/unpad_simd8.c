/* unpad in vectors: rows are converted in vectors. */
#include "op/unpad/unpad.h"

#include "op/simd.h"

SIMD_KERNEL(unpad)(const op_call *call)
{
    const tensor *x = &call->tensors[UNPAD_X]; /* (bs, n_heads, max_q_len, head_size) */
    const int32_t *offsets = call->tensors[UNPAD_PADDING_OFFSETS].data; /* (n_tokens) */
    const tensor *out = &call->tensors[UNPAD_OUT]; /* (n_tokens, n_heads * head_size) */
    int64_t n_heads = x->shape[1], max_q_len = x->shape[2], n = x->shape[3];
    for (int64_t unit = call->begin; unit < call->end; unit++) {
        int64_t token = unit / n_heads, head = unit % n_heads, slot = token + offsets[token];
        const char *from = (const char *)tensor_row2(x, slot / max_q_len, head);
        from += slot % max_q_len * x->stride[2];
        char *to =
            (char *)tensor_row(out, token) + head * n * (int64_t)dtype_block_bytes(out->type);
        for (int64_t i = 0; i < n; i += LANES)
            vf_store_n(out->type, to, i, n - i, vf_load_n(x->type, from, i, n - i));
    }
}
