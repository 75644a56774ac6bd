/* chain_speculative_sampling: which of the tokens that a draft model proposed are kept, and the
 * token after them, so that all are distributed as the target model's own.
 *
 * The sums that decide the draw are sums of whole numbers (prob_weight.h), so the choice does not
 * depend on the order in which they are taken.
 */
#include "op/chain_speculative_sampling/chain_speculative_sampling.h"

#include "op/cuda_ops.h"
#include "op/element.h"
#include "op/prob_weight.h"
#include "op/variants.h"

#include "base/hash.h"

static int64_t units(const op_call *call)
{
    return call->tensors[CHAIN_SAMPLING_IDS].shape[0];
}

static qp_status check(const op_call *call, qp_error *error)
{
    const tensor *ids = &call->tensors[CHAIN_SAMPLING_DRAFT_IDS];
    int64_t vocab = call->tensors[CHAIN_SAMPLING_TARGET_PROBS].shape[2];
    if (vocab < 1 || vocab > 1 << 22)
        return error_set(error, QP_INVALID,
                         "chain_speculative_sampling: vocab_size must be 1 .. %d, found %lld",
                         1 << 22, (long long)vocab);
    for (int64_t b = 0; ids->data && b < ids->shape[0]; b++) {
        const int32_t *row = tensor_row(ids, b);
        for (int64_t i = 0; i < ids->shape[1]; i++) {
            if (row[i] >= 0 && row[i] < vocab) continue;
            return error_set(error, QP_INVALID,
                             "chain_speculative_sampling: draft_token_ids[%lld, %lld] must be 0 "
                             ".. %lld, found %d",
                             (long long)b, (long long)i, (long long)vocab - 1, row[i]);
        }
    }
    return QP_OK;
}

/* Whether the target accepts draft token i of a sequence. */
static bool accepts_token(const op_call *call, int64_t b, int64_t i, double uniform)
{
    const tensor *draft = &call->tensors[CHAIN_SAMPLING_DRAFT_PROBS];
    const tensor *target = &call->tensors[CHAIN_SAMPLING_TARGET_PROBS];
    const int32_t *ids = tensor_row(&call->tensors[CHAIN_SAMPLING_DRAFT_IDS], b);
    double p = element_load(draft->type, tensor_row2(draft, b, i), ids[i]);
    double q = element_load(target->type, tensor_row2(target, b, i), ids[i]);
    return uniform * p < q;
}

static void run_sequence(const op_call *call, int64_t b, chain_drawer *drawer)
{
    const tensor *draft = &call->tensors[CHAIN_SAMPLING_DRAFT_PROBS];
    const tensor *target = &call->tensors[CHAIN_SAMPLING_TARGET_PROBS];
    const tensor *uniform = &call->tensors[CHAIN_SAMPLING_UNIFORM];
    const int32_t *proposed = tensor_row(&call->tensors[CHAIN_SAMPLING_DRAFT_IDS], b);
    int32_t *ids = tensor_row(&call->tensors[CHAIN_SAMPLING_IDS], b);
    int64_t n = draft->shape[1], emitted = 0, accepted = 0;
    bool chained = true;
    for (int64_t i = 0; i < n; i++) {
        bool accept =
            accepts_token(call, b, i, element_load(uniform->type, tensor_row(uniform, b), i));
        chained = chained && accept;
        accepted += accept;
        emitted += chained;
        ids[i + 1] = -1;
        if (chained) ids[i] = proposed[i];
    }
    int64_t at = emitted + 1 < n ? emitted + 1 : n; /* not yet used by the chain */
    chain_draw draw = {.target = tensor_row2(target, b, emitted),
                       .draft = emitted < n ? tensor_row2(draft, b, emitted) : NULL,
                       .uniform = element_load(uniform->type, tensor_row(uniform, b), at)};
    ids[emitted] = (int32_t)drawer(call, &draw);
    ((int32_t *)call->tensors[CHAIN_SAMPLING_ACCEPTED].data)[b] = (int32_t)accepted;
    ((int32_t *)call->tensors[CHAIN_SAMPLING_EMITTED].data)[b] = (int32_t)emitted;
}

void chain_sampling_run(const op_call *call, chain_drawer *drawer)
{
    for (int64_t b = call->begin; b < call->end; b++)
        run_sequence(call, b, drawer);
}

/* What the target has more of than the draft. */
static uint64_t weight_of(const op_call *call, const chain_draw *draw, int64_t i)
{
    dtype target = call->tensors[CHAIN_SAMPLING_TARGET_PROBS].type;
    dtype draft = call->tensors[CHAIN_SAMPLING_DRAFT_PROBS].type;
    uint64_t more = prob_weight(element_load(target, draw->target, i));
    uint64_t less = draw->draft ? prob_weight(element_load(draft, draw->draft, i)) : 0;
    return more > less ? more - less : 0;
}

static int64_t draw_token(const op_call *call, const chain_draw *draw)
{
    int64_t n = call->tensors[CHAIN_SAMPLING_TARGET_PROBS].shape[2], last = n - 1;
    uint64_t total = 0, sum = 0;
    for (int64_t i = 0; i < n; i++)
        total += weight_of(call, draw, i);
    for (int64_t i = 0; i < n; i++) {
        uint64_t weight = weight_of(call, draw, i);
        sum += weight;
        if (weight > 0) last = i;
        if (weight > 0 && (double)sum > draw->uniform * (double)total) return i;
    }
    if (total > 0 || !draw->draft) return last;
    chain_draw whole = {.target = draw->target, .uniform = draw->uniform};
    return draw_token(call, &whole);
}

void chain_speculative_sampling_reference(const op_call *call)
{
    chain_sampling_run(call, draw_token);
}

/* Turns a row into a distribution, sharper in some rows. */
static void make_distribution(const tensor *probs, void *row, uint64_t seed)
{
    int64_t n = probs->shape[2];
    double sum = 0, power = seed % 3 == 0 ? 8 : 1;
    for (int64_t i = 0; i < n; i++)
        sum += pow(fabs(element_load(probs->type, row, i)), power);
    for (int64_t i = 0; i < n && sum > 0; i++)
        element_store(probs->type, row, i,
                      pow(fabs(element_load(probs->type, row, i)), power) / sum);
}

static void prepare(op_call *call, uint64_t seed)
{
    const tensor *draft = &call->tensors[CHAIN_SAMPLING_DRAFT_PROBS];
    const tensor *target = &call->tensors[CHAIN_SAMPLING_TARGET_PROBS];
    const tensor *ids = &call->tensors[CHAIN_SAMPLING_DRAFT_IDS];
    const tensor *uniform = &call->tensors[CHAIN_SAMPLING_UNIFORM];
    for (int64_t b = 0; b < target->shape[0]; b++) {
        for (int64_t i = 0; i < target->shape[1]; i++) {
            uint64_t bits = hash_random(seed, (uint64_t)b, (uint64_t)i);
            make_distribution(target, tensor_row2(target, b, i), bits);
            element_store(uniform->type, tensor_row(uniform, b), i, (double)(bits >> 40) * 0x1p-24);
            if (i >= draft->shape[1]) continue;
            make_distribution(draft, tensor_row2(draft, b, i), bits / 3);
            ((int32_t *)tensor_row(ids, b))[i] =
                (int32_t)(hash_mix(bits) % (uint64_t)target->shape[2]);
        }
    }
}

OP_SIMD_TABLE(chain_speculative_sampling, .accepts = NULL)

static const char *const cases[] = {
    "n_sequences=1 n_speculative=3 vocab_size=111",
    "n_sequences=40 n_speculative=4 vocab_size=50",
    "n_sequences=6 n_speculative=2 vocab_size=5003 draft_probs:BF16 target_probs:BF16",
    "n_sequences=9 n_speculative=5 vocab_size=700 draft_probs:F16 draft_probs+8 target_probs+3 "
    "uniform_samples+1 draft_token_ids+2 output_token_ids+3",
    "n_sequences=4 n_speculative=0 vocab_size=1000",
    "n_sequences=3 n_speculative=2 vocab_size=1",
    "n_sequences=0 n_speculative=2 vocab_size=100",
    NULL,
};

static const char *const workloads[] = {
    "llama-3.1-8b: n_sequences=16 n_speculative=4 vocab_size=128256",
    "internlm2-1.8b: n_sequences=1 n_speculative=3 vocab_size=92544",
    NULL,
};

enum { PROBS = OP_TYPE(F32) | OP_TYPE(F16) | OP_TYPE(BF16) };

const op_info op_chain_speculative_sampling = {
    .name = "chain_speculative_sampling",
    .summary = "which proposed tokens are kept, and the token after them",
    .place = "Speculation with sampling: a draft model proposed a chain of tokens, and one pass of "
             "the target model gave the distributions at all of its positions.",
    .formula = "Draft token i, d = draft_token_ids[b, i], is accepted if uniform_samples[b, i] * "
               "draft_probs[b, i, d] < target_probs[b, i, d]. The first e = "
               "output_emitted_draft_token_num[b] tokens, those before the first that is not "
               "accepted, are output; then a token drawn with u = uniform_samples[b, min(e + 1, "
               "n_speculative)]: with P(x) = floor(2^40 * min(max(x, 0), 1)) and w[v] = "
               "max(P(target_probs[b, e, v]) - P(draft_probs[b, e, v]), 0), of P(target_probs) "
               "alone if all were accepted, the first v with w[v] > 0 and w[0] + .. + w[v] > u * "
               "sum(w); then -1. output_accepted_token_num[b] counts the accepted tokens, also "
               "those after the chain's end.",
    .precision =
        "The test of a draft token is in float64, exact for these types; the draw compares "
        "sums of whole numbers. Every variant gives the same tokens.",
    .edge_cases = "Where w is 0 everywhere, the token is drawn from target_probs; where those are "
                  "0 too, it is the last of the vocabulary. u = 1 draws the last token with w > 0. "
                  "NaN and negative probabilities count as 0 in the draw, and a NaN in the test "
                  "does not accept.",
    .source = "FlashInfer chain_speculative_sampling with its uniform samples given; the counts "
              "are set, not added to",
    .unit = "a sequence",
    .flops = "3 * n_sequences * vocab_size",
    .bytes = "n_sequences * vocab_size * (sizeof_draft_probs + sizeof_target_probs)",
    .axes = {{"n_sequences", AXIS_VARIABLE, "sequences"},
             {"n_speculative", AXIS_VARIABLE, "proposed tokens of each"},
             {"vocab_size", AXIS_CONSTANT, "probabilities in a row, at most 2^22"}},
    .tensors = {{"draft_probs", OP_IN, PROBS, "n_sequences, n_speculative, vocab_size", false,
                 "the distributions that the tokens were drawn from; rows may be strided"},
                {"draft_token_ids", OP_IN, OP_TYPE(I32), "n_sequences, n_speculative", false,
                 "the tokens, less than vocab_size"},
                {"uniform_samples", OP_IN, OP_TYPE(F32), "n_sequences, n_speculative + 1", false,
                 "in [0, 1), independent of each other and of the draft's"},
                {"target_probs", OP_IN, PROBS, "n_sequences, n_speculative + 1, vocab_size", false,
                 "the target's distributions at the same positions and one more"},
                {"output_token_ids", OP_OUT, OP_TYPE(I32), "n_sequences, n_speculative + 1", false,
                 "kept tokens and the one drawn, then -1"},
                {"output_accepted_token_num", OP_OUT, OP_TYPE(I32), "n_sequences", false,
                 "draft tokens that pass the test, each on its own"},
                {"output_emitted_draft_token_num", OP_OUT, OP_TYPE(I32), "n_sequences", false,
                 "draft tokens that are output"}},
    .units = units,
    .check = check,
    .prepare = prepare,
    .reference = chain_speculative_sampling_reference,
    .variants = variants,
    .cases = cases,
    .workloads = workloads,
};
