/* renorm_probs: the most probable tokens of each row, by number and by probability, made to add up
 * to 1.
 *
 * Both filters keep the probabilities from some value upwards, so each row needs one threshold.
 * The filters compare sums of whole numbers (prob_weight.h), which are exact in any order. The sum
 * that the kept ones are divided by decides nothing, so it is taken over the values themselves.
 */
#include "op/renorm_probs/renorm_probs.h"

#include "base/hash.h"
#include "op/cuda_ops.h"
#include "op/prob_weight.h"
#include "op/sampling/sampling_row.h"
#include "op/variants.h"

static int64_t units(const op_call *call)
{
    return call->tensors[RENORM_PROBS_PROBS].shape[0];
}

/* A row's setting: the tensor's, where there is one, else the parameter's. */
static double own_or(const tensor *own, double value, int64_t row)
{
    return own->data ? element_load(own->type, own->data, row) : value;
}

renorm_limits renorm_limits_of(const op_call *call, int64_t row)
{
    int64_t n = call->tensors[RENORM_PROBS_PROBS].shape[1];
    double k = own_or(&call->tensors[RENORM_PROBS_TOP_KS], call->params[RENORM_PROBS_TOP_K], row);
    double p = own_or(&call->tensors[RENORM_PROBS_TOP_PS], call->params[RENORM_PROBS_TOP_P], row);
    renorm_limits limits = {.count = k >= 1 && k < (double)n ? (int64_t)k : n,
                            .weight = p < 1 ? p * PROB_WEIGHT_ONE : INFINITY};
    limits.any = limits.count < n || p < 1;
    return limits;
}

static qp_status check(const op_call *call, qp_error *error)
{
    int64_t n = call->tensors[RENORM_PROBS_PROBS].shape[1];
    if (n < 1 || n > 1 << 22)
        return error_set(error, QP_INVALID, "renorm_probs: vocab_size must be 1 .. %d, found %lld",
                         1 << 22, (long long)n);
    for (int64_t row = 0; row < units(call); row++) {
        double p =
            own_or(&call->tensors[RENORM_PROBS_TOP_PS], call->params[RENORM_PROBS_TOP_P], row);
        if (p >= 0) continue;
        return error_set(error, QP_INVALID,
                         "renorm_probs: top_p of row %lld must be 0 or more, found %g",
                         (long long)row, p);
    }
    return QP_OK;
}

/* Weights and keys, or the floats, weights and keys of a variant, with room for its bins. */
static size_t scratch_bytes(const op_call *call)
{
    size_t n = (size_t)call->tensors[RENORM_PROBS_PROBS].shape[1] + 16;
    return n * (sizeof(uint64_t) + sizeof(float) + sizeof(uint32_t)) + 2048 * 16;
}

static double probability(const tensor *probs, const void *row, int64_t i)
{
    double value = element_load(probs->type, row, i);
    return value > 0 ? value : 0;
}

/* The least key that both filters keep. */
static uint32_t lowest_key(const tensor *probs, const void *row, renorm_limits limits,
                           void *scratch)
{
    int64_t n = probs->shape[1];
    uint64_t *weights = scratch;
    uint32_t *keys = (uint32_t *)(weights + n);
    for (int64_t i = 0; i < n; i++) {
        keys[i] = key_of((float)probability(probs, row, i));
        weights[i] = prob_weight(probability(probs, row, i));
    }
    return threshold(keys, weights, n, (above){0}, limits.count, limits.weight);
}

void renorm_probs_reference(const op_call *call)
{
    const tensor *probs = &call->tensors[RENORM_PROBS_PROBS]; /* (n_rows, vocab_size) */
    const tensor *out = &call->tensors[RENORM_PROBS_OUT];     /* (n_rows, vocab_size) */
    for (int64_t row = call->begin; row < call->end; row++) {
        const void *in = tensor_row(probs, row);
        void *to = tensor_row(out, row);
        renorm_limits limits = renorm_limits_of(call, row);
        uint32_t lowest = limits.any ? lowest_key(probs, in, limits, call->scratch) : 0;
        double sum = 0;
        for (int64_t i = 0; i < probs->shape[1]; i++) {
            double value = probability(probs, in, i);
            if (key_of((float)value) >= lowest) sum += value;
        }
        for (int64_t i = 0; i < probs->shape[1]; i++) {
            double value = probability(probs, in, i);
            bool kept = value > 0 && key_of((float)value) >= lowest;
            element_store(out->type, to, i, kept ? value / sum : 0);
        }
    }
}

/* Distributions, and settings for each row. */
static void prepare(op_call *call, uint64_t seed)
{
    const tensor *probs = &call->tensors[RENORM_PROBS_PROBS];
    const tensor *top_ks = &call->tensors[RENORM_PROBS_TOP_KS];
    const tensor *top_ps = &call->tensors[RENORM_PROBS_TOP_PS];
    for (int64_t row = 0; row < probs->shape[0]; row++) {
        void *values = tensor_row(probs, row);
        double sum = 0;
        for (int64_t i = 0; i < probs->shape[1]; i++)
            sum += fabs(element_load(probs->type, values, i));
        for (int64_t i = 0; i < probs->shape[1] && sum > 0; i++)
            element_store(probs->type, values, i, fabs(element_load(probs->type, values, i)) / sum);
        uint64_t bits = hash_random(seed, 0, (uint64_t)row);
        if (top_ks->data) element_store(top_ks->type, top_ks->data, row, (double)(bits % 64));
        if (top_ps->data)
            element_store(top_ps->type, top_ps->data, row, (double)(bits >> 32 & 15) / 14);
    }
}

OP_SIMD_TABLE(renorm_probs, .accepts = op_call_has_no_f64)

static const char *const cases[] = {
    "n_rows=1 vocab_size=111 top_k=10 top_ks:- top_ps:-",
    "n_rows=5 vocab_size=1000 top_p=0.5 top_ks:- top_ps:-",
    "n_rows=3 vocab_size=3217 top_k=100 top_p=0.9 top_ks:- top_ps:- probs:BF16 out:F16",
    "n_rows=9 vocab_size=500 out=probs",
    "n_rows=2 vocab_size=33 top_ks:- top_ps:- probs:F16 probs+8 out+3",
    "n_rows=4 vocab_size=1 top_k=1 top_p=0 top_ks:- top_ps:-",
    "n_rows=3 vocab_size=700 top_p=0 top_ks:-",
    "n_rows=0 vocab_size=700 top_p=0.5",
    NULL,
};

static const char *const workloads[] = {
    "llama-3.1-8b top-p: n_rows=16 vocab_size=128256 top_p=0.9 top_ks:- top_ps:-",
    "llama-3.1-8b top-k: n_rows=16 vocab_size=128256 top_k=50 top_ks:- top_ps:-",
    "internlm2-1.8b: n_rows=4 vocab_size=92544 top_k=50 top_p=0.9 top_ks:- top_ps:-",
    NULL,
};

static const op_tolerance tolerances[] = {
    {DTYPE_F32, 2e-6, 2e-6}, {DTYPE_F16, 1e-3, 1e-3}, {DTYPE_BF16, 8e-3, 8e-3}, {0}};

const op_info op_renorm_probs = {
    .name = "renorm_probs",
    .summary = "the most probable tokens of each row, made to add up to 1",
    .place = "Between a softmax over the vocabulary and what needs the filtered distribution "
             "itself: chain_speculative_sampling, or a sampler of its own. sampling filters on "
             "its own and does not need it.",
    .formula = "P(x) = floor(2^40 * min(max(x, 0), 1)); probs[r, i] is kept if fewer than top_k "
               "of the row are larger, and the sum of P over those that are larger is less than "
               "2^40 * top_p. out[r, i] = probs[r, i] / (the sum of those kept), 0 if it is not "
               "kept.",
    .precision = "What is kept is decided by sums of whole numbers, the same in every variant; "
                 "the quotient is float32 or wider, rounded once to the type of out.",
    .edge_cases = "Equals of the least that is kept are kept too. The largest is kept whatever "
                  "the filters say. NaN and negative probabilities count as 0; a row of zeros "
                  "gives zeros. out may be probs.",
    .source = "FlashInfer top_p_renorm_probs (top_p alone) and top_k_renorm_probs (top_k alone); "
              "with both, each filter looks at the whole row, as top_k_top_p_sampling does with "
              "filter_apply_order \"joint\"",
    .unit = "a row",
    .flops = "4 * n_rows * vocab_size",
    .axes = {{"n_rows", AXIS_VARIABLE, "distributions"},
             {"vocab_size", AXIS_CONSTANT, "probabilities in a row, at most 2^22"}},
    .tensors = {{"probs", OP_IN, OP_TYPE(F32) | OP_TYPE(F16) | OP_TYPE(BF16), "n_rows, vocab_size",
                 false, "rows may be strided"},
                {"top_ks", OP_IN, OP_TYPE(I32), "n_rows", true,
                 "a row's own, in place of the parameter"},
                {"top_ps", OP_IN, OP_TYPE(F32), "n_rows", true, "the same for top_p"},
                {"out", OP_OUT, OP_FLOATS, "n_rows, vocab_size", false,
                 "rows may be strided; may be probs"}},
    .params = {{"top_k", PARAM_INT, 0, "how many to keep; 0: all"},
               {"top_p", PARAM_FLOAT, 1, "probability to keep; 1: all"}},
    .units = units,
    .check = check,
    .scratch_bytes = scratch_bytes,
    .prepare = prepare,
    .reference = renorm_probs_reference,
    .variants = variants,
    .cases = cases,
    .workloads = workloads,
    .tolerances = tolerances,
};
