/* adjust_logits: changes logits as requests ask before a token is chosen: biases, penalties, a mask
 * of allowed tokens.
 *
 * A sequence's state lies in a slot that outlives the pass: the count of each token, its biases,
 * its mask. The operator itself counts the token that was chosen last, so that passes can follow
 * each other on a GPU without the host. Every rounding is defined, because all machines must choose
 * the same token.
 */
#include "op/adjust_logits/adjust_logits.h"

#include "base/hash.h"
#include "op/adjust_logits/adjust_logits_row.h"
#include "op/variants.h"
#include "op/cuda_ops.h"

static int64_t units(const op_call *call)
{
    return tensor_elements(&call->tensors[ADJUST_LOGITS_LOGITS]);
}

static int32_t index_at(const op_call *call, int t, int64_t row)
{
    return ((const int32_t *)call->tensors[t].data)[row];
}

static float setting_at(const op_call *call, int t, int64_t row)
{
    return ((const float *)call->tensors[t].data)[row];
}

/* Whether row `row` belongs to the sequence of the row before it, whose history no row changes. */
static bool follows(const op_call *call, int64_t row)
{
    return index_at(call, ADJUST_LOGITS_USES, row) & ADJUST_PROPOSED && row > 0 &&
           index_at(call, ADJUST_LOGITS_SLOTS, row - 1) ==
               index_at(call, ADJUST_LOGITS_SLOTS, row) &&
           !(index_at(call, ADJUST_LOGITS_USES, row - 1) & ADJUST_COUNT) &&
           !(index_at(call, ADJUST_LOGITS_USES, row) & ADJUST_COUNT);
}

/* The first row of the sequence that the row belongs to. */
static int64_t first_of(const op_call *call, int64_t row)
{
    while (follows(call, row))
        row--;
    return row;
}

static qp_status check_row(const op_call *call, int64_t row, qp_error *error)
{
    const tensor *t = call->tensors;
    const int32_t slot = index_at(call, ADJUST_LOGITS_SLOTS, row);
    if (slot < 0 || slot >= t[ADJUST_LOGITS_HISTORY].shape[0])
        return error_set(error, QP_INVALID,
                         "adjust_logits: the slot of row %lld must be 0 .. %lld, found %d",
                         (long long)row, (long long)t[ADJUST_LOGITS_HISTORY].shape[0] - 1, slot);
    const int64_t first = first_of(call, row);
    if (index_at(call, ADJUST_LOGITS_USES, first) & ADJUST_PROPOSED ||
        row - first > ADJUST_MAX_PROPOSED)
        return error_set(
            error, QP_INVALID,
            "adjust_logits: row %lld reads a proposed token, so the row before it must "
            "have its slot and store nothing, and at most %d such rows may follow each "
            "other",
            (long long)row, ADJUST_MAX_PROPOSED);
    for (int64_t other = 0; other < first; other++)
        if (index_at(call, ADJUST_LOGITS_SLOTS, other) == slot &&
            index_at(call, ADJUST_LOGITS_USES, other))
            return error_set(error, QP_INVALID, "adjust_logits: rows %lld and %lld use one slot",
                             (long long)other, (long long)row);
    if (!(setting_at(call, ADJUST_LOGITS_REPETITIONS, row) > 0))
        return error_set(error, QP_INVALID,
                         "adjust_logits: the repetition penalty of row %lld must be above 0",
                         (long long)row);
    return QP_OK;
}

static qp_status check(const op_call *call, qp_error *error)
{
    const tensor *t = call->tensors;
    const int64_t vocab = t[ADJUST_LOGITS_LOGITS].shape[1];
    if (t[ADJUST_LOGITS_ALLOWED].shape[1] != ADJUST_MASK_WORDS(vocab))
        return error_set(error, QP_INVALID,
                         "adjust_logits: allowed must have %lld words for %lld tokens, found %lld",
                         (long long)ADJUST_MASK_WORDS(vocab), (long long)vocab,
                         (long long)t[ADJUST_LOGITS_ALLOWED].shape[1]);
    for (int64_t row = 0; row < t[ADJUST_LOGITS_LOGITS].shape[0]; row++)
        if (index_at(call, ADJUST_LOGITS_USES, row)) TRY(check_row(call, row, error));
    return QP_OK;
}

void adjust_logits_reference(const op_call *call)
{
    adjust_units(call);
}

OP_SIMD_TABLE(adjust_logits, .accepts = NULL)

/* Makes the row one that reads a proposed token. */
static void propose(op_call *call, int64_t row)
{
    int32_t *uses = call->tensors[ADJUST_LOGITS_USES].data;
    int32_t *slots = call->tensors[ADJUST_LOGITS_SLOTS].data;
    int32_t *last = call->tensors[ADJUST_LOGITS_LAST].data;
    slots[row] = slots[row - 1];
    uses[row] = (uses[row] & ~ADJUST_COUNT) | ADJUST_PROPOSED;
    uses[row - 1] &= ~ADJUST_COUNT;
    if (uses[row - 1] & ADJUST_PROPOSED) last[row] = last[row - 1];
}

/* Every combination of uses; slots in another order than rows; few tokens seen; some rows read
 * tokens that were proposed, often the same ones. */
static void prepare(op_call *call, uint64_t seed)
{
    tensor *t = call->tensors;
    const int64_t n_rows = t[ADJUST_LOGITS_LOGITS].shape[0];
    const int64_t vocab = t[ADJUST_LOGITS_LOGITS].shape[1];
    for (int64_t row = 0; row < n_rows; row++) {
        const uint64_t bits = hash_random(seed, 2, (uint64_t)row);
        ((int32_t *)t[ADJUST_LOGITS_LAST].data)[row] = (int32_t)((bits >> 44) % (uint64_t)vocab);
        ((int32_t *)t[ADJUST_LOGITS_SLOTS].data)[row] = (int32_t)(n_rows - 1 - row);
        ((int32_t *)t[ADJUST_LOGITS_USES].data)[row] =
            n_rows == 1 ? 15 : (int32_t)(bits >> 20 & 15);
        if (row % 4 > 1) propose(call, row);
        ((float *)t[ADJUST_LOGITS_REPETITIONS].data)[row] = 1 + (float)(bits >> 32 & 7) / 8;
        ((float *)t[ADJUST_LOGITS_PRESENCES].data)[row] = (float)(bits >> 36 & 7) / 3;
        ((float *)t[ADJUST_LOGITS_FREQUENCIES].data)[row] = (float)(bits >> 40 & 7) / 7;
    }
    for (int64_t slot = 0; slot < t[ADJUST_LOGITS_HISTORY].shape[0]; slot++) {
        int32_t *history = tensor_row(&t[ADJUST_LOGITS_HISTORY], slot);
        int32_t *allowed = tensor_row(&t[ADJUST_LOGITS_ALLOWED], slot);
        for (int64_t i = 0; i < vocab; i++) {
            const uint64_t bits = hash_random(seed, 3 + (uint64_t)slot, (uint64_t)i);
            history[i] = bits % 8 ? 0 : (int32_t)(bits >> 8) % 4 * ADJUST_ONCE + ADJUST_SEEN;
        }
        for (int64_t i = 0; i < t[ADJUST_LOGITS_ALLOWED].shape[1]; i++)
            allowed[i] = (int32_t)hash_random(seed, 99 + (uint64_t)slot, (uint64_t)i);
    }
}

static const char *const cases[] = {
    "n_rows=1 vocab_size=111 n_words=4 n_slots=1",
    "n_rows=17 vocab_size=320 n_words=10 n_slots=20",
    "n_rows=9 vocab_size=1025 n_words=33 n_slots=9 logits+7",
    "n_rows=3 vocab_size=1 n_words=1 n_slots=3",
    "n_rows=0 vocab_size=111 n_words=4 n_slots=1",
    NULL,
};

static const char *const workloads[] = {
    "llama-3.1-8b: n_rows=1 vocab_size=128256 n_words=4008 n_slots=1",
    "llama-3.2-1b: n_rows=64 vocab_size=128256 n_words=4008 n_slots=64",
    "smollm2-135m: n_rows=1 vocab_size=49152 n_words=1536 n_slots=1",
    NULL,
};

const op_info op_adjust_logits = {
    .name = "adjust_logits",
    .summary = "biases, penalties and masks of allowed tokens, before a token is chosen",
    .place = "Between the logits and sampling, for rows whose requests ask for it.",
    .formula =
        "s = slots[r], u = uses[r]. Count (u & 1): with c = last[r], history[s, c] = "
        "(history[s, c] | 1) + 2. Then for each i, in this order: bias (u & 2): l = l + bias[s, "
        "i]. "
        "Penalise (u & 4), with h = history[s, i] and, not stored, what counting would add to it "
        "for "
        "each row r' = r, r - 1, ..., as long as uses[r'] & 16, with last[r'] = i; where h is not "
        "0: l = l / repetitions[r] where l > 0, l * repetitions[r] elsewhere; k = floor(h / 2), "
        "where k is not 0: "
        "l = l - (presences[r] + frequencies[r] * k). Mask (u & 8): l = -inf where bit i % 32 of "
        "allowed[s, i / 32] is 0. logits[r, i] = l",
    .precision =
        "float32, every operation rounded by itself (no fused products): the same on every "
        "machine, bit for bit.",
    .edge_cases =
        "A row that uses nothing stays as it is, and its slot is not looked at. Rows that "
        "use anything have different slots, except a row that reads a proposed token (16), which "
        "has the slot of the row before it; such rows do not count, and at most 15 follow each "
        "other. A mask that allows nothing leaves a row of minus infinity.",
    .source = "Keskar et al., CTRL, 2019 (repetition); OpenAI's API (presence, frequency, "
              "logit_bias)",
    .unit = "a logit: row * vocab_size + token",
    .flops = "6 * n_rows * vocab_size",
    .bytes = "n_rows * vocab_size * 16.125",
    .axes = {{"n_rows", AXIS_VARIABLE, "sequences that need a token"},
             {"vocab_size", AXIS_CONSTANT, "logits in a row"},
             {"n_words", AXIS_CONSTANT,
              "words of 32 tokens in a mask: vocab_size / 32, rounded up"},
             {"n_slots", AXIS_CONSTANT, "sequences that may have a state"}},
    .tensors =
        {{"logits", OP_INOUT, OP_TYPE(F32), "n_rows, vocab_size", false, "rows may be strided"},
         {"last", OP_IN, OP_TYPE(I32), "n_rows", false, "the row's previous token"},
         {"slots", OP_IN, OP_TYPE(I32), "n_rows", false, "where a row's state lies"},
         {"uses", OP_IN, OP_TYPE(I32), "n_rows", false,
          "sum of 1: count the row's token, 2: bias, 4: penalise, 8: mask, 16: the row's token "
          "was proposed after that of the row before it"},
         {"repetitions", OP_IN, OP_TYPE(F32), "n_rows", false, "above 0; 1 changes nothing"},
         {"presences", OP_IN, OP_TYPE(F32), "n_rows", false, "0 changes nothing"},
         {"frequencies", OP_IN, OP_TYPE(F32), "n_rows", false, "0 changes nothing"},
         {"history", OP_INOUT, OP_TYPE(I32), "n_slots, vocab_size", false,
          "twice a token's times in the answer, plus 1 if it is there or in the prompt"},
         {"bias", OP_IN, OP_TYPE(F32), "n_slots, vocab_size", false, "added to the logits"},
         {"allowed", OP_IN, OP_TYPE(I32), "n_slots, n_words", false,
          "bits, the lowest first: 1 allows a token"}},
    .grain = 4096,
    .units = units,
    .check = check,
    .prepare = prepare,
    .reference = adjust_logits_reference,
    .variants = variants,
    .cuda = adjust_logits_cuda,
    .cases = cases,
    .workloads = workloads,
    .fills = OP_FILL_HUGE | OP_FILL_INFINITY,
};
