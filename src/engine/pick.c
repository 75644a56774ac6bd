/* Filters and draws on the CPU: see pick.h. */
#include "engine/pick.h"

#include "op/sampling/definite.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Candidates whose share of the likeliest is below e^-40 (4e-18) change no sum of doubles. */
enum { FARTHEST = 40 };
/* A number of its own for XTC's decision at each position. */
enum { XTC_STREAM = 0x787463 };

bool pick_is_needed(const double *v)
{
    return (v[QP_TYPICAL_P] > 0 && v[QP_TYPICAL_P] < 1) || v[QP_TOP_N_SIGMA] > 0 ||
           v[QP_MIN_KEEP] > 1 || v[QP_XTC_PROBABILITY] > 0 || v[QP_DRY_MULTIPLIER] != 0 ||
           v[QP_MIROSTAT] != 0;
}

static int by_logit(const void *x, const void *y)
{
    const pick_candidate *a = x, *b = y;
    if (a->logit != b->logit) return a->logit < b->logit ? 1 : -1;
    return a->token < b->token ? -1 : a->token > b->token;
}

static int by_shift(const void *x, const void *y)
{
    const pick_candidate *a = x, *b = y;
    if (a->shift != b->shift) return a->shift < b->shift ? -1 : 1;
    return by_logit(x, y);
}

static size_t least_kept(const double *v, size_t n)
{
    const size_t keep = v[QP_MIN_KEEP] > 1 ? (size_t)v[QP_MIN_KEEP] : 1;
    return keep < n ? keep : n;
}

/* The logit from which top-n-sigma keeps candidates. */
static double sigma_bound(const double *v, const pick_candidate *c, size_t n, double most)
{
    double sum = 0, squares = 0;
    size_t count = 0;
    for (size_t i = 0; i < n; i++) {
        if (c[i].logit == -INFINITY) continue;
        sum += c[i].logit;
        count++;
    }
    if (!(v[QP_TOP_N_SIGMA] > 0) || !count) return -INFINITY;
    const double mean = sum / (double)count;
    for (size_t i = 0; i < n; i++) {
        const double d = c[i].logit - mean;
        if (c[i].logit != -INFINITY) squares += d * d;
    }
    return most - v[QP_TOP_N_SIGMA] * sqrt(squares / (double)count);
}

static double temperature_of(const double *v)
{
    return v[QP_TEMPERATURE] > 0 ? v[QP_TEMPERATURE] : 1;
}

/* Keeps those that can have a share, sorted. */
static size_t collect(const double *v, pick_candidate *c, size_t n)
{
    double most = -INFINITY;
    size_t kept = 0;
    for (size_t i = 0; i < n; i++)
        if (c[i].logit > most) most = c[i].logit;
    double bound = sigma_bound(v, c, n, most);
    const double far = most - FARTHEST * temperature_of(v);
    if (far > bound && v[QP_MIN_KEEP] <= 1) bound = far;
    for (size_t i = 0; i < n; i++)
        if (c[i].logit >= bound && c[i].logit > -INFINITY) c[kept++] = c[i];
    qsort(c, kept, sizeof *c, by_logit);
    return kept;
}

/* Fills the probabilities of the first n, which are sorted. */
static void share(const double *v, pick_candidate *c, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += c[i].p = definite_exp((c[i].logit - c[0].logit) / temperature_of(v));
    for (size_t i = 0; i < n; i++)
        c[i].p /= sum;
}

/* How many of the first have the share together, `least` at least. */
static size_t count_share(const pick_candidate *c, size_t n, double wanted, size_t least)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        sum += c[i].p;
        if (sum >= wanted && i + 1 >= least) return i + 1;
    }
    return n;
}

/* Those whose information is nearest to the mean of all. */
static size_t keep_typical(const double *v, pick_candidate *c, size_t n)
{
    double entropy = 0;
    if (!(v[QP_TYPICAL_P] > 0 && v[QP_TYPICAL_P] < 1)) return n;
    for (size_t i = 0; i < n; i++)
        if (c[i].p > 0x1p-1022) entropy -= c[i].p * definite_log(c[i].p);
    for (size_t i = 0; i < n; i++)
        c[i].shift = c[i].p > 0x1p-1022 ? fabs(-definite_log(c[i].p) - entropy) : INFINITY;
    qsort(c, n, sizeof *c, by_shift);
    n = count_share(c, n, v[QP_TYPICAL_P], least_kept(v, n));
    qsort(c, n, sizeof *c, by_logit);
    return n;
}

static size_t keep_min_p(const double *v, const pick_candidate *c, size_t n)
{
    size_t kept = 1;
    while (kept < n && c[kept].p >= v[QP_MIN_P] * c[0].p)
        kept++;
    return kept < least_kept(v, n) ? least_kept(v, n) : kept;
}

/* Leaves out the likeliest, but for the last of those that have the threshold. */
static size_t exclude_top(const double *v, uint64_t seed, uint64_t position, pick_candidate *c,
                          size_t n)
{
    size_t likely = 0;
    if (!(v[QP_XTC_PROBABILITY] > 0) || v[QP_XTC_THRESHOLD] > 0.5 || n < 2) return n;
    const double chance = (double)(hash_random(seed, position, XTC_STREAM) >> 12) * 0x1p-52;
    while (likely < n && c[likely].p >= v[QP_XTC_THRESHOLD])
        likely++;
    if (chance >= v[QP_XTC_PROBABILITY] || likely < 2 || n - (likely - 1) < least_kept(v, n))
        return n;
    memmove(c, c + likely - 1, (n - (likely - 1)) * sizeof *c);
    return n - (likely - 1);
}

/* Those that surprise by mu bits at most. */
static size_t keep_surprise(pick_candidate *c, size_t n, double mu)
{
    size_t kept = 1;
    while (kept < n && -log2(c[kept].p) <= mu)
        kept++;
    return kept;
}

size_t pick_filter(const double *v, uint64_t seed, uint64_t position, double mu, pick_candidate *c,
                   size_t n)
{
    n = collect(v, c, n);
    if (n == 0) return 0;
    share(v, c, n);
    if (v[QP_MIROSTAT] != 0) {
        n = keep_surprise(c, n, mu);
        share(v, c, n);
        return n;
    }
    if (v[QP_TOP_K] > 0 && v[QP_TOP_K] < (double)n) {
        const size_t k = (size_t)v[QP_TOP_K];
        n = k > least_kept(v, n) ? k : least_kept(v, n);
        share(v, c, n);
    }
    n = keep_typical(v, c, n);
    share(v, c, n);
    if (v[QP_TOP_P] < 1) n = count_share(c, n, v[QP_TOP_P], least_kept(v, n));
    share(v, c, n);
    n = keep_min_p(v, c, n);
    share(v, c, n);
    n = exclude_top(v, seed, position, c, n);
    share(v, c, n);
    return n;
}

size_t pick_draw(const double *v, uint64_t seed, uint64_t position, const pick_candidate *c,
                 size_t n)
{
    size_t best = 0;
    double best_score = -INFINITY;
    for (size_t i = 0; v[QP_TEMPERATURE] > 0 && i < n; i++) {
        const double score = (c[i].logit - c[0].logit) / v[QP_TEMPERATURE] +
                             definite_gumbel(seed, position, (uint64_t)c[i].token);
        if (score > best_score) best = i;
        if (score > best_score) best_score = score;
    }
    return best;
}

/* ---- DRY ----------------------------------------------------------------------------------- */

/* lengths[i]: how many tokens that end at i are those that end the text; the Z function of the
 * reversed text, each entry of which is found from earlier ones. */
static void find_repetitions(const dry_text *t)
{
    size_t left = 0, right = 0; /* of the reversed text: a repetition that was found */
    const size_t n = t->n;
    for (size_t i = 1; i < n; i++) {
        size_t length = 0;
        if (i < right) {
            length = (size_t)t->lengths[n - 1 - (i - left)];
            if (length > right - i) length = right - i;
        }
        while (i + length < n && t->tokens[n - 1 - length] == t->tokens[n - 1 - i - length])
            length++;
        t->lengths[n - 1 - i] = (int32_t)length;
        if (i + length <= right) continue;
        left = i;
        right = i + length;
    }
}

void dry_penalise(const double *v, const dry_text *t, pick_candidate *c, size_t n_candidates,
                  int32_t *longest)
{
    const double allowed = v[QP_DRY_ALLOWED_LENGTH], base = v[QP_DRY_BASE] < 1 ? 1 : v[QP_DRY_BASE];
    if (v[QP_DRY_MULTIPLIER] == 0 || t->n < 2 || (double)t->limit < allowed) return;
    find_repetitions(t);
    for (size_t i = 0; i + 1 < t->n; i++) {
        const int32_t next = t->tokens[i + 1], limit = (int32_t)t->limit;
        const int32_t length = t->lengths[i] < limit ? t->lengths[i] : limit;
        if (length > longest[next]) longest[next] = length;
    }
    for (size_t i = 0; i < n_candidates; i++) {
        const double length = longest[c[i].token];
        if (length > 0 && length >= allowed)
            c[i].logit -= v[QP_DRY_MULTIPLIER] * fmin(pow(base, length - allowed), 1e30);
    }
}
