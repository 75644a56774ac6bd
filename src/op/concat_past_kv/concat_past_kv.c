/* concat_past_kv: appends the new keys and values of a padded batch to those in a contiguous cache.
 */
#include "op/concat_past_kv/concat_past_kv.h"

#include "base/hash.h"
#include "op/element.h"
#include "op/padding.h"
#include "op/variants.h"

static int64_t units(const op_call *call)
{
    const tensor *k = &call->tensors[CONCAT_PAST_KV_K];
    return k->shape[0] * k->shape[1] * k->shape[2];
}

static qp_status check(const op_call *call, qp_error *error)
{
    const tensor *k = &call->tensors[CONCAT_PAST_KV_K];
    const tensor *cache = &call->tensors[CONCAT_PAST_KV_K_CACHE];
    const int32_t *q_lens = call->tensors[CONCAT_PAST_KV_Q_LENS].data;
    const int32_t *history = call->tensors[CONCAT_PAST_KV_HISTORY].data;
    const tensor *slots = &call->tensors[CONCAT_PAST_KV_SLOTS];
    double layer = call->params[CONCAT_PAST_KV_LAYER];
    if (!(layer >= 0 && layer < (double)cache->shape[0]))
        return error_set(error, QP_INVALID, "concat_past_kv: layer is %g, the cache has %lld",
                         layer, (long long)cache->shape[0]);
    TRY(padding_check_slots("concat_past_kv", slots, k->shape[0], cache->shape[1], error));
    for (int64_t b = 0; q_lens && history && b < k->shape[0]; b++) {
        if (q_lens[b] < 0 || q_lens[b] > k->shape[2])
            return error_set(error, QP_INVALID,
                             "concat_past_kv: q_lens[%lld] is %d, expected 0 .. %lld", (long long)b,
                             q_lens[b], (long long)k->shape[2]);
        if (history[b] < 0 || history[b] > cache->shape[3] - q_lens[b])
            return error_set(error, QP_INVALID,
                             "concat_past_kv: history[%lld] = %d and %d new tokens do not fit into "
                             "max_seq_len = %lld",
                             (long long)b, history[b], q_lens[b], (long long)cache->shape[3]);
    }
    return QP_OK;
}

/* n_new, the only derived axis. */
static double derive(const op_call *call, const char *axis)
{
    (void)axis;
    const tensor *q_lens = &call->tensors[CONCAT_PAST_KV_Q_LENS];
    double sum = 0;
    for (int64_t b = 0; q_lens->data && b < q_lens->shape[0]; b++)
        sum += ((const int32_t *)q_lens->data)[b];
    return sum;
}

void *concat_past_kv_place(const op_call *call, const tensor *cache, const int64_t at[static 3])
{
    const int32_t *q_lens = call->tensors[CONCAT_PAST_KV_Q_LENS].data;   /* (bs) */
    const int32_t *history = call->tensors[CONCAT_PAST_KV_HISTORY].data; /* (bs) */
    const int32_t *slots = call->tensors[CONCAT_PAST_KV_SLOTS].data;     /* (bs), or NULL */
    if (at[2] >= q_lens[at[0]]) return NULL;
    int64_t layer = (int64_t)call->params[CONCAT_PAST_KV_LAYER];
    return (char *)tensor_row2(cache, layer, slots ? slots[at[0]] : at[0]) +
           at[1] * cache->stride[2] + (history[at[0]] + at[2]) * cache->stride[3];
}

static void copy_row(const op_call *call, const tensor *from, const tensor *cache,
                     const int64_t at[static 3])
{
    const char *in = (const char *)tensor_row2(from, at[0], at[1]) + at[2] * from->stride[2];
    char *to = concat_past_kv_place(call, cache, at);
    for (int64_t i = 0; to && i < from->shape[3]; i++)
        element_store(cache->type, to, i, element_load(from->type, in, i));
}

void concat_past_kv_reference(const op_call *call)
{
    const tensor *k = &call->tensors[CONCAT_PAST_KV_K]; /* (bs, n_kv_heads, max_q_len, head_size) */
    int64_t n_kv_heads = k->shape[1], max_q_len = k->shape[2];
    for (int64_t unit = call->begin; unit < call->end; unit++) {
        int64_t q = unit % max_q_len, head = unit / max_q_len % n_kv_heads;
        const int64_t at[3] = {unit / max_q_len / n_kv_heads, head, q};
        copy_row(call, k, &call->tensors[CONCAT_PAST_KV_K_CACHE], at);
        copy_row(call, &call->tensors[CONCAT_PAST_KV_V], &call->tensors[CONCAT_PAST_KV_V_CACHE],
                 at);
    }
}

/* The first sequence is empty, the last fills its cache, the others lie between. */
static void prepare(op_call *call, uint64_t seed)
{
    int64_t bs = call->tensors[CONCAT_PAST_KV_K].shape[0];
    uint64_t max_q_len = (uint64_t)call->tensors[CONCAT_PAST_KV_K].shape[2];
    uint64_t max_seq_len = (uint64_t)call->tensors[CONCAT_PAST_KV_K_CACHE].shape[3];
    int32_t *q_lens = call->tensors[CONCAT_PAST_KV_Q_LENS].data;
    int32_t *history = call->tensors[CONCAT_PAST_KV_HISTORY].data;
    int32_t *slots = call->tensors[CONCAT_PAST_KV_SLOTS].data;
    int64_t most_slot = call->tensors[CONCAT_PAST_KV_K_CACHE].shape[1] - 1;
    for (int64_t b = 0; b < bs; b++) {
        uint64_t bits = hash_random(seed, 3, (uint64_t)b);
        uint64_t length = bits % (max_q_len + 1), spare = max_seq_len - length;
        q_lens[b] = (int32_t)length;
        if (slots) slots[b] = (int32_t)(most_slot - b); /* the first sequence in the last slot */
        history[b] = (int32_t)(b == 0 ? 0 : b == bs - 1 ? spare : (bits >> 32) % (spare + 1));
    }
}

OP_SIMD8_TABLE(concat_past_kv, .accepts = op_call_has_no_f64)

static const char *const cases[] = {
    "bs=1 n_slots=1 n_layers=1 n_kv_heads=1 max_q_len=1 max_seq_len=4 head_size=8 slots:-",
    "bs=4 n_slots=6 n_layers=3 n_kv_heads=2 max_q_len=5 max_seq_len=19 head_size=16 layer=2",
    "bs=3 n_slots=3 n_layers=2 n_kv_heads=2 max_q_len=5 max_seq_len=9 head_size=7 k:BF16 v:BF16 "
    "k_cache:BF16 v_cache:BF16 layer=1",
    "bs=3 n_slots=3 n_layers=2 n_kv_heads=3 max_q_len=4 max_seq_len=9 head_size=64 k_cache:F16 "
    "v_cache:F16 k+8 v_cache+8 slots:-",
    "bs=3 n_slots=5 n_layers=2 n_kv_heads=3 max_q_len=4 max_seq_len=9 head_size=6 k@0213 v@0213 "
    "layer=1",
    "bs=0 n_slots=2 n_layers=1 n_kv_heads=1 max_q_len=1 max_seq_len=4 head_size=8",
    NULL,
};

static const char *const workloads[] = {
    "internlm2-1.8b: bs=4 n_slots=4 n_layers=24 n_kv_heads=8 max_q_len=128 max_seq_len=512 "
    "head_size=128 layer=11 slots:-",
    NULL,
};

#define CACHE_SHAPE "n_layers, n_slots, n_kv_heads, max_seq_len, head_size"

const op_info op_concat_past_kv = {
    .name = "concat_past_kv",
    .summary = "appends the new keys and values of a padded batch to the cached ones",
    .place = "A padded-batch engine's step after bias_pad_rope; with a paged cache kv_append takes "
             "its place.",
    .formula = "k_cache[layer, slots[b], h, history[b] + q] = k[b, h, q] for q < q_lens[b]; the "
               "same for v; "
               "slots[b] = b without slots",
    .precision = "Exact where the types are the same, else one rounding to the cache's type.",
    .edge_cases =
        "Padding (q >= q_lens[b]) is not copied; everything else in the caches stays as it "
        "was, the other layers too. Sequences without new tokens are legal.",
    .source = "concat_past_kv of a teaching engine for Llama",
    .unit = "a head of a slot, its key and its value",
    .flops = "0",
    .bytes = "n_new * n_kv_heads * head_size * (sizeof_k + sizeof_v + sizeof_k_cache + "
             "sizeof_v_cache)",
    .axes = {{"bs", AXIS_VARIABLE, "sequences in the batch"},
             {"n_slots", AXIS_CONSTANT, "sequences that the cache has room for"},
             {"n_layers", AXIS_CONSTANT, "layers of the model"},
             {"n_kv_heads", AXIS_CONSTANT, "key and value heads"},
             {"max_q_len", AXIS_VARIABLE, "new tokens of the longest sequence"},
             {"max_seq_len", AXIS_CONSTANT, "room in the cache for each sequence"},
             {"head_size", AXIS_CONSTANT, "elements in a head"},
             {"n_new", AXIS_DERIVED, "new tokens of all sequences: the sum of q_lens"}},
    .tensors = {{"k", OP_IN, OP_FLOATS, "bs, n_kv_heads, max_q_len, head_size", false,
                 "any strides"},
                {"v", OP_IN, OP_FLOATS, "bs, n_kv_heads, max_q_len, head_size", false,
                 "any strides"},
                {"q_lens", OP_IN, OP_TYPE(I32), "bs", false, "new tokens of each sequence"},
                {"history", OP_IN, OP_TYPE(I32), "bs", false, "cached tokens of each sequence"},
                {"k_cache", OP_INOUT, OP_FLOATS, CACHE_SHAPE, false,
                 "keys of all layers; written at the new tokens of one"},
                {"v_cache", OP_INOUT, OP_FLOATS, CACHE_SHAPE, false, "values, as k_cache"},
                {"slots", OP_IN, OP_TYPE(I32), "bs", true,
                 "the sequence's place in the cache, each its own"}},
    .params = {{"layer", PARAM_INT, 0, "index of the layer in the caches"}},
    .units = units,
    .check = check,
    .derive = derive,
    .prepare = prepare,
    .reference = concat_past_kv_reference,
    .variants = variants,
    .cases = cases,
    .workloads = workloads,
    .fills = OP_FILL_HUGE | OP_FILL_INFINITY | OP_FILL_NAN,
};
