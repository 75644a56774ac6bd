/* bias_pad_rope in vectors: a head is biased in scratch, rotated there by rope's kernel, and
 * stored.
 */
#include "op/bias_pad_rope/bias_pad_rope.h"

#include "op/padding.h"
#include "op/rope/rope.h"
#include "op/simd.h"

op_kernel SIMD_NAME(rope);

/* One token with one query head. */
static void rotate(const op_call *call, int64_t token, float *head, int64_t n)
{
    op_call rope = {.end = 1,
                    .params = {[ROPE_INTERLEAVED] = call->params[BIAS_PAD_ROPE_INTERLEAVED]}};
    rope.tensors[ROPE_POSITIONS] =
        tensor_slice(call->tensors[BIAS_PAD_ROPE_POSITIONS], 0, token, 1);
    rope.tensors[ROPE_COS_SIN] = call->tensors[BIAS_PAD_ROPE_COS_SIN];
    rope.tensors[ROPE_Q] = tensor_3d(head, DTYPE_F32, 1, 1, n);
    rope.tensors[ROPE_K] = tensor_3d(head, DTYPE_F32, 1, 0, n);
    SIMD_NAME(rope)(&rope);
}

/* Head `head` of a token's row, biased. */
static void load_head(const op_call *call, int64_t token, int64_t head, float *to, int64_t n)
{
    const tensor *qkv = &call->tensors[BIAS_PAD_ROPE_QKV];   /* (n_tokens, qkv_hidden_units) */
    const tensor *bias = &call->tensors[BIAS_PAD_ROPE_BIAS]; /* (qkv_hidden_units) */
    const void *row = tensor_row(qkv, token);
    for (int64_t i = 0; i < n; i += LANES) {
        vf value = vf_load_n(qkv->type, row, head * n + i, n - i);
        if (bias->rank)
            value = vf_add(value, vf_load_n(bias->type, bias->data, head * n + i, n - i));
        vf_store_n(DTYPE_F32, to, i, n - i, value);
    }
}

SIMD_KERNEL(bias_pad_rope)(const op_call *call)
{
    const tensor *offsets = &call->tensors[BIAS_PAD_ROPE_PADDING_OFFSETS]; /* (n_tokens) */
    const tensor *q = &call->tensors[BIAS_PAD_ROPE_Q]; /* (bs, n_heads, max_q_len, head_size) */
    const tensor *k = &call->tensors[BIAS_PAD_ROPE_K]; /* (bs, n_kv_heads, max_q_len, head_size) */
    int64_t n_heads = q->shape[1], n_kv_heads = k->shape[1], n_all = n_heads + 2 * n_kv_heads;
    int64_t max_q_len = q->shape[2], n = q->shape[3];
    float *values = call->scratch;
    for (int64_t unit = call->begin; unit < call->end; unit++) {
        int64_t slot = unit / n_all, head = unit % n_all;
        bool rotated = head < n_heads + n_kv_heads;
        int64_t token = padding_token(offsets->data, offsets->shape[0], slot);
        if (token >= 0) load_head(call, token, head, values, n);
        if (token >= 0 && rotated) rotate(call, token, values, n);

        const tensor *out = head < n_heads ? q : rotated ? k : &call->tensors[BIAS_PAD_ROPE_V];
        if (out != q) head -= rotated ? n_heads : n_heads + n_kv_heads;
        char *to = (char *)tensor_row2(out, slot / max_q_len, head);
        to += slot % max_q_len * out->stride[2];
        for (int64_t i = 0; i < n; i += LANES)
            vf_store_n(out->type, to, i, n - i,
                       token >= 0 ? vf_load_n(DTYPE_F32, values, i, n - i) : vf_zero());
    }
}
