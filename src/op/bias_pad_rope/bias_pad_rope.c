/* bias_pad_rope: from the packed rows of the fused QKV projection to padded q, k and v.
 *
 * It writes every slot of the outputs, and zeros to the padding, so that readers need not know the
 * lengths. The units are therefore slots, and a slot searches for its token.
 */
#include "op/bias_pad_rope/bias_pad_rope.h"

#include "base/hash.h"
#include "op/element.h"
#include "op/padding.h"
#include "op/rope/rope.h"
#include "op/variants.h"

static int64_t units(const op_call *call)
{
    const tensor *q = &call->tensors[BIAS_PAD_ROPE_Q], *k = &call->tensors[BIAS_PAD_ROPE_K];
    return q->shape[0] * q->shape[2] * (q->shape[1] + 2 * k->shape[1]);
}

static qp_status check(const op_call *call, qp_error *error)
{
    const tensor *q = &call->tensors[BIAS_PAD_ROPE_Q];
    const tensor *cos_sin = &call->tensors[BIAS_PAD_ROPE_COS_SIN];
    int64_t rotary_dim = cos_sin->shape[1];
    if (rotary_dim % 2 || rotary_dim > q->shape[3])
        return error_set(error, QP_INVALID,
                         "bias_pad_rope: rotary_dim must be even and at most head_size = %lld, "
                         "found %lld",
                         (long long)q->shape[3], (long long)rotary_dim);
    TRY(padding_check("bias_pad_rope", &call->tensors[BIAS_PAD_ROPE_PADDING_OFFSETS], q->shape[0],
                      q->shape[2], error));
    return index_check("bias_pad_rope", "positions", &call->tensors[BIAS_PAD_ROPE_POSITIONS],
                       cos_sin->shape[0], error);
}

/* A head. */
static size_t scratch_bytes(const op_call *call)
{
    return (size_t)call->tensors[BIAS_PAD_ROPE_Q].shape[3] * sizeof(double);
}

/* Rotates one head for a position, by rope's reference: one token with one query head. */
static void rotate(const op_call *call, int64_t token, double *head, int64_t head_size)
{
    op_call rope = {.end = 1};
    rope.tensors[ROPE_POSITIONS] =
        tensor_slice(call->tensors[BIAS_PAD_ROPE_POSITIONS], 0, token, 1);
    rope.tensors[ROPE_COS_SIN] = call->tensors[BIAS_PAD_ROPE_COS_SIN];
    rope.tensors[ROPE_Q] = tensor_3d(head, DTYPE_F64, 1, 1, head_size);
    rope.tensors[ROPE_K] = tensor_3d(head, DTYPE_F64, 1, 0, head_size);
    rope.params[ROPE_INTERLEAVED] = call->params[BIAS_PAD_ROPE_INTERLEAVED];
    rope_reference(&rope);
}

/* Head `head` of a token's row, biased and, unless it is a value head, rotated. */
static void compute_head(const op_call *call, int64_t token, int64_t head, bool rotated, double *to)
{
    const tensor *qkv = &call->tensors[BIAS_PAD_ROPE_QKV];   /* (n_tokens, qkv_hidden_units) */
    const tensor *bias = &call->tensors[BIAS_PAD_ROPE_BIAS]; /* (qkv_hidden_units) */
    int64_t head_size = call->tensors[BIAS_PAD_ROPE_Q].shape[3], first = head * head_size;
    for (int64_t i = 0; i < head_size; i++) {
        to[i] = element_load(qkv->type, tensor_row(qkv, token), first + i);
        if (bias->rank) to[i] += element_load(bias->type, bias->data, first + i);
    }
    if (rotated) rotate(call, token, to, head_size);
}

void bias_pad_rope_reference(const op_call *call)
{
    const tensor *offsets = &call->tensors[BIAS_PAD_ROPE_PADDING_OFFSETS]; /* (n_tokens) */
    const tensor *q = &call->tensors[BIAS_PAD_ROPE_Q]; /* (bs, n_heads, max_q_len, head_size) */
    const tensor *k = &call->tensors[BIAS_PAD_ROPE_K]; /* (bs, n_kv_heads, max_q_len, head_size) */
    const tensor *v = &call->tensors[BIAS_PAD_ROPE_V]; /* as k */
    int64_t n_heads = q->shape[1], n_kv_heads = k->shape[1], n_all = n_heads + 2 * n_kv_heads;
    int64_t max_q_len = q->shape[2], head_size = q->shape[3];
    double *values = call->scratch;

    for (int64_t unit = call->begin; unit < call->end; unit++) {
        int64_t slot = unit / n_all, head = unit % n_all;
        bool rotated = head < n_heads + n_kv_heads;
        int64_t token = padding_token(offsets->data, offsets->shape[0], slot);
        if (token >= 0) compute_head(call, token, head, rotated, values);

        const tensor *out = head < n_heads ? q : rotated ? k : v;
        if (out != q) head -= rotated ? n_heads : n_heads + n_kv_heads;
        char *to = (char *)tensor_row2(out, slot / max_q_len, head);
        to += slot % max_q_len * out->stride[2];
        for (int64_t i = 0; i < head_size; i++)
            element_store(out->type, to, i, token >= 0 ? values[i] : 0);
    }
}

/* Lengths and histories at random; n_tokens <= bs * max_q_len and max_q_len <= max_positions. */
static void prepare(op_call *call, uint64_t seed)
{
    const tensor *q = &call->tensors[BIAS_PAD_ROPE_Q];
    const tensor *offsets = &call->tensors[BIAS_PAD_ROPE_PADDING_OFFSETS];
    const int32_t *offset = offsets->data;
    int32_t *positions = call->tensors[BIAS_PAD_ROPE_POSITIONS].data;
    int64_t max_q_len = q->shape[2];
    int64_t spare = call->tensors[BIAS_PAD_ROPE_COS_SIN].shape[0] - max_q_len;

    padding_random_offsets(seed, offsets, q->shape[0], max_q_len);
    for (int64_t t = 0; t < offsets->shape[0]; t++) {
        int64_t slot = t + offset[t];
        uint64_t bits = hash_random(seed, 2, (uint64_t)(slot / max_q_len));
        positions[t] = (int32_t)(bits % (uint64_t)(spare + 1) + (uint64_t)(slot % max_q_len));
    }
}

OP_SIMD8_TABLE(bias_pad_rope, .accepts = op_call_has_no_f64)

static const char *const cases[] = {
    "n_tokens=1 bs=1 max_q_len=1 n_heads=1 n_kv_heads=1 head_size=2 rotary_dim=2 max_positions=4",
    "n_tokens=11 bs=3 max_q_len=7 n_heads=4 n_kv_heads=2 head_size=16 rotary_dim=16 "
    "max_positions=40",
    "n_tokens=11 bs=3 max_q_len=7 n_heads=4 n_kv_heads=2 head_size=16 rotary_dim=16 "
    "max_positions=40 bias:- interleaved=1",
    "n_tokens=9 bs=2 max_q_len=6 n_heads=3 n_kv_heads=1 head_size=64 rotary_dim=32 "
    "max_positions=64 qkv:BF16 bias:BF16 q:BF16 k:BF16 v:BF16 qkv+16",
    "n_tokens=9 bs=2 max_q_len=6 n_heads=3 n_kv_heads=1 head_size=64 rotary_dim=64 "
    "max_positions=64 qkv:F16 bias:F16 q:F16 k:F16 v:F16 interleaved=1",
    "n_tokens=9 bs=2 max_q_len=6 n_heads=3 n_kv_heads=1 head_size=10 rotary_dim=10 "
    "max_positions=64 q@0213 k@0213 v@0213",
    "n_tokens=0 bs=2 max_q_len=6 n_heads=3 n_kv_heads=1 head_size=8 rotary_dim=8 max_positions=64",
    NULL,
};

static const char *const workloads[] = {
    "internlm2-1.8b: n_tokens=300 bs=4 max_q_len=128 n_heads=16 n_kv_heads=8 head_size=128 "
    "rotary_dim=128 max_positions=4096",
    "internlm2-1.8b decode: n_tokens=4 bs=4 max_q_len=1 n_heads=16 n_kv_heads=8 head_size=128 "
    "rotary_dim=128 max_positions=4096",
    NULL,
};

static const op_tolerance tolerances[] = {
    {DTYPE_F32, 1e-6, 1e-6}, {DTYPE_F16, 1e-3, 1e-3}, {DTYPE_BF16, 8e-3, 8e-3}, {0}};

#define QKV_HIDDEN_UNITS "(n_heads + 2 * n_kv_heads) * head_size"

const op_info op_bias_pad_rope = {
    .name = "bias_pad_rope",
    .summary = "takes the fused QKV projection apart into padded, biased, rotated q, k and v",
    .place = "A padded-batch engine's step between the QKV projection and attention: packed rows "
             "become a rectangle in which all sequences have the same length.",
    .formula =
        "slot = t + padding_offsets[t]; b = slot / max_q_len; s = slot % max_q_len; "
        "u = qkv[t] + bias; q[b, h, s] = rope(u[h], positions[t]), "
        "k[b, h, s] = rope(u[n_heads + h], positions[t]), "
        "v[b, h, s] = u[n_heads + n_kv_heads + h], u cut into heads of head_size; rope turns "
        "the pair (x, y) into (x cos - y sin, y cos + x sin), pairs (i, i + rotary_dim / 2) "
        "or, interleaved, (2i, 2i + 1); elements from rotary_dim on stay",
    .precision = "float32 arithmetic; the biased value is not rounded before it is rotated; one "
                 "rounding to the type of the output.",
    .edge_cases =
        "Slots of the outputs without a token are filled with zeros. Without bias nothing "
        "is added in its place. No tokens: all zeros.",
    .source =
        "biasAddAndPaddingAndRope of a teaching engine for Llama, whose bias was never added; "
        "FlashInfer apply_rope_with_cos_sin_cache_inplace",
    .unit = "a head (of q, k or v) of a slot",
    .flops = "n_tokens * head_size * (4 * n_heads + 5 * n_kv_heads)",
    .axes = {{"n_tokens", AXIS_VARIABLE, "tokens of all sequences"},
             {"bs", AXIS_VARIABLE, "sequences in the batch"},
             {"max_q_len", AXIS_VARIABLE, "tokens of the longest sequence"},
             {"n_heads", AXIS_CONSTANT, "query heads"},
             {"n_kv_heads", AXIS_CONSTANT, "key and value heads"},
             {"head_size", AXIS_CONSTANT, "elements in a head"},
             {"rotary_dim", AXIS_CONSTANT, "elements of a head that are rotated; even"},
             {"max_positions", AXIS_CONSTANT, "positions in the table"}},
    .tensors = {{"qkv", OP_IN, OP_FLOATS, "n_tokens, " QKV_HIDDEN_UNITS, false,
                 "rows [q heads | k heads | v heads]"},
                {"bias", OP_IN, OP_FLOATS, QKV_HIDDEN_UNITS, true, "of the projection"},
                {"padding_offsets", OP_IN, OP_TYPE(I32), "n_tokens", false,
                 "padding slots before each token; never falls"},
                {"positions", OP_IN, OP_TYPE(I32), "n_tokens", false,
                 "of each token in its sequence: tokens in the cache + index among the new tokens"},
                {"cos_sin", OP_IN, OP_TYPE(F32), "max_positions, rotary_dim", false,
                 "one row per position: rotary_dim / 2 cosines, then as many sines"},
                {"q", OP_OUT, OP_FLOATS, "bs, n_heads, max_q_len, head_size", false,
                 "any strides: an engine that keeps [bs, max_q_len, n_heads, head_size] in memory "
                 "passes a view of it with the middle dimensions' strides exchanged"},
                {"k", OP_OUT, OP_FLOATS, "bs, n_kv_heads, max_q_len, head_size", false, "as q"},
                {"v", OP_OUT, OP_FLOATS, "bs, n_kv_heads, max_q_len, head_size", false, "as q"}},
    .params = {{"interleaved", PARAM_BOOL, 0,
                "pairs (2i, 2i + 1) instead of (i, i + rotary_dim / 2)"}},
    .units = units,
    .check = check,
    .scratch_bytes = scratch_bytes,
    .prepare = prepare,
    .reference = bias_pad_rope_reference,
    .variants = variants,
    .cases = cases,
    .workloads = workloads,
    .tolerances = tolerances,
};
