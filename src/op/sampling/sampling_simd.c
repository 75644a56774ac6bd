/* sampling in vectors, with the same choice bit for bit: see sampling.c.
 *
 * Vectors process whole rows for their maximum, for their weights (the arithmetic of definite_exp()
 * in as many lanes), and for the draw. Thresholds are searched only among few candidates. Of the
 * noise only the hash is computed for all tokens: it bounds the noise from above, and only a
 * handful of tokens can win within that bound.
 */
#include "op/sampling/definite.h"
#include "op/sampling/sampling_row.h"
#include "op/simd.h"

#include <float.h>

/* One row. */
typedef struct fast_row {
    float *logits;    /* (n + LANES) NaN and -0 replaced; minus infinity after the last */
    float *picked;    /* (n + LANES) candidates */
    uint64_t *shares; /* (n + LANES) their weights */
    uint32_t *keys;   /* (n) their keys */
    int64_t n;
    float largest;
    double temperature;
} fast_row;

static fast_row lay_out(void *scratch, int64_t n)
{
    fast_row row = {.shares = scratch, .n = n};
    row.logits = (float *)(row.shares + n + LANES);
    row.picked = row.logits + n + LANES;
    row.keys = (uint32_t *)(row.picked + n + LANES);
    return row;
}

/* Reads the logits; returns the first id of the largest. */
SIMD_FN int32_t read_row(dtype type, const void *in, fast_row *row)
{
    vf least = vf_set1(-INFINITY), largest = least;
    for (int64_t i = 0; i < row->n; i += LANES) {
        vf x = vf_add(vf_max(vf_load_n(type, in, i, row->n - i), least), vf_zero());
        x = vf_first_n(x, row->n - i, least);
        largest = vf_max(x, largest);
        vf_storeu(row->logits + i, x);
    }
    row->largest = vf_max_of_lanes(largest);
    for (int64_t i = 0;; i += LANES) {
        unsigned found = vf_eq_mask(vf_loadu(row->logits + i), vf_set1(row->largest));
        if (found) return (int32_t)(i + __builtin_ctz(found));
    }
}

/* --- candidates ------------------------------------------------------------------------------ */

/* Appends the logits in [low, high), and their keys, to `count` candidates; returns the new count.
 * An infinite `high` is no limit. */
static int64_t collect(const fast_row *row, float low, float high, int64_t count)
{
    for (int64_t i = 0; i < row->n; i += LANES) {
        vf x = vf_loadu(row->logits + i);
        unsigned found = vf_ge_mask(x, vf_set1(low));
        if (high < INFINITY) found &= ~vf_ge_mask(x, vf_set1(high));
        if (row->n - i < LANES) found &= (1u << (row->n - i)) - 1;
        for (; found; found &= found - 1, count++) {
            row->picked[count] = row->logits[i + __builtin_ctz(found)];
            row->keys[count] = key_of(row->picked[count]);
        }
    }
    return count;
}

/* The k-th largest logit, k < n. The k-th largest of the maxima of some parts of the row bounds it
 * from below, and few tokens are above that. */
static float kth_largest(const fast_row *row, int64_t k)
{
    enum { PARTS_EACH = 4, LEAST_PARTS = 64 };
    int64_t vectors = row->n / LANES, parts = (PARTS_EACH * k + LANES - 1) / LANES, count = 0;
    if (parts < LEAST_PARTS) parts = LEAST_PARTS;
    float bound = -INFINITY;
    if (parts <= vectors / 2) {
        for (int64_t part = 0; part < parts; part++) {
            vf largest = vf_set1(-INFINITY);
            for (int64_t i = part; i < vectors; i += parts)
                largest = vf_max(vf_loadu(row->logits + i * LANES), largest);
            float lanes[LANES];
            vf_storeu(lanes, largest);
            for (int lane = 0; lane < LANES; lane++)
                row->keys[count++] = key_of(lanes[lane]);
        }
        bound = logit_of(threshold(row->keys, NULL, count, (above){0}, k, 0));
    }
    count = collect(row, bound, INFINITY, 0);
    return logit_of(threshold(row->keys, NULL, count, (above){0}, k, 0));
}

/* --- weights --------------------------------------------------------------------------------- */

/* definite_exp(), operation by operation. */
SIMD_FN vd exp_lanes(vd x)
{
    vd k = vd_truncate(vd_sub(vd_mul(x, vd_set1(0x1.71547652b82fep+0)), vd_set1(0.5)));
    vd r = vd_sub(x, vd_mul(k, vd_set1(0x1.62e42feep-1)));
    r = vd_sub(r, vd_mul(k, vd_set1(0x1.a39ef35793c76p-33)));
    vd sum = vd_set1(1);
    for (int n = 13; n > 0; n--)
        sum = vd_add(vd_set1(1), vd_mul(vd_mul(sum, r), vd_set1(1.0 / n)));
    /* 2^52 + 1023 + k has 1023 + k in its lowest bits. */
    vu power = vu_left(vd_bits(vd_add(k, vd_set1(0x1p52 + 1023))), 52);
    return vd_where_greater(vd_mul(sum, vd_from_bits(power)), x, vd_set1(-700));
}

/* distance_of() and the weights of it. */
SIMD_FN vu weigh_lanes(const fast_row *row, vd x)
{
    vd largest = vd_set1(row->largest);
    vd distance = vd_div(vd_sub(x, largest), vd_set1(row->temperature));
    vd share = exp_lanes(vd_where_unequal(distance, x, largest));
    vd weight = vd_truncate(vd_mul(share, vd_set1((double)((uint64_t)1 << WEIGHT_BITS))));
    return vu_and(vd_bits(vd_add(weight, vd_set1(0x1p52))), vu_set1(((uint64_t)1 << 52) - 1));
}

static uint64_t total_of(vu lanes)
{
    uint64_t words[LANES / 2], total = 0;
    vu_storeu(words, lanes);
    for (int i = 0; i < LANES / 2; i++)
        total += words[i];
    return total;
}

/* Fills the weights of candidates [from, to); returns their sum. */
static uint64_t weigh_candidates(const fast_row *row, int64_t from, int64_t to)
{
    uint64_t sum = 0;
    for (int64_t i = to; i < to + LANES; i++)
        row->picked[i] = -INFINITY; /* weighs nothing */
    for (int64_t i = from; i < to; i += LANES) {
        vf x = vf_loadu(row->picked + i);
        for (int half = 0; half < 2; half++)
            vu_storeu(row->shares + i + half * LANES / 2, weigh_lanes(row, vd_widen(x, half)));
    }
    for (int64_t i = from; i < to; i++)
        sum += row->shares[i];
    return sum;
}

/* The sum of all weights of logits from `lowest` on. */
static uint64_t total_weight(const fast_row *row, float lowest)
{
    vu total = vu_set1(0);
    for (int64_t i = 0; i < row->n; i += LANES) {
        vf x = vf_loadu(row->logits + i);
        for (int half = 0; half < 2; half++) {
            vd wide = vd_widen(x, half);
            total = vu_add_where(total, weigh_lanes(row, wide), wide, vd_set1(lowest));
        }
    }
    return total_of(total);
}

/* --- top-p ----------------------------------------------------------------------------------- */

/* Borders between tokens whose weights are computed and those whose weights are estimated, as
 * distances from the largest. */
enum { CUTS = 6 };
static const double cut_distance[CUTS] = {-1.5, -3, -5, -8, -12, -18};

/* Estimates of the weights of logits in [lowest, cut[c]), in float32 with powers of 2. */
typedef struct estimate {
    float cut[CUTS];
    double below[CUTS];
} estimate;

/* Their relative errors: 40 * 3 * 2^-24 from a rounded exponent, 64 * 2^-24 from the sums of
 * floats, 2^-23 from the power; together below 2^-16. */
static const double estimate_error = 0x1p-16;

static estimate estimate_weights(const fast_row *row, float lowest)
{
    enum { RUN = 64 * LANES };
    estimate result = {.below = {0}};
    vf scale = vf_set1((float)(1.4426950408889634 / row->temperature));
    for (int c = 0; c < CUTS; c++)
        result.cut[c] = (float)(row->largest + row->temperature * cut_distance[c]);
    for (int64_t run = 0; run < row->n; run += RUN) {
        vf sums[CUTS];
        for (int c = 0; c < CUTS; c++)
            sums[c] = vf_zero();
        int64_t end = run + RUN < row->n ? run + RUN : row->n;
        for (int64_t i = run; i < end; i += LANES) {
            vf x = vf_loadu(row->logits + i);
            vf distance = vf_mul(vf_sub(x, vf_set1(row->largest)), scale);
            vf weight = vf_where_ge(vf_exp2_flush(distance), x, vf_set1(lowest));
            for (int c = 0; c < CUTS; c++)
                sums[c] = vf_add_unless_ge(sums[c], weight, x, vf_set1(result.cut[c]));
        }
        for (int c = 0; c < CUTS; c++) {
            float lanes[LANES];
            vf_storeu(lanes, sums[c]);
            for (int lane = 0; lane < LANES; lane++)
                result.below[c] += lanes[lane];
        }
    }
    return result;
}

/* The least logit that top-p keeps of those from `lowest` on, computed from all weights. */
static float lightest_exactly(const fast_row *row, double top_p, float lowest)
{
    int64_t count = collect(row, lowest, INFINITY, 0);
    double most = top_p * (double)weigh_candidates(row, 0, count);
    return logit_of(threshold(row->keys, row->shares, count, (above){0}, row->n, most));
}

/* The same. Only candidates near the border are weighed, and the rest of the total is estimated
 * between two bounds: where both bounds give the same border, it is the border. */
static float lightest_kept(const fast_row *row, double top_p, float lowest)
{
    if (!(row->temperature > 1e-30 && row->temperature < 1e30) || !isfinite(row->largest))
        return lightest_exactly(row, top_p, lowest);
    estimate rest = estimate_weights(row, lowest);
    uint64_t weight = 0;
    int64_t count = 0;
    float high = INFINITY;
    for (int c = 0; c < CUTS; c++) {
        float low = rest.cut[c] > lowest ? rest.cut[c] : lowest;
        int64_t from = count;
        count = collect(row, low, high, from);
        above above = {.weight = weight};
        weight += weigh_candidates(row, from, count);
        high = low;
        /* Upper and lower bound of the total: a weight is rounded down by up to 1. The factors
         * cover the rounding of these sums themselves. */
        double below = rest.below[c] * (double)((uint64_t)1 << WEIGHT_BITS);
        double most = (double)weight + below * (1 + estimate_error);
        double least = (double)weight + below * (1 - estimate_error) - (double)row->n;
        most *= top_p * (1 + 0x1p-40);
        least *= top_p * (1 - 0x1p-40);
        if ((double)weight < most) continue;
        if ((double)above.weight < least && count > from) {
            uint32_t key =
                threshold(row->keys + from, row->shares + from, count - from, above, row->n, least);
            uint64_t kept = above.weight;
            for (int64_t i = from; i < count; i++)
                kept += row->keys[i] >= key ? row->shares[i] : 0;
            if ((double)kept >= most) return logit_of(key);
        }
        most = top_p * (double)total_weight(row, lowest);
        return logit_of(threshold(row->keys, row->shares, count, (struct above){0}, row->n, most));
    }
    return lightest_exactly(row, top_p, lowest);
}

/* The least logit that top-k and top-p keep. */
static float filter(const fast_row *row, settings with, bool top_k_first)
{
    bool by_count = with.top_k > 0 && with.top_k < row->n;
    float lowest = by_count ? kth_largest(row, with.top_k) : -INFINITY;
    if (!(with.top_p < 1)) return lowest;
    float lightest = lightest_kept(row, with.top_p, top_k_first ? lowest : -INFINITY);
    return lightest > lowest ? lightest : lowest;
}

/* --- the draw -------------------------------------------------------------------------------- */

/* hash_mix(), operation by operation. */
SIMD_FN vu mix_lanes(vu x)
{
    x = vu_add(x, vu_set1(0x9e3779b97f4a7c15u));
    x = vu_mul(vu_xor(x, vu_right(x, 30)), vu_set1(0xbf58476d1ce4e5b9u));
    x = vu_mul(vu_xor(x, vu_right(x, 27)), vu_set1(0x94d049bb133111ebu));
    return vu_xor(x, vu_right(x, 31));
}

/* A lower bound of 1 - u for tokens first ..., where u is the uniform number of their noise: the
 * complement of the hash's upper 23 bits. */
SIMD_FN vf complements(uint64_t stream, int64_t first)
{
    vd part[2];
    for (int half = 0; half < 2; half++) {
        vu hash = mix_lanes(vu_xor(vu_set1(stream), vu_count((uint64_t)first + half * LANES / 2)));
        vu bits = vu_xor(vu_right(hash, 41), vu_set1(0x4330000000000000u | 0x7fffff));
        part[half] = vd_sub(vd_from_bits(bits), vd_set1(0x1p52));
    }
    return vf_mul(vf_narrow(part[0], part[1]), vf_set1(0x1p-23f));
}

/* The kept token with the largest noisy logit, the lowest id of equals.
 *
 * A token's noise -ln(-ln u) is more than g only if 1 - u <= -ln u < e^-g. So a token at distance d
 * beats the best score so far only if 1 - u < e^(d - best), where a margin of 2% covers the errors
 * of computing that in float32 (and what is too far for the margin to cover has e^-88 and less,
 * while 1 - u is 0 or at least 2^-23). */
static int32_t draw(const fast_row *row, float lowest, double min_p, int32_t best, uint64_t seed,
                    uint64_t position)
{
    uint64_t stream = hash_mix(hash_mix(seed) ^ position);
    double best_score = definite_gumbel(seed, position, (uint64_t)best);
    /* Outside of this range of temperatures all distances are bounded by 0. */
    bool usual = row->temperature > 1e-30 && row->temperature < 1e30;
    float scale = usual ? (float)(1.4426950408889634 / row->temperature) : 0;
    vf least = vf_set1(lowest > -FLT_MAX ? lowest : -FLT_MAX);
    vf offset = vf_set1((float)(1.4426950408889634 * best_score));
    for (int64_t i = 0; i < row->n; i += LANES) {
        vf x = vf_loadu(row->logits + i);
        unsigned possible = vf_ge_mask(x, least);
        if (!possible) continue;
        vf power = vf_mul(vf_sub(x, vf_set1(row->largest)), vf_set1(scale));
        power = vf_exp2_flush(vf_min(vf_sub(power, offset), vf_set1(1)));
        vf bound = vf_mul(power, vf_set1(1.02f));
        possible &= ~vf_ge_mask(complements(stream, i), bound);
        for (; possible; possible &= possible - 1) {
            int32_t token = (int32_t)i + __builtin_ctz(possible);
            double distance = distance_of(row->logits[token], row->largest, row->temperature);
            if (min_p > 0 && row->logits[token] != row->largest && definite_exp(distance) < min_p)
                continue;
            double score = distance + definite_gumbel(seed, position, (uint64_t)token);
            if (score < best_score || (score == best_score && token >= best)) continue;
            best = token;
            best_score = score;
            offset = vf_set1((float)(1.4426950408889634 * best_score));
        }
    }
    return best;
}

SIMD_KERNEL(sampling)(const op_call *call)
{
    const tensor *logits = &call->tensors[SAMPLING_LOGITS];            /* (n_rows, vocab_size) */
    const int64_t *seeds = call->tensors[SAMPLING_SEEDS].data;         /* (n_rows) */
    const int32_t *positions = call->tensors[SAMPLING_POSITIONS].data; /* (n_rows) */
    int32_t *ids = call->tensors[SAMPLING_IDS].data;                   /* (n_rows) */
    fast_row row = lay_out(call->scratch, logits->shape[1]);

    for (int64_t r = call->begin; r < call->end; r++) {
        settings with = row_settings(call, r);
        const void *in = tensor_row(logits, r);
        if (logits->type == DTYPE_F32)
            ids[r] = read_row(DTYPE_F32, in, &row);
        else
            ids[r] = read_row(logits->type, in, &row);
        if (with.temperature == 0 || row.largest == -INFINITY) continue;
        row.temperature = with.temperature;
        float lowest = filter(&row, with, call->params[SAMPLING_TOP_K_FIRST] != 0);
        ids[r] = draw(&row, lowest, with.min_p, ids[r], (uint64_t)seeds[r], (uint64_t)positions[r]);
    }
}
