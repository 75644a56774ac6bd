/* masked_softmax: softmax over the rows of a padded batch's scores, without the masked positions.
 *
 * A padded-batch engine computes every score of its rectangle [max_q_len, max_kv_len] and then
 * masks those that do not exist. The masked scores are left out instead of replaced by a large
 * negative score: a row without any visible key gives zeros instead of an even distribution over
 * keys that it must not see.
 */
#include "op/masked_softmax/masked_softmax.h"

#include "base/hash.h"
#include "op/causal_mask/causal_mask.h"
#include "op/element.h"
#include "op/exp/exp.h"
#include "op/normalize/normalize.h"
#include "op/reduce_max/reduce_max.h"
#include "op/variants.h"

#include <math.h>

static int64_t units(const op_call *call)
{
    const tensor *scores = &call->tensors[MASKED_SOFTMAX_SCORES];
    return scores->shape[0] * scores->shape[1] * scores->shape[2];
}

static qp_status check(const op_call *call, qp_error *error)
{
    double scale = call->params[MASKED_SOFTMAX_SCALE];
    if (scale > 0 && isfinite(scale)) return QP_OK;
    return error_set(error, QP_INVALID, "masked_softmax: scale must be positive, found %g", scale);
}

/* A row of scores. */
static size_t scratch_bytes(const op_call *call)
{
    return (size_t)call->tensors[MASKED_SOFTMAX_SCORES].shape[3] * sizeof(double);
}

/* Softmax of one row in place, by the references of its parts. */
static void softmax_row(double *row, int64_t n, double scale)
{
    double max;
    tensor view = tensor_2d(row, DTYPE_F64, 1, n), largest = tensor_1d(&max, DTYPE_F64, 1);
    op_call reduce = {.end = 1, .tensors = {[REDUCE_MAX_X] = view, [REDUCE_MAX_MAX] = largest}};
    reduce_max_reference(&reduce);
    op_call power = {.end = 1,
                     .tensors = {[EXP_X] = view, [EXP_MAX] = largest, [EXP_OUT] = view},
                     .params = {[EXP_SCALE] = scale}};
    exp_reference(&power);
    op_call divide = {.end = 1, .tensors = {[NORMALIZE_X] = view, [NORMALIZE_OUT] = view}};
    normalize_reference(&divide);
}

void masked_softmax_reference(const op_call *call)
{
    const tensor *scores = &call->tensors[MASKED_SOFTMAX_SCORES]; /* (bs, n_heads, q, kv) */
    const tensor *mask = &call->tensors[MASKED_SOFTMAX_MASK];     /* (bs, q, kv) */
    const tensor *out = &call->tensors[MASKED_SOFTMAX_PROBABILITIES];
    int64_t n_heads = scores->shape[1], q_len = scores->shape[2], kv_len = scores->shape[3];
    double *row = call->scratch;

    for (int64_t unit = call->begin; unit < call->end; unit++) {
        int64_t q = unit % q_len, head = unit / q_len % n_heads, b = unit / q_len / n_heads;
        const char *in = (const char *)tensor_row2(scores, b, head) + q * scores->stride[2];
        const void *visible = tensor_row2(mask, b, q);
        for (int64_t i = 0; i < kv_len; i++) {
            bool seen = element_load(mask->type, visible, i) != 0;
            row[i] = seen ? element_load(scores->type, in, i) : -INFINITY;
        }
        softmax_row(row, kv_len, call->params[MASKED_SOFTMAX_SCALE]);
        char *to = (char *)tensor_row2(out, b, head) + q * out->stride[2];
        for (int64_t i = 0; i < kv_len; i++)
            element_store(out->type, to, i, row[i]);
    }
}

void masked_softmax_causal_mask(const tensor *mask, const int32_t *q_lens, const int32_t *history)
{
    const int64_t bs = mask->shape[0];
    op_call call = {.end = bs * mask->shape[1]};
    call.tensors[CAUSAL_MASK_Q_LENS] = tensor_1d((void *)(uintptr_t)q_lens, DTYPE_I32, bs);
    call.tensors[CAUSAL_MASK_HISTORY] = tensor_1d((void *)(uintptr_t)history, DTYPE_I32, bs);
    call.tensors[CAUSAL_MASK_MASK] = *mask;
    causal_mask_reference(&call);
}

/* Sequences of different lengths; the first has no tokens at all when there are several. */
static void prepare(op_call *call, uint64_t seed)
{
    const tensor *mask = &call->tensors[MASKED_SOFTMAX_MASK];
    for (int64_t b = 0; b < mask->shape[0]; b++) {
        uint64_t bits = hash_random(seed, 0, (uint64_t)b);
        int32_t max_q = (int32_t)mask->shape[1], max_kv = (int32_t)mask->shape[2];
        int32_t q_len = max_q ? 1 + (int32_t)(bits % (uint64_t)max_q) : 0;
        if (b == 0 && mask->shape[0] > 1) q_len = 0;
        int32_t spare = max_kv > q_len ? max_kv - q_len : 0;
        int32_t history = (int32_t)((bits >> 32) % (uint64_t)(spare + 1));
        tensor one = tensor_slice(*mask, 0, b, 1);
        masked_softmax_causal_mask(&one, &q_len, &history);
    }
}

OP_SIMD_TABLE(masked_softmax, .accepts = op_call_has_no_f64)

static const char *const cases[] = {
    "bs=1 n_heads=1 max_q_len=1 max_kv_len=64",
    "bs=3 n_heads=2 max_q_len=7 max_kv_len=111 scale=0.125",
    "bs=2 n_heads=3 max_q_len=34 max_kv_len=1",
    "bs=2 n_heads=3 max_q_len=5 max_kv_len=50 scores:BF16 probabilities:BF16",
    "bs=2 n_heads=2 max_q_len=9 max_kv_len=64 scores:F16 probabilities:F16 mask:F16 scores+8",
    "bs=2 n_heads=4 max_q_len=6 max_kv_len=23 probabilities=scores mask+3",
    "bs=2 n_heads=4 max_q_len=6 max_kv_len=23 scores@0213 probabilities@2103",
    "bs=0 n_heads=4 max_q_len=6 max_kv_len=23",
    NULL,
};

static const char *const workloads[] = {
    "internlm2-1.8b: bs=4 n_heads=16 max_q_len=128 max_kv_len=512 scale=0.08838834764831845",
    "internlm2-1.8b decode: bs=4 n_heads=16 max_q_len=1 max_kv_len=2048 scale=0.08838834764831845",
    NULL,
};

static const op_tolerance tolerances[] = {
    {DTYPE_F32, 1e-6, 1e-6}, {DTYPE_F16, 1e-3, 1e-3}, {DTYPE_BF16, 8e-3, 8e-3}, {0}};

const op_info op_masked_softmax = {
    .name = "masked_softmax",
    .summary = "softmax of the scores that a mask allows",
    .place = "Attention of a padded-batch engine, between the products with K and with V.",
    .formula = "probabilities[b, h, q, i] = e[i] / sum_j e[j], e[i] = exp(scale * (s[i] - max s)) "
               "over the i with mask[b, q, i] != 0, else 0; s = scores[b, h, q]",
    .precision = "float32 arithmetic, one rounding to the type of probabilities.",
    .edge_cases = "A row that is masked everywhere gives zeros (FlashInfer's convention), also one "
                  "whose visible scores are all minus infinity. Masked scores are never read into "
                  "the result, whatever they hold. probabilities may be scores.",
    .source = "The scaled, masked softmax of a teaching engine for Llama, whose mask hid the "
              "history: key i is visible to query q when i <= history + q",
    .unit = "a row (a query of a head of a sequence)",
    .flops = "6 * bs * n_heads * max_q_len * max_kv_len",
    .axes = {{"bs", AXIS_VARIABLE, "sequences in the batch"},
             {"n_heads", AXIS_CONSTANT, "query heads"},
             {"max_q_len", AXIS_VARIABLE, "new tokens of the longest sequence"},
             {"max_kv_len", AXIS_VARIABLE, "cached and new tokens of the longest sequence"}},
    .tensors = {{"scores", OP_IN, OP_FLOATS, "bs, n_heads, max_q_len, max_kv_len", false,
                 "products of queries and keys, not scaled; any strides"},
                {"mask", OP_IN, OP_FLOATS, "bs, max_q_len, max_kv_len", false,
                 "0 hides a key from a query, anything else shows it; the same for all heads"},
                {"probabilities", OP_OUT, OP_FLOATS, "bs, n_heads, max_q_len, max_kv_len", false,
                 "may be scores"}},
    .params = {{"scale", PARAM_FLOAT, 1, "positive factor of the scores: 1 / sqrt(head_size)"}},
    .units = units,
    .check = check,
    .scratch_bytes = scratch_bytes,
    .prepare = prepare,
    .reference = masked_softmax_reference,
    .variants = variants,
    .cases = cases,
    .workloads = workloads,
    .tolerances = tolerances,
    .reduction = "max_kv_len",
    .fills = OP_FILL_HUGE | OP_FILL_INFINITY,
};
