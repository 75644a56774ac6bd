/* chain_speculative_sampling with the draw in vectors: the sums of stretches of the vocabulary are
 * added up until one crosses the value sought, and that stretch is searched token by token. */
#include "op/chain_speculative_sampling/chain_speculative_sampling.h"

#include "op/prob_weight.h"
#include "op/simd.h"

#include <math.h>

enum { STRETCH = 1024 };

/* What is drawn from: rows of both models. */
typedef struct pair {
    dtype target_type, draft_type;
    const void *target, *draft; /* (n); draft NULL: absent */
    int64_t n;
} pair;

/* prob_weight() as whole numbers in doubles: those below 2^52 are exact. */
SIMD_FN vd weigh(vf probability, int half)
{
    return vd_truncate(vd_mul(vd_widen(probability, half), vd_set1(PROB_WEIGHT_ONE)));
}

SIMD_FN vf load_probabilities(dtype type, const void *row, int64_t i, int64_t n)
{
    return vf_min(vf_set1(1), vf_max(vf_load_n(type, row, i, n), vf_zero()));
}

/* Weights of elements i .. i + LANES - 1, zeros from n on; whole numbers up to 2^40. */
SIMD_FN void weigh_lanes(const pair *rows, int64_t i, vd weights[2])
{
    vf target = load_probabilities(rows->target_type, rows->target, i, rows->n - i);
    vf draft = vf_zero();
    if (rows->draft) draft = load_probabilities(rows->draft_type, rows->draft, i, rows->n - i);
    for (int half = 0; half < 2; half++) {
        vd more = vd_sub(weigh(target, half), weigh(draft, half));
        weights[half] = vd_where_greater(more, more, vd_set1(0));
    }
}

/* Their sum over a stretch, below 2^51 and so exact in every order. */
static double sum_stretch(const pair *rows, int64_t begin)
{
    int64_t end = begin + STRETCH < rows->n ? begin + STRETCH : rows->n;
    vd sums[2] = {vd_set1(0), vd_set1(0)}, weights[2];
    for (int64_t i = begin; i < end; i += LANES) {
        weigh_lanes(rows, i, weights);
        sums[0] = vd_add(sums[0], weights[0]);
        sums[1] = vd_add(sums[1], weights[1]);
    }
    double lanes[LANES / 2], sum = 0;
    vu_storeu((uint64_t *)lanes, vd_bits(vd_add(sums[0], sums[1])));
    for (int lane = 0; lane < LANES / 2; lane++)
        sum += lanes[lane];
    return sum;
}

/* The first token of the stretch at which the sum is more than `sought`, or the last with a weight;
 * -1 if none has one. */
static int64_t search_stretch(const pair *rows, int64_t begin, uint64_t sum, double sought)
{
    int64_t end = begin + STRETCH < rows->n ? begin + STRETCH : rows->n, last = -1;
    for (int64_t i = begin; i < end; i += LANES) {
        vd weights[2];
        double lanes[LANES];
        weigh_lanes(rows, i, weights);
        vu_storeu((uint64_t *)lanes, vd_bits(weights[0]));
        vu_storeu((uint64_t *)lanes + LANES / 2, vd_bits(weights[1]));
        for (int lane = 0; lane < LANES; lane++) {
            if (lanes[lane] == 0) continue;
            last = i + lane;
            sum += (uint64_t)lanes[lane];
            if ((double)sum > sought) return last;
        }
    }
    return last;
}

static int64_t draw_from(const pair *rows, double uniform)
{
    uint64_t total = 0, sum = 0;
    int64_t last = -1; /* the last stretch with a weight */
    for (int64_t begin = 0; begin < rows->n; begin += STRETCH)
        total += (uint64_t)sum_stretch(rows, begin);
    if (total == 0) return -1;
    double sought = uniform * (double)total;
    for (int64_t begin = 0; begin < rows->n; begin += STRETCH) {
        uint64_t own = (uint64_t)sum_stretch(rows, begin);
        if (own == 0) continue;
        if ((double)(sum + own) > sought) return search_stretch(rows, begin, sum, sought);
        last = begin;
        sum += own;
    }
    return search_stretch(rows, last, 0, INFINITY);
}

static int64_t draw_token(const op_call *call, const chain_draw *draw)
{
    const tensor *target = &call->tensors[CHAIN_SAMPLING_TARGET_PROBS];
    pair rows = {.target_type = target->type,
                 .draft_type = call->tensors[CHAIN_SAMPLING_DRAFT_PROBS].type,
                 .target = draw->target,
                 .draft = draw->draft,
                 .n = target->shape[2]};
    int64_t token = draw_from(&rows, draw->uniform);
    rows.draft = NULL;
    if (token < 0 && draw->draft) token = draw_from(&rows, draw->uniform);
    return token < 0 ? rows.n - 1 : token;
}

SIMD_KERNEL(chain_speculative_sampling)(const op_call *call)
{
    chain_sampling_run(call, draw_token);
}
