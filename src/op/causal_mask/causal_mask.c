/* causal_mask: which keys of a padded batch each query sees, once for all layers and heads. */
#include "op/causal_mask/causal_mask.h"

#include "base/hash.h"
#include "op/element.h"

static int64_t units(const op_call *call)
{
    const tensor *mask = &call->tensors[CAUSAL_MASK_MASK];
    return mask->shape[0] * mask->shape[1];
}

static qp_status check(const op_call *call, qp_error *error)
{
    const tensor *mask = &call->tensors[CAUSAL_MASK_MASK];
    const int32_t *q_lens = call->tensors[CAUSAL_MASK_Q_LENS].data;
    const int32_t *history = call->tensors[CAUSAL_MASK_HISTORY].data;
    for (int64_t b = 0; q_lens && history && b < mask->shape[0]; b++) {
        if (q_lens[b] < 0 || q_lens[b] > mask->shape[1])
            return error_set(error, QP_INVALID,
                             "causal_mask: q_lens[%lld] is %d, expected 0 .. %lld", (long long)b,
                             q_lens[b], (long long)mask->shape[1]);
        if (history[b] < 0 || history[b] + q_lens[b] > mask->shape[2])
            return error_set(error, QP_INVALID,
                             "causal_mask: history[%lld] = %d and %d new tokens are more than "
                             "max_kv_len = %lld",
                             (long long)b, history[b], q_lens[b], (long long)mask->shape[2]);
    }
    return QP_OK;
}

void causal_mask_reference(const op_call *call)
{
    const int32_t *q_lens = call->tensors[CAUSAL_MASK_Q_LENS].data;   /* (bs) */
    const int32_t *history = call->tensors[CAUSAL_MASK_HISTORY].data; /* (bs) */
    const tensor *mask = &call->tensors[CAUSAL_MASK_MASK]; /* (bs, max_q_len, max_kv_len) */
    for (int64_t unit = call->begin; unit < call->end; unit++) {
        int64_t b = unit / mask->shape[1], q = unit % mask->shape[1];
        void *row = tensor_row2(mask, b, q);
        for (int64_t i = 0; i < mask->shape[2]; i++)
            element_store(mask->type, row, i, q < q_lens[b] && i <= history[b] + q);
    }
}

/* Sequences of different lengths; the first has no tokens at all when there are several. */
static void prepare(op_call *call, uint64_t seed)
{
    const tensor *mask = &call->tensors[CAUSAL_MASK_MASK];
    int32_t *q_lens = call->tensors[CAUSAL_MASK_Q_LENS].data;
    int32_t *history = call->tensors[CAUSAL_MASK_HISTORY].data;
    int64_t max_kv = mask->shape[2], most = mask->shape[1] < max_kv ? mask->shape[1] : max_kv;
    for (int64_t b = 0; b < mask->shape[0]; b++) {
        uint64_t bits = hash_random(seed, 6, (uint64_t)b);
        int64_t length = most ? 1 + (int64_t)(bits % (uint64_t)most) : 0;
        if (b == 0 && mask->shape[0] > 1) length = 0;
        q_lens[b] = (int32_t)length;
        history[b] = (int32_t)((bits >> 32) % (uint64_t)(max_kv - length + 1));
    }
}

static const char *const cases[] = {
    "bs=1 max_q_len=1 max_kv_len=64",
    "bs=3 max_q_len=7 max_kv_len=111",
    "bs=4 max_q_len=34 max_kv_len=40 mask:BF16",
    "bs=2 max_q_len=5 max_kv_len=5 mask:F16 mask+3",
    "bs=0 max_q_len=6 max_kv_len=23",
    NULL,
};

static const char *const workloads[] = {
    "internlm2-1.8b: bs=4 max_q_len=128 max_kv_len=512",
    NULL,
};

const op_info op_causal_mask = {
    .name = "causal_mask",
    .summary = "the keys that each query of a padded batch sees",
    .place = "A padded-batch engine's first step: one mask serves all layers and heads.",
    .formula = "mask[b, i, j] = 1 for i < q_lens[b] and j <= history[b] + i, else 0",
    .precision = "Exact.",
    .edge_cases = "Rows of padding (i >= q_lens[b]) see nothing.",
    .source = "BuildCausalMasks of a teaching engine for Llama, whose mask hid the history",
    .unit = "a row of the mask (a query of a sequence)",
    .flops = "0",
    .axes = {{"bs", AXIS_VARIABLE, "sequences in the batch"},
             {"max_q_len", AXIS_VARIABLE, "new tokens of the longest sequence"},
             {"max_kv_len", AXIS_VARIABLE, "cached and new tokens of the longest sequence"}},
    .tensors = {{"q_lens", OP_IN, OP_TYPE(I32), "bs", false, "new tokens of each sequence"},
                {"history", OP_IN, OP_TYPE(I32), "bs", false, "cached tokens of each sequence"},
                {"mask", OP_OUT, OP_FLOATS, "bs, max_q_len, max_kv_len", false,
                 "1: the query sees the key; rows may be strided"}},
    .units = units,
    .check = check,
    .prepare = prepare,
    .reference = causal_mask_reference,
    .cases = cases,
    .workloads = workloads,
};
