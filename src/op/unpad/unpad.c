/* unpad: attention's padded output back to packed rows, the inverse of the padding. */
#include "op/unpad/unpad.h"

#include "op/element.h"
#include "op/padding.h"
#include "op/variants.h"

static int64_t units(const op_call *call)
{
    return call->tensors[UNPAD_OUT].shape[0] * call->tensors[UNPAD_X].shape[1];
}

static qp_status check(const op_call *call, qp_error *error)
{
    const tensor *x = &call->tensors[UNPAD_X];
    return padding_check("unpad", &call->tensors[UNPAD_PADDING_OFFSETS], x->shape[0], x->shape[2],
                         error);
}

void unpad_reference(const op_call *call)
{
    const tensor *x = &call->tensors[UNPAD_X]; /* (bs, n_heads, max_q_len, head_size) */
    const int32_t *offsets = call->tensors[UNPAD_PADDING_OFFSETS].data; /* (n_tokens) */
    const tensor *out = &call->tensors[UNPAD_OUT]; /* (n_tokens, n_heads * head_size) */
    int64_t n_heads = x->shape[1], max_q_len = x->shape[2], head_size = x->shape[3];
    for (int64_t unit = call->begin; unit < call->end; unit++) {
        int64_t token = unit / n_heads, head = unit % n_heads, slot = token + offsets[token];
        const char *from = (const char *)tensor_row2(x, slot / max_q_len, head);
        from += slot % max_q_len * x->stride[2];
        void *to = tensor_row(out, token);
        for (int64_t i = 0; i < head_size; i++)
            element_store(out->type, to, head * head_size + i, element_load(x->type, from, i));
    }
}

static void prepare(op_call *call, uint64_t seed)
{
    const tensor *x = &call->tensors[UNPAD_X];
    padding_random_offsets(seed, &call->tensors[UNPAD_PADDING_OFFSETS], x->shape[0], x->shape[2]);
}

OP_SIMD8_TABLE(unpad, .accepts = op_call_has_no_f64)

static const char *const cases[] = {
    "n_tokens=1 bs=1 n_heads=1 max_q_len=1 head_size=8",
    "n_tokens=11 bs=3 n_heads=4 max_q_len=7 head_size=16",
    "n_tokens=11 bs=3 n_heads=4 max_q_len=7 head_size=5 x:BF16 out:BF16 out+16",
    "n_tokens=14 bs=2 n_heads=3 max_q_len=7 head_size=64 out:F16 x+8",
    "n_tokens=9 bs=5 n_heads=3 max_q_len=4 head_size=6 x@0213",
    "n_tokens=0 bs=2 n_heads=3 max_q_len=7 head_size=64",
    NULL,
};

static const char *const workloads[] = {
    "internlm2-1.8b: n_tokens=300 bs=4 n_heads=16 max_q_len=128 head_size=128",
    NULL,
};

const op_info op_unpad = {
    .name = "unpad",
    .summary = "removes the padding: from a rectangle of sequences to packed tokens",
    .place = "A padded-batch engine's step between attention and its output projection.",
    .formula = "slot = t + padding_offsets[t]; "
               "out[t, h * head_size + i] = x[slot / max_q_len, h, slot % max_q_len, i]",
    .precision = "Exact where the types are the same, else one rounding to the type of out.",
    .edge_cases = "Padding is never read, whatever it holds. No tokens: nothing is written.",
    .source = "The transposition that removes padding in a teaching engine for Llama",
    .unit = "a head of a token",
    .flops = "0",
    .bytes = "n_tokens * (4 + n_heads * head_size * (sizeof_x + sizeof_out))",
    .axes = {{"n_tokens", AXIS_VARIABLE, "tokens of all sequences"},
             {"bs", AXIS_VARIABLE, "sequences in the batch"},
             {"n_heads", AXIS_CONSTANT, "query heads"},
             {"max_q_len", AXIS_VARIABLE, "tokens of the longest sequence"},
             {"head_size", AXIS_CONSTANT, "elements in a head"}},
    .tensors = {{"x", OP_IN, OP_FLOATS, "bs, n_heads, max_q_len, head_size", false,
                 "attention's output; any strides"},
                {"padding_offsets", OP_IN, OP_TYPE(I32), "n_tokens", false,
                 "padding slots before each token; never falls"},
                {"out", OP_OUT, OP_FLOATS, "n_tokens, n_heads * head_size", false,
                 "q_hidden_units a row"}},
    .units = units,
    .check = check,
    .prepare = prepare,
    .reference = unpad_reference,
    .variants = variants,
    .cases = cases,
    .workloads = workloads,
    .fills = OP_FILL_HUGE | OP_FILL_INFINITY | OP_FILL_NAN,
};
