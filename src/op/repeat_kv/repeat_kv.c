/* repeat_kv: copies each key and value head once for every query head that shares it.
 *
 * The copies turn grouped-query attention into plain multi-head attention. A fused attention reads
 * the shared head in place instead; this operator is for engines whose products want one head each.
 */
#include "op/repeat_kv/repeat_kv.h"

#include "base/hash.h"
#include "op/element.h"
#include "op/padding.h"
#include "op/variants.h"

static int64_t units(const op_call *call)
{
    const tensor *k = &call->tensors[REPEAT_KV_K];
    return k->shape[0] * k->shape[1] * k->shape[2];
}

static qp_status check(const op_call *call, qp_error *error)
{
    const tensor *cache = &call->tensors[REPEAT_KV_K_CACHE], *k = &call->tensors[REPEAT_KV_K];
    const int32_t *kv_lens = call->tensors[REPEAT_KV_KV_LENS].data;
    double layer = call->params[REPEAT_KV_LAYER];
    if (!(layer >= 0 && layer < (double)cache->shape[0]))
        return error_set(error, QP_INVALID, "repeat_kv: layer is %g, the cache has %lld", layer,
                         (long long)cache->shape[0]);
    if (cache->shape[2] == 0 || k->shape[1] % cache->shape[2])
        return error_set(error, QP_INVALID,
                         "repeat_kv: n_heads = %lld must be a multiple of n_kv_heads = %lld",
                         (long long)k->shape[1], (long long)cache->shape[2]);
    TRY(padding_check_slots("repeat_kv", &call->tensors[REPEAT_KV_SLOTS], k->shape[0],
                            cache->shape[1], error));
    for (int64_t b = 0; kv_lens && b < k->shape[0]; b++) {
        if (kv_lens[b] < 0 || kv_lens[b] > k->shape[2] || kv_lens[b] > cache->shape[3])
            return error_set(error, QP_INVALID,
                             "repeat_kv: kv_lens[%lld] is %d, with max_kv_len = %lld and "
                             "max_seq_len = %lld",
                             (long long)b, kv_lens[b], (long long)k->shape[2],
                             (long long)cache->shape[3]);
    }
    return QP_OK;
}

/* n_kept, the only derived axis. */
static double derive(const op_call *call, const char *axis)
{
    (void)axis;
    const tensor *kv_lens = &call->tensors[REPEAT_KV_KV_LENS];
    double sum = 0;
    for (int64_t b = 0; kv_lens->data && b < kv_lens->shape[0]; b++)
        sum += ((const int32_t *)kv_lens->data)[b];
    return sum;
}

const void *repeat_kv_source(const op_call *call, const tensor *cache, const tensor *out,
                             const int64_t at[static 3])
{
    const int32_t *kv_lens = call->tensors[REPEAT_KV_KV_LENS].data; /* (bs) */
    const int32_t *slots = call->tensors[REPEAT_KV_SLOTS].data;     /* (bs), or NULL */
    if (at[2] >= kv_lens[at[0]]) return NULL;
    int64_t layer = (int64_t)call->params[REPEAT_KV_LAYER];
    int64_t kv_head = at[1] / (out->shape[1] / cache->shape[2]);
    return (const char *)tensor_row2(cache, layer, slots ? slots[at[0]] : at[0]) +
           kv_head * cache->stride[2] + at[2] * cache->stride[3];
}

/* Position `at[2]` of head at[1] of sequence at[0]. */
static void copy_row(const op_call *call, const tensor *cache, const tensor *out,
                     const int64_t at[static 3])
{
    char *to = (char *)tensor_row2(out, at[0], at[1]) + at[2] * out->stride[2];
    const void *in = repeat_kv_source(call, cache, out, at);
    for (int64_t i = 0; i < out->shape[3]; i++)
        element_store(out->type, to, i, in ? element_load(cache->type, in, i) : 0);
}

void repeat_kv_reference(const op_call *call)
{
    const tensor *k_cache = &call->tensors[REPEAT_KV_K_CACHE]; /* (n_layers, n_slots, n_kv_heads, */
    const tensor *v_cache = &call->tensors[REPEAT_KV_V_CACHE]; /*  max_seq_len, head_size) */
    const tensor *k = &call->tensors[REPEAT_KV_K]; /* (bs, n_heads, max_kv_len, head_size) */
    int64_t n_heads = k->shape[1], max_kv_len = k->shape[2];
    for (int64_t unit = call->begin; unit < call->end; unit++) {
        const int64_t at[3] = {unit / max_kv_len / n_heads, unit / max_kv_len % n_heads,
                               unit % max_kv_len};
        copy_row(call, k_cache, k, at);
        copy_row(call, v_cache, &call->tensors[REPEAT_KV_V], at);
    }
}

/* The first sequence is empty when there are several, the last is as long as can be. */
static void prepare(op_call *call, uint64_t seed)
{
    int64_t bs = call->tensors[REPEAT_KV_K].shape[0];
    int64_t most = call->tensors[REPEAT_KV_K].shape[2];
    int64_t room = call->tensors[REPEAT_KV_K_CACHE].shape[3];
    int32_t *kv_lens = call->tensors[REPEAT_KV_KV_LENS].data;
    int64_t n_slots = call->tensors[REPEAT_KV_K_CACHE].shape[1];
    int32_t *slots = call->tensors[REPEAT_KV_SLOTS].data;
    if (most > room) most = room;
    for (int64_t b = 0; b < bs; b++) {
        uint64_t bits = hash_random(seed, 4, (uint64_t)b);
        kv_lens[b] = (int32_t)(bits % (uint64_t)(most + 1));
        if (b == 0) kv_lens[b] = 0;
        if (slots) slots[b] = (int32_t)(n_slots - 1 - b); /* the first sequence in the last slot */
        if (b == bs - 1) kv_lens[b] = (int32_t)most;
    }
}

OP_SIMD8_TABLE(repeat_kv, .accepts = op_call_has_no_f64)

static const char *const cases[] = {
    "bs=1 n_slots=1 n_layers=1 n_kv_heads=1 n_heads=1 max_kv_len=4 max_seq_len=4 head_size=8 "
    "slots:-",
    "bs=4 n_slots=6 n_layers=3 n_kv_heads=2 n_heads=6 max_kv_len=11 max_seq_len=19 head_size=16 "
    "layer=2",
    "bs=3 n_slots=3 n_layers=2 n_kv_heads=2 n_heads=16 max_kv_len=5 max_seq_len=9 head_size=7 "
    "k_cache:BF16 v_cache:BF16 k:BF16 v:BF16 layer=1",
    "bs=3 n_slots=3 n_layers=2 n_kv_heads=3 n_heads=3 max_kv_len=9 max_seq_len=9 head_size=64 "
    "k_cache:F16 v_cache:F16 k+8 k_cache+8 slots:-",
    "bs=3 n_slots=5 n_layers=2 n_kv_heads=1 n_heads=4 max_kv_len=9 max_seq_len=9 head_size=6 "
    "k@0213 v@2013",
    "bs=0 n_slots=2 n_layers=1 n_kv_heads=1 n_heads=4 max_kv_len=1 max_seq_len=4 head_size=8",
    NULL,
};

static const char *const workloads[] = {
    "internlm2-1.8b: bs=4 n_slots=4 n_layers=24 n_kv_heads=8 n_heads=16 max_kv_len=512 "
    "max_seq_len=512 head_size=128 layer=11 slots:-",
    NULL,
};

#define CACHE_SHAPE "n_layers, n_slots, n_kv_heads, max_seq_len, head_size"

const op_info op_repeat_kv = {
    .name = "repeat_kv",
    .summary = "copies each cached key and value head for the query heads that share it",
    .place = "A padded-batch engine's step before the products of attention.",
    .formula = "k[b, h, i] = k_cache[layer, slots[b], h / (n_heads / n_kv_heads), i] for "
               "i < kv_lens[b], else 0; the same for v; slots[b] = b without slots",
    .precision = "Exact where the types are the same, else one rounding to the output's type.",
    .edge_cases = "Positions from kv_lens[b] on are filled with zeros and not read from the cache, "
                  "whatever it holds there. Sequences without keys are legal.",
    .source = "repeat_kv of a teaching engine for Llama and of transformers' modeling_llama",
    .unit = "a head of a position, its key and its value",
    .flops = "0",
    .bytes = "head_size * (n_kept * n_kv_heads * (sizeof_k_cache + sizeof_v_cache) + "
             "bs * n_heads * max_kv_len * (sizeof_k + sizeof_v))",
    .axes = {{"bs", AXIS_VARIABLE, "sequences in the batch"},
             {"n_slots", AXIS_CONSTANT, "sequences that the cache has room for"},
             {"n_layers", AXIS_CONSTANT, "layers of the model"},
             {"n_kv_heads", AXIS_CONSTANT, "key and value heads"},
             {"n_heads", AXIS_CONSTANT, "query heads, a multiple of n_kv_heads"},
             {"max_kv_len", AXIS_VARIABLE, "tokens of the longest sequence, cached and new"},
             {"max_seq_len", AXIS_CONSTANT, "room in the cache for each sequence"},
             {"head_size", AXIS_CONSTANT, "elements in a head"},
             {"n_kept", AXIS_DERIVED, "tokens of all sequences: the sum of kv_lens"}},
    .tensors = {{"k_cache", OP_IN, OP_FLOATS, CACHE_SHAPE, false, "keys of all layers"},
                {"v_cache", OP_IN, OP_FLOATS, CACHE_SHAPE, false, "values of all layers"},
                {"kv_lens", OP_IN, OP_TYPE(I32), "bs", false, "tokens in the cache"},
                {"k", OP_OUT, OP_FLOATS, "bs, n_heads, max_kv_len, head_size", false,
                 "any strides"},
                {"v", OP_OUT, OP_FLOATS, "bs, n_heads, max_kv_len, head_size", false,
                 "any strides"},
                {"slots", OP_IN, OP_TYPE(I32), "bs", true, "the sequence's place in the cache"}},
    .params = {{"layer", PARAM_INT, 0, "index of the layer in the caches"}},
    .units = units,
    .check = check,
    .derive = derive,
    .prepare = prepare,
    .reference = repeat_kv_reference,
    .variants = variants,
    .cases = cases,
    .workloads = workloads,
    .fills = OP_FILL_HUGE | OP_FILL_INFINITY | OP_FILL_NAN,
};
