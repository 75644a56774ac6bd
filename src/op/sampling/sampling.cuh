/* sampling on the GPU: the token that the CPU chooses, bit for bit.
 *
 * A team of blocks has a row, each block a slice of its logits. They find the largest noisy logit
 * of all tokens first and check it against the filters afterwards. For that one sum over the tokens
 * with larger logits is enough: how many there are, and their weight. If the token is not kept,
 * nothing below it is kept either, and the best token above it, which the same step has found, is
 * next. So a draw takes one exchange between blocks for the largest logit, one for the best token,
 * and one for each token that is checked; the first one is kept as often as the filters keep
 * probability.
 *
 * Nothing here depends on how a compiler rounds: products that go into sums are not fused, sums are
 * of integers, and estimates in float32 only exclude what cannot win.
 */
#pragma once

#include "op/device.cuh"
#include "op/sampling/definite.h"

enum { SAMPLE_WEIGHT_BITS = 40 };

struct sample_settings {
    double temperature, top_p, min_p;
    int64_t top_k; /* 0: all */
    bool top_k_first;
    uint64_t seed, position;
};

/* A slice of a row: the best of its tokens, and sums over some of them. */
struct sample_part {
    double score;
    unsigned long long weight, total;
    uint32_t key, count;
    int32_t id; /* -1: none */
};

/* What a team is. Each of its blocks has threads for the row, whole warps of them, and all threads
 * of a block call its functions together.
 *
 *     int32_t begin, end           the tokens that this block looks at
 *     int thread, threads          those of the block that have this row
 *     bool TOP_K_FIRST             whether that setting is for it
 *     sample_part *cells           in shared memory: a warp's
 *     sample_view *view            in shared memory
 *     uint32_t *keys               in shared memory
 *     float logit(int32_t token)
 *     void sync()                  waits for the block's threads
 *     bool any(bool)               whether it is so in any thread of the block, of any row
 *     int gather(uint32_t key)     of the largest key of every thread: the largest keys of slices,
 *                                  all of them, to `keys`; how many there are
 *     void exchange(sample_part &) the merged part of all threads of all blocks
 */

/* ---- a token -------------------------------------------------------------------------------- */

/* Floats as integers of the same order; NaN as minus infinity, -0 as 0. */
DEVICE_FN uint32_t sample_key_of(float logit)
{
    if (isnan(logit)) logit = -CUDART_INF_F;
    uint32_t bits = __float_as_uint(logit + 0.0f);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

DEVICE_FN float sample_logit_of(uint32_t key)
{
    return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

/* A row as its filters see it. In shared memory, because little of it is needed at a time. */
struct sample_view {
    double largest, temperature, inverse; /* 1 / temperature: for estimates */
    double min_p, top_p;
    uint64_t seed, position, stream;
    unsigned long long total; /* weight of all tokens, or of those that top-k left */
    uint32_t max_key, bound;
};

/* Logarithm of a token's probability over the largest one's. */
DEVICE_FN double sample_distance(const sample_view &v, uint32_t key)
{
    if (key == v.max_key) return 0;
    return definite_quotient((double)sample_logit_of(key) - v.largest, v.temperature);
}

/* The same, to seven digits. */
DEVICE_FN float sample_distance_about(const sample_view &v, uint32_t key)
{
    if (key == v.max_key) return 0;
    return (float)(((double)sample_logit_of(key) - v.largest) * v.inverse);
}

/* Gumbel noise to an error of 1e-4. u is near 0 or near 1, and its complement then near 0. */
DEVICE_FN float sample_noise_about(uint64_t hash)
{
    bool upper = hash >> 63;
    float x = ((float)((upper ? ~hash : hash) >> 12) + 0.5f) * 0x1p-52f;
    float minus_log = -__logf(upper ? 1 - x : x);
    if (upper && x < 0.0625f) minus_log = x * (1 + x * (0.5f + x * (1 / 3.0f + x * 0.25f)));
    return -__logf(minus_log);
}

/* Whether min-p keeps a token; only near the border is its probability needed exactly. */
DEVICE_FN bool sample_is_likely(const sample_view &v, uint32_t key, float distance)
{
    if (!(v.min_p > 0) || key == v.max_key) return true;
    float share = __expf(distance), least = (float)v.min_p;
    if (share > least * 1.001f) return true;
    if (share < least * 0.999f) return false;
    return !(definite_exp(sample_distance(v, key)) < v.min_p);
}

/* Noise is between -3.61 and 36.74, so nothing beyond this distance can win against the largest;
 * beyond the other a weight is 0. */
#define SAMPLE_FARTHEST   -41.0f
#define SAMPLE_WEIGHTLESS -28.5f

/* A token's noisy logit to an error of 1e-3; minus infinity if it cannot win. */
DEVICE_FN float sample_score_about(const sample_view &v, uint32_t key, int32_t token)
{
    if (v.temperature == 0) return key == v.max_key ? 0 : -CUDART_INF_F;
    float distance = sample_distance_about(v, key);
    if (!(distance > SAMPLE_FARTHEST) || !sample_is_likely(v, key, distance)) return -CUDART_INF_F;
    return distance + sample_noise_about(hash_mix(v.stream ^ (uint64_t)token));
}

DEVICE_FN double sample_score(const sample_view &v, uint32_t key, int32_t token)
{
    if (v.temperature == 0) return 0;
    return sample_distance(v, key) + definite_gumbel(v.seed, v.position, (uint64_t)token);
}

DEVICE_FN unsigned long long sample_weight(const sample_view &v, uint32_t key)
{
    if (!(sample_distance_about(v, key) > SAMPLE_WEIGHTLESS)) return 0;
    double share = definite_exp(sample_distance(v, key));
    return (unsigned long long)(share * (double)(1ull << SAMPLE_WEIGHT_BITS));
}

/* ---- parts ---------------------------------------------------------------------------------- */

DEVICE_FN sample_part sample_nothing(void)
{
    return sample_part{0, 0, 0, 0, 0, -1};
}

/* The larger score first, of equal scores the lower id; any token before none. */
DEVICE_FN bool sample_before(const sample_part &a, const sample_part &b)
{
    if (a.id < 0 || b.id < 0) return a.id >= 0;
    return a.score > b.score || (a.score == b.score && a.id < b.id);
}

DEVICE_FN void sample_merge(sample_part &a, const sample_part &b)
{
    if (sample_before(b, a)) a.score = b.score, a.key = b.key, a.id = b.id;
    a.weight += b.weight;
    a.total += b.total;
    a.count += b.count;
}

/* The first part of a warp's lanes, in every lane. */
DEVICE_FN void sample_merge_warp(sample_part &p)
{
    bool some = __any_sync(ALL_LANES, p.id >= 0);
#pragma unroll 1
    for (int step = WARP / 2; some && step > 0; step /= 2) {
        sample_part other = {
            __shfl_xor_sync(ALL_LANES, p.score, step), 0, 0,
            __shfl_xor_sync(ALL_LANES, p.key, step),   0, __shfl_xor_sync(ALL_LANES, p.id, step)};
        sample_merge(p, other);
    }
    p.count = __reduce_add_sync(ALL_LANES, p.count);
    if (!__any_sync(ALL_LANES, (p.weight | p.total) != 0)) return;
#pragma unroll 1
    for (int step = WARP / 2; step > 0; step /= 2) {
        p.weight += __shfl_xor_sync(ALL_LANES, p.weight, step);
        p.total += __shfl_xor_sync(ALL_LANES, p.total, step);
    }
}

/* The first part of the block's threads of a row, in every one of them. */
template <typename TEAM> DEVICE_FN void sample_merge_block(TEAM &t, sample_part &p)
{
    int lane = t.thread % WARP;
    sample_merge_warp(p);
    t.sync(); /* no thread reads the cells' earlier contents any more */
    if (lane == 0) t.cells[t.thread / WARP] = p;
    t.sync();
    p = lane < t.threads / WARP ? t.cells[lane] : sample_nothing();
    sample_merge_warp(p);
}

template <typename TEAM> DEVICE_FN uint32_t sample_max_of_block(TEAM &t, uint32_t value)
{
    int lane = t.thread % WARP;
    value = __reduce_max_sync(ALL_LANES, value);
    t.sync();
    if (lane == 0) t.cells[t.thread / WARP].key = value;
    t.sync();
    return __reduce_max_sync(ALL_LANES, lane < t.threads / WARP ? t.cells[lane].key : 0);
}

/* ---- a slice -------------------------------------------------------------------------------- */

/* The best of this thread's tokens whose keys are `lowest` or larger. Estimates of all come first,
 * so that few tokens, by few threads, are computed exactly. */
template <typename TEAM> DEVICE_FN sample_part sample_best(TEAM &t, uint32_t lowest)
{
    const sample_view &v = *t.view;
    const uint32_t nothing = sample_key_of(-CUDART_INF_F);
    uint32_t most = nothing, least = 0;
    sample_part best = sample_nothing();
    if (lowest <= nothing) lowest = nothing + 1;
#pragma unroll 1
    for (int exactly = 0; exactly < 2; exactly++) {
#pragma unroll 1
        for (int32_t i = t.begin + t.thread; most >= least && i < t.end; i += t.threads) {
            uint32_t key = sample_key_of(t.logit(i));
            if (key < lowest) continue;
            uint32_t about = sample_key_of(sample_score_about(v, key, i));
            if (!exactly) most = max(most, about);
            if (!exactly || about < least) continue;
            sample_part one = {sample_score(v, key, i), 0, 0, key, 0, i};
            if (sample_before(one, best)) best = one;
        }
        if (exactly) break;
        uint32_t of_block = sample_max_of_block(t, most);
        least = of_block > nothing ? sample_key_of(sample_logit_of(of_block) - 0x1p-7f) : ~0u;
    }
    return best;
}

/* Adds up this thread's tokens with keys above `key`: their number, and if `weighted` their weight;
 * and if `total` the weight of all from `lowest` on. */
template <typename TEAM>
DEVICE_FN void sample_add_up(TEAM &t, uint32_t key, bool weighted, bool total, uint32_t lowest,
                             sample_part &sums)
{
    const sample_view &v = *t.view;
#pragma unroll 1
    for (int32_t i = t.begin + t.thread; i < t.end; i += t.threads) {
        uint32_t other = sample_key_of(t.logit(i));
        sums.count += other > key;
        if (!weighted || !(other > key || (total && other >= lowest))) continue;
        unsigned long long weight = sample_weight(v, other);
        if (other > key) sums.weight += weight;
        sums.total += weight;
    }
}

/* ---- a row ---------------------------------------------------------------------------------- */

/* A lower bound of the k-th largest key: the k-th largest of the largest keys of n slices; 0 if
 * there are fewer. */
template <typename TEAM> DEVICE_FN uint32_t sample_bound(TEAM &t, int n, int64_t k)
{
    if (t.thread == 0) t.view->bound = 0;
    t.sync();
    for (int i = t.thread; i < n && k <= n; i += t.threads) {
        uint32_t key = t.keys[i];
        int before = 0;
        for (int j = 0; j < n; j++)
            before += t.keys[j] > key || (t.keys[j] == key && j < i);
        if (before == k - 1) t.view->bound = key;
    }
    t.sync();
    return t.view->bound;
}

/* The k-th largest key, which is in [low, high], by bisection. Only where a block has one row. */
template <typename TEAM>
DEVICE_FN uint32_t sample_kth(TEAM &t, int64_t k, uint32_t low, uint32_t high)
{
    while (low < high) {
        uint32_t middle = low + (high - low - 1) / 2 + 1;
        sample_part from = sample_nothing();
        for (int32_t i = t.begin + t.thread; i < t.end; i += t.threads)
            from.count += sample_key_of(t.logit(i)) >= middle;
        t.exchange(from);
        if (from.count >= k)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

/* The largest key, in every thread; fills in the row's view. */
template <typename TEAM>
DEVICE_FN void sample_look(TEAM &t, const sample_settings &with, int slices)
{
    uint32_t largest = 0;
    for (int i = t.thread % WARP; i < slices; i += WARP)
        largest = max(largest, t.keys[i]);
    largest = __reduce_max_sync(ALL_LANES, largest);
    if (t.thread == 0)
        *t.view = sample_view{(double)sample_logit_of(largest),
                              with.temperature,
                              definite_quotient(1, with.temperature),
                              with.min_p,
                              with.top_p,
                              with.seed,
                              with.position,
                              hash_mix(hash_mix(with.seed) ^ with.position),
                              0,
                              largest,
                              0};
    t.sync();
}

/* Chooses a token of n, in every thread of every block; 0 if no logit is above minus infinity. */
template <typename TEAM>
DEVICE_FN int32_t sample_row(TEAM &t, const sample_settings &with, int64_t n)
{
    uint32_t largest = 0;
#pragma unroll 4
    for (int32_t i = t.begin + t.thread; i < t.end; i += t.threads)
        largest = max(largest, sample_key_of(t.logit(i)));
    int slices = t.gather(largest);
    sample_look(t, with, slices);
    largest = t.view->max_key;
    bool by_count = with.top_k > 0 && with.top_k < n, by_weight = with.top_p < 1;
    uint32_t lowest = sample_bound(t, slices, by_count ? with.top_k : INT64_MAX), weighed = 0;
    if (with.temperature == 0) lowest = largest;
    if (TEAM::TOP_K_FIRST && by_count && by_weight && with.top_k_first && with.temperature != 0)
        lowest = weighed = sample_kth(t, with.top_k, lowest, largest);

    sample_part best = sample_nothing();
    bool open = true;
#pragma unroll 1
    for (int round = 0; t.any(open); round++) {
        sample_part next = sample_best(t, open ? lowest : ~0u);
        if (open && round > 0) sample_add_up(t, best.key, by_weight, round == 1, weighed, next);
        t.exchange(next);
        if (round == 1 && t.thread == 0) t.view->total = next.total;
        if (round == 1) t.sync();
        bool kept = round > 0 && (!by_count || next.count < with.top_k) &&
                    (!by_weight || (double)next.weight < t.view->top_p * (double)t.view->total);
        if (open && !kept) best.key = next.key, best.id = next.id;
        open = open && !kept && best.id >= 0 && best.key != largest && (by_count || by_weight);
        lowest = best.key + 1;
    }
    return best.id < 0 ? 0 : best.id;
}
