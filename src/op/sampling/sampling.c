/* sampling: one token per row, drawn from the filtered softmax of its logits.
 *
 * The choice is the same on every machine. Sums of floating-point probabilities would depend on
 * their order, so probabilities are integers here (2^-40 of the largest): their sums are exact in
 * any order, and a GPU may add them in any order. Counter-based noise replaces a generator with a
 * state: token i of a row gets the noise of (seed, position, i), and the largest noisy logit wins
 * (Gumbel-max), so the draw does not depend on which other tokens were examined, or in which order.
 *
 * All filters keep the tokens from some logit upwards, so each row needs one threshold. Radix
 * selection over the logits' bits finds it: four passes, whatever the vocabulary's size.
 */
#include "op/sampling/sampling.h"

#include "op/sampling/definite.h"
#include "op/sampling/sampling_row.h"
#include "op/variants.h"
#include "op/cuda_ops.h"

#include <math.h>

/* One row as the filters see it. */
typedef struct row_view {
    uint32_t *keys;            /* (vocab_size) logits as integers of the same order */
    const int32_t *candidates; /* (vocab_size) their tokens; NULL: 0, 1, ... */
    uint64_t *weights;         /* (vocab_size) probabilities, 2^40 for the largest */
    int64_t n;
    uint32_t max_key;
    double temperature;
} row_view;

static int64_t units(const op_call *call)
{
    return call->tensors[SAMPLING_LOGITS].shape[0];
}

static qp_status check(const op_call *call, qp_error *error)
{
    int64_t n = call->tensors[SAMPLING_LOGITS].shape[1];
    if (n < 1 || n > 1 << 22)
        return error_set(error, QP_INVALID, "sampling: vocab_size must be 1 .. %d, found %lld",
                         1 << 22, (long long)n);
    for (int64_t row = 0; row < units(call); row++) {
        settings with = row_settings(call, row);
        if (!(with.temperature >= 0) || isinf(with.temperature))
            return error_set(error, QP_INVALID,
                             "sampling: the temperature of row %lld must be 0 or more, found %g",
                             (long long)row, with.temperature);
        if (!(with.top_p >= 0) || !(with.min_p <= 1))
            return error_set(error, QP_INVALID,
                             "sampling: row %lld needs top_p of 0 or more and min_p of 1 or less, "
                             "found %g and %g",
                             (long long)row, with.top_p, with.min_p);
    }
    return QP_OK;
}

static size_t scratch_bytes(const op_call *call)
{
    return (size_t)call->tensors[SAMPLING_LOGITS].shape[1] * (sizeof(uint64_t) + sizeof(uint32_t));
}

static double distance(const row_view *row, uint32_t key)
{
    return distance_of(logit_of(key), logit_of(row->max_key), row->temperature);
}

/* The token of the row's logit i. */
static int32_t token_of(const row_view *row, int64_t i)
{
    return row->candidates ? row->candidates[i] : (int32_t)i;
}

/* Reads the keys; returns the first place with the largest. */
static int32_t row_read(const tensor *logits, int64_t at, row_view *row)
{
    const void *in = tensor_row(logits, at);
    int32_t first = 0;
    for (int64_t i = 0; i < row->n; i++) {
        bool there = token_of(row, i) >= 0;
        row->keys[i] = key_of(there ? (float)element_load(logits->type, in, i) : -INFINITY);
        if (row->keys[i] > row->keys[first]) first = (int32_t)i;
    }
    row->max_key = row->keys[first];
    return first;
}

/* Fills the weights; returns their sum over the tokens whose key is at least `lowest`. */
static uint64_t row_weigh(const row_view *row, uint32_t lowest)
{
    uint64_t sum = 0;
    for (int64_t i = 0; i < row->n; i++) {
        double share = definite_exp(distance(row, row->keys[i]));
        row->weights[i] = (uint64_t)(share * (double)((uint64_t)1 << WEIGHT_BITS));
        if (row->keys[i] >= lowest) sum += row->weights[i];
    }
    return sum;
}

/* The least key that top-k and top-p keep. */
static uint32_t filter(const row_view *row, settings with, bool top_k_first)
{
    int64_t max_count = with.top_k > 0 ? with.top_k : row->n;
    bool by_count = max_count < row->n, by_weight = with.top_p < 1;
    uint32_t lowest = 0;
    if (by_count) lowest = threshold(row->keys, NULL, row->n, (above){0}, max_count, 0);
    if (!by_weight) return lowest;
    uint64_t total = row_weigh(row, top_k_first ? lowest : 0);
    uint32_t lightest =
        threshold(row->keys, row->weights, row->n, (above){0}, row->n, with.top_p * (double)total);
    return lightest > lowest ? lightest : lowest;
}

/* The place of the kept token with the largest noisy logit, the first of equals. */
static int32_t draw(const row_view *row, uint32_t lowest, double min_p, uint64_t seed,
                    uint64_t position)
{
    uint32_t nothing = key_of(-INFINITY);
    int32_t best = -1;
    double best_score = 0;
    for (int64_t i = 0; i < row->n; i++) {
        if (row->keys[i] < lowest || row->keys[i] == nothing) continue;
        double log_share = distance(row, row->keys[i]);
        if (min_p > 0 && row->keys[i] != row->max_key && definite_exp(log_share) < min_p) continue;
        double score = log_share + definite_gumbel(seed, position, (uint64_t)token_of(row, i));
        if (best >= 0 && !(score > best_score)) continue;
        best = (int32_t)i;
        best_score = score;
    }
    return best < 0 ? 0 : best;
}

void sampling_reference(const op_call *call)
{
    const tensor *logits = &call->tensors[SAMPLING_LOGITS];            /* (n_rows, vocab_size) */
    const tensor *candidates = &call->tensors[SAMPLING_CANDIDATES];    /* as logits, or absent */
    const int64_t *seeds = call->tensors[SAMPLING_SEEDS].data;         /* (n_rows) */
    const int32_t *positions = call->tensors[SAMPLING_POSITIONS].data; /* (n_rows) */
    int32_t *ids = call->tensors[SAMPLING_IDS].data;                   /* (n_rows) */
    int64_t n = logits->shape[1];
    uint64_t *weights = call->scratch;
    row_view row = {.keys = (uint32_t *)(weights + n), .weights = weights, .n = n};

    for (int64_t r = call->begin; r < call->end; r++) {
        settings with = row_settings(call, r);
        row.candidates = candidates->rank ? tensor_row(candidates, r) : NULL;
        int32_t place = row_read(logits, r, &row);
        row.temperature = with.temperature;
        if (with.temperature > 0) {
            uint32_t lowest = filter(&row, with, call->params[SAMPLING_TOP_K_FIRST] != 0);
            place = draw(&row, lowest, with.min_p, (uint64_t)seeds[r], (uint64_t)positions[r]);
        }
        int32_t id = token_of(&row, place);
        ids[r] = id < 0 ? 0 : id;
    }
}

/* Scratch of the vector kernels, which keep the logits, all weights, and candidates separately. */
static size_t fast_scratch_bytes(const op_call *call)
{
    size_t n = (size_t)call->tensors[SAMPLING_LOGITS].shape[1];
    return (n + SAMPLING_MAX_LANES) * 2 * (sizeof(uint64_t) + sizeof(uint32_t));
}

/* Candidates are few: the reference draws from them. */
static bool accepts(const op_call *call)
{
    return call->tensors[SAMPLING_CANDIDATES].rank == 0;
}

OP_SIMD_TABLE(sampling, .accepts = accepts, .scratch_bytes = fast_scratch_bytes)

/* Seeds, positions and, where rows have their own settings, values from neutral to narrow. */
static void prepare(op_call *call, uint64_t seed)
{
    static const float temperatures[] = {1, 0, 0.7f, 1.5f, 0.1f};
    static const float top_ps[] = {1, 0.9f, 0.5f, 0, 0.95f};
    static const float min_ps[] = {0, 0.1f, 0, 0.02f};
    static const int32_t top_ks[] = {0, 50, 1, 5, 1000000};
    const tensor *own = call->tensors;
    for (int64_t row = 0; row < units(call); row++) {
        uint64_t bits = hash_random(seed, 5, (uint64_t)row);
        ((int64_t *)own[SAMPLING_SEEDS].data)[row] = (int64_t)bits;
        ((int32_t *)own[SAMPLING_POSITIONS].data)[row] = (int32_t)(bits >> 40);
        if (own[SAMPLING_TEMPERATURES].rank)
            ((float *)own[SAMPLING_TEMPERATURES].data)[row] = temperatures[bits % 5];
        if (own[SAMPLING_TOP_KS].rank)
            ((int32_t *)own[SAMPLING_TOP_KS].data)[row] = top_ks[(bits >> 8) % 5];
        if (own[SAMPLING_TOP_PS].rank)
            ((float *)own[SAMPLING_TOP_PS].data)[row] = top_ps[(bits >> 16) % 5];
        if (own[SAMPLING_MIN_PS].rank)
            ((float *)own[SAMPLING_MIN_PS].data)[row] = min_ps[(bits >> 24) % 4];
        for (int64_t i = 0; own[SAMPLING_CANDIDATES].rank && i < own->shape[1]; i++) {
            int32_t *candidates = tensor_row(&own[SAMPLING_CANDIDATES], row);
            candidates[i] = i % 7 == 6 ? -1 : (int32_t)(3 * (own->shape[1] - i));
        }
    }
}

#define NO_ROW_SETTINGS " temperatures:- top_ks:- top_ps:- min_ps:- candidates:-"

static const char *const cases[] = {
    "n_rows=1 vocab_size=111" NO_ROW_SETTINGS,
    "n_rows=17 vocab_size=320 candidates:-",
    "n_rows=9 vocab_size=1025 top_k_first=1 logits:BF16 candidates:-",
    "n_rows=7 vocab_size=500 logits:F16 logits+12 candidates:-",
    "n_rows=5 vocab_size=500 temperature=0.8 top_k=40 top_p=0.9 min_p=0.05" NO_ROW_SETTINGS,
    "n_rows=5 vocab_size=500 temperature=0" NO_ROW_SETTINGS,
    "n_rows=4 vocab_size=1 candidates:-",
    "n_rows=9 vocab_size=64 top_k_first=1",
    "n_rows=5 vocab_size=40 temperature=0.8 logits:BF16 candidates+3",
    "n_rows=0 vocab_size=111 candidates:-",
    NULL,
};

static const char *const workloads[] = {
    "llama-3.1-8b: n_rows=1 vocab_size=128256 top_p=0.9" NO_ROW_SETTINGS,
    "internlm2-1.8b: n_rows=4 vocab_size=92544 top_k=50 top_p=0.8" NO_ROW_SETTINGS,
    "smollm2-135m: n_rows=1 vocab_size=49152" NO_ROW_SETTINGS,
    NULL,
};

const op_info op_sampling = {
    .name = "sampling",
    .summary = "draws one token per row from its logits, by temperature, top-k, top-p and min-p",
    .place = "The last step of a forward pass, for the last token of each sequence.",
    .formula =
        "NaN is -inf, -0 is 0. m = max_i logits[i]. Temperature 0: the least i with logits[i] = m. "
        "Else z(i) = 0 where logits[i] = m, (logits[i] - m) / temperature elsewhere; "
        "w(i) = floor(2^40 exp(z(i))), an integer; W(i), N(i) = sum of w(j), number of j, over all "
        "j with logits[j] > logits[i]. Token i is kept when logits[i] > -inf and N(i) < top_k and "
        "W(i) < top_p * T and exp(z(i)) >= min_p; the largest logit always is. T is the sum of "
        "w(j) over all j, with top_k_first over those with N(j) < top_k. "
        "ids[r] = the kept i with the largest z(i) + g(i), the least i of equals; "
        "g(i) = -log(-log(u)), u = ((h >> 12) + 0.5) * 2^-52, "
        "h = hash_random(seeds[r], positions[r], i) of base/hash.h. With candidates, candidates[r, "
        "i] "
        "takes the place of i in h and in ids, and a negative one has the logit -inf",
    .precision =
        "float64, every operation rounded by itself (no fused products), exp and log as in "
        "definite.h: the choice is the same, bit for bit, on every machine. Sums are of "
        "integers, so they may be taken in any order. top_p * T is one float64 product, "
        "W(i) is below 2^63.",
    .edge_cases = "Tokens with equal logits are kept or dropped together, so that more than top_k "
                  "may remain. top_k of 0 or less, top_p of 1 or more and min_p of 0 or less keep "
                  "everything. A row without a logit above minus infinity "
                  "gives 0, or its first candidate. Logits of plus "
                  "infinity are the only ones kept in their row.",
    .source = "FlashInfer top_k_top_p_sampling_from_logits (filter_apply_order joint and "
              "top_k_first) and min_p_sampling_from_probs; Gumbel-max",
    .unit = "a row",
    .flops = "100 * n_rows * vocab_size",
    .axes = {{"n_rows", AXIS_VARIABLE, "sequences that need a token"},
             {"vocab_size", AXIS_CONSTANT, "logits in a row, at most 2^22"}},
    .tensors = {{"logits", OP_IN, OP_TYPE(F32) | OP_TYPE(F16) | OP_TYPE(BF16), "n_rows, vocab_size",
                 false, "rows may be strided"},
                {"seeds", OP_IN, OP_TYPE(I64), "n_rows", false, "64 bits a sequence"},
                {"positions", OP_IN, OP_TYPE(I32), "n_rows", false,
                 "of the token to be drawn in its sequence: the generator's counter"},
                {"temperatures", OP_IN, OP_TYPE(F32), "n_rows", true,
                 "a row's own, in place of the parameter"},
                {"top_ks", OP_IN, OP_TYPE(I32), "n_rows", true, "the same for top_k"},
                {"top_ps", OP_IN, OP_TYPE(F32), "n_rows", true, "the same for top_p"},
                {"min_ps", OP_IN, OP_TYPE(F32), "n_rows", true, "the same for min_p"},
                {"ids", OP_OUT, OP_TYPE(I32), "n_rows", false, "a token a row"},
                {"candidates", OP_IN, OP_TYPE(I32), "n_rows, vocab_size", true,
                 "the logits' tokens, as top_k leaves them; -1: none. Without, 0, 1, ..."}},
    .params = {{"temperature", PARAM_FLOAT, 1, "divides the logits; 0 takes the largest"},
               {"top_k", PARAM_INT, 0, "tokens to keep; 0: all"},
               {"top_p", PARAM_FLOAT, 1, "probability to keep; 1: all"},
               {"min_p", PARAM_FLOAT, 0, "least probability, relative to the largest"},
               {"top_k_first", PARAM_BOOL, 0,
                "top_p applies to what top_k kept, not to everything"}},
    .units = units,
    .check = check,
    .scratch_bytes = scratch_bytes,
    .prepare = prepare,
    .reference = sampling_reference,
    .variants = variants,
    .cuda = sampling_cuda,
    .cases = cases,
    .workloads = workloads,
    .fills = OP_FILL_HUGE | OP_FILL_INFINITY | OP_FILL_NAN,
};
