/* sampling of a row in which estimates decide nearly everything: see sampling.cuh for what is
 * chosen.
 *
 * The largest noisy logit is the first arrival of a race: a token's arrival is E / w, where w is
 * its probability over the largest one's and E = -ln u, u its random number; its noise is -ln E. E
 * is at least 1 - u, so of most tokens the first 32 bits of u say that they arrive later than one
 * that is known already, without a logarithm. Those that may be first are computed exactly.
 *
 * Whether a token is kept by top-p is decided with sums of float32 weights, unless they are so
 * close to the border that their error matters; then the exact weights are added.
 */
#pragma once

#include "op/sampling/sampling.cuh"

/* Estimated arrivals are closer than by this factor. */
#define RACE_MARGIN 1.001f
/* No arrival of a token that is the first is later: u is at least 2^-53. */
#define RACE_LATEST 37.0f
/* The error of two sums of weights, over the weight of all. A weight that matters has an error of
 * 1e-5; what is truncated, and what is below the smallest weight, are 4e-6 and 2e-6. */
#define RACE_SUM_ERROR 2e-4

/* What all loops over a slice need. */
struct race_scale {
    float largest, factor; /* factor: log2(e) / temperature */
};

template <typename TEAM> DEVICE_FN race_scale race_scale_of(const TEAM &t)
{
    return {(float)t.view->largest, fminf((float)(t.view->inverse * 1.4426950408889634), 3.0e38f)};
}

/* A token's probability over the largest one's; `logit` above minus infinity. */
DEVICE_FN float race_weight(const race_scale &scale, float logit)
{
    float power = logit == scale.largest ? 0 : (logit - scale.largest) * scale.factor, weight;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(weight) : "f"(power));
    return weight;
}

/* -ln u. u is near 0 or near 1, and its complement then near 0. */
DEVICE_FN float race_time(uint64_t hash)
{
    bool upper = hash >> 63;
    float x = ((float)((upper ? ~hash : hash) >> 12) + 0.5f) * 0x1p-52f;
    if (upper && x < 0.0625f) return x * (1 + x * (0.5f + x * (1 / 3.0f + x * 0.25f)));
    return -__logf(upper ? 1 - x : x);
}

/* Four neighbours of a slice, minus infinity after its end. */
template <typename TEAM> DEVICE_FN float4 race_load(const TEAM &t, int32_t i)
{
    const float none = -CUDART_INF_F;
    if (TEAM::VECTORS)
        return i < t.end ? *(const float4 *)((const float *)t.logits + i)
                         : make_float4(none, none, none, none);
    return make_float4(i < t.end ? t.logit(i) : none, i + 1 < t.end ? t.logit(i + 1) : none,
                       i + 2 < t.end ? t.logit(i + 2) : none,
                       i + 3 < t.end ? t.logit(i + 3) : none);
}

/* A thread's first and second token in the race. */
struct race_ranks {
    float first, second;
    uint32_t key;
    int32_t id;
};

/* Calls each(i, logits of four tokens from i on) for the whole slice, all lanes of a warp together.
 * AHEAD fours are loaded at once. */
template <int AHEAD, typename TEAM, typename EACH>
DEVICE_FN void race_each(const TEAM &t, const EACH &each)
{
    int lane = t.thread % WARP, step = 4 * t.threads;
    int32_t base = t.begin + 4 * (t.thread - lane);
#pragma unroll 1
    for (; base < t.end; base += AHEAD * step) {
        float4 four[AHEAD];
#pragma unroll
        for (int a = 0; a < AHEAD; a++)
            four[a] = race_load(t, base + a * step + 4 * lane);
#pragma unroll
        for (int a = 0; a < AHEAD; a++) {
            const float logit[4] = {four[a].x, four[a].y, four[a].z, four[a].w};
            each(base + a * step + 4 * lane, logit);
        }
    }
}

/* Finds the slice's first token with a logit of at least `lowest`, to within the margin: `*bound`,
 * in shared memory, gets the bits of its arrival, and `ranks` this thread's tokens that were
 * compared. With `weigh` returns the weight of this thread's tokens with logits of at least
 * `weighed`. */
template <typename TEAM>
DEVICE_FN double race_run(TEAM &t, float lowest, bool weigh, float weighed,
                          volatile uint32_t *bound, race_ranks &ranks)
{
    const race_scale scale = race_scale_of(t);
    const uint64_t stream = t.view->stream;
    double sum = 0;
    race_each<2>(t, [&](int32_t i, const float(&logit)[4]) {
        float weights[4], four = 0, limit = __uint_as_float(*bound) * (0x1p32f * RACE_MARGIN);
        uint64_t hash[4];
        bool may[4], some = false;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            weights[j] = logit[j] > -CUDART_INF_F ? race_weight(scale, logit[j]) : 0;
            hash[j] = hash_mix(stream ^ (uint64_t)(i + j));
            may[j] = logit[j] >= lowest && (float)(uint32_t)(~hash[j] >> 32) < weights[j] * limit;
            some |= may[j];
            four += logit[j] >= weighed ? weights[j] : 0;
        }
        if (weigh) sum += four;
        if (!__any_sync(ALL_LANES, some)) return;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            uint32_t key = sample_key_of(logit[j]);
            if (!may[j] || !sample_is_likely(*t.view, key, sample_distance_about(*t.view, key)))
                continue;
            float arrival = race_time(hash[j]) / weights[j];
            ranks.second = fminf(ranks.second, fmaxf(arrival, ranks.first));
            if (arrival < ranks.first) ranks.first = arrival, ranks.key = key, ranks.id = i + j;
        }
        uint32_t of_warp = __reduce_min_sync(ALL_LANES, __float_as_uint(ranks.first));
        if (t.thread % WARP == 0) atomicMin((uint32_t *)bound, of_warp);
        __syncwarp();
    });
    return sum;
}

/* The best of this thread's tokens with keys of `lowest` or more; of all threads' bests one is the
 * best of the block. part.total: the weight of this thread's tokens with keys of `weighed` or more,
 * if `weigh`. `bound`: in shared memory. */
template <typename TEAM>
DEVICE_FN sample_part race_best(TEAM &t, uint32_t lowest, bool weigh, uint32_t weighed,
                                uint32_t *bound)
{
    const sample_view &v = *t.view;
    const uint32_t nothing = sample_key_of(-CUDART_INF_F);
    float from = sample_logit_of(max(lowest, nothing + 1));
    float weighed_from = sample_logit_of(max(weighed, nothing + 1));
    race_ranks ranks = {CUDART_INF_F, CUDART_INF_F, 0, -1};
    sample_part best = sample_nothing();
    t.sync(); /* no thread reads an earlier bound any more */
    if (t.thread == 0) *bound = __float_as_uint(RACE_LATEST);
    t.sync();
    double weight = race_run(t, from, weigh, weighed_from, bound, ranks);
    t.sync();
    float limit = __uint_as_float(*bound) * RACE_MARGIN;
    if (t.either(ranks.second <= limit)) {
        /* A thread has two tokens that may be the first: computes all such exactly. */
        race_each<1>(t, [&](int32_t i, const float(&logit)[4]) {
#pragma unroll 1
            for (int j = 0; j < 4; j++) {
                float of = j == 0 ? logit[0] : j == 1 ? logit[1] : j == 2 ? logit[2] : logit[3];
                uint32_t key = sample_key_of(of);
                if (!(of >= from) || sample_score_about(v, key, i + j) < -__logf(limit) - 0.01f)
                    continue;
                sample_part one = {sample_score(v, key, i + j), 0, 0, key, 0, i + j};
                if (sample_before(one, best)) best = one;
            }
        });
    } else if (ranks.first <= limit) {
        best = {sample_score(v, ranks.key, ranks.id), 0, 0, ranks.key, 0, ranks.id};
    }
    best.total = (unsigned long long)(weight * (double)(1ull << SAMPLE_WEIGHT_BITS));
    return best;
}

/* Adds up this thread's tokens with keys above `key`: their number, and if `weigh` about their
 * weight. */
template <typename TEAM>
DEVICE_FN void race_add_up(TEAM &t, uint32_t key, bool weigh, sample_part &sums)
{
    const race_scale scale = race_scale_of(t);
    float border = sample_logit_of(key);
    double sum = 0;
    race_each<4>(t, [&](int32_t, const float(&logit)[4]) {
        float four = 0;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            bool above = logit[j] > border;
            sums.count += above;
            if (weigh) four += above ? race_weight(scale, logit[j]) : 0;
        }
        sum += four;
    });
    sums.weight += (unsigned long long)(sum * (double)(1ull << SAMPLE_WEIGHT_BITS));
}

/* Whether top-p keeps a token above which there is the weight sums.weight, by estimates, of
 * `total`; else exactly. */
template <typename TEAM>
DEVICE_FN bool race_keeps(TEAM &t, const sample_part &sums, unsigned long long total, uint32_t key,
                          uint32_t weighed)
{
    double top_p = t.view->top_p, room = top_p * (double)total - (double)sums.weight;
    double error = RACE_SUM_ERROR * (double)total;
    if (room > error) return true;
    if (room < -error) return false;
    sample_part exact = sample_nothing();
    sample_add_up(t, key, true, true, weighed, exact);
    t.exchange(exact);
    return (double)exact.weight < top_p * (double)exact.total;
}

/* Of temperature 0: the first of the tokens with the largest logit. */
template <typename TEAM> DEVICE_FN int32_t race_likeliest(TEAM &t)
{
    sample_part best = sample_nothing();
    uint32_t largest = t.view->max_key;
    if (largest > sample_key_of(-CUDART_INF_F))
        race_each<1>(t, [&](int32_t i, const float(&logit)[4]) {
#pragma unroll
            for (int j = 0; j < 4; j++)
                if (best.id < 0 && sample_key_of(logit[j]) == largest) best.id = i + j;
        });
    t.exchange(best);
    return best.id < 0 ? 0 : best.id;
}

/* Chooses a token of n, in every thread of every block; 0 if no logit is above minus infinity. */
template <typename TEAM>
DEVICE_FN int32_t race_row(TEAM &t, const sample_settings &with, int64_t n, uint32_t *bound)
{
    uint32_t largest = 0;
    race_each<8>(t, [&](int32_t, const float(&logit)[4]) {
#pragma unroll
        for (int j = 0; j < 4; j++)
            largest = max(largest, sample_key_of(logit[j]));
    });
    int slices = t.gather(largest);
    sample_look(t, with, slices);
    if (with.temperature == 0) return race_likeliest(t);
    largest = t.view->max_key;
    bool by_count = with.top_k > 0 && with.top_k < n, by_weight = with.top_p < 1;
    uint32_t lowest = sample_bound(t, slices, by_count ? with.top_k : INT64_MAX), weighed = 0;
    if (by_count && by_weight && with.top_k_first) {
        int n_above = t.gather_above(lowest);
        lowest = weighed = n_above > 0 ? sample_bound(t, n_above, with.top_k)
                                       : sample_kth(t, with.top_k, lowest, largest);
    }
    sample_part best = sample_nothing();
    unsigned long long total = 0;
    bool race = true, check = false; /* what a round does: finds the best, checks the last one */
#pragma unroll 1
    for (int round = 0;; round++) {
        sample_part next = sample_nothing();
        if (race) next = race_best(t, lowest, by_weight && round == 0, weighed, bound);
        if (check) race_add_up(t, best.key, by_weight, next);
        t.exchange(next);
        if (round == 0) total = next.total;
        if (check && (!by_count || next.count < with.top_k) &&
            (!by_weight || race_keeps(t, next, total, best.key, weighed)))
            break;
        check = race && (by_count || by_weight);
        if (!race) {
            race = true;
            continue;
        }
        best = next;
        lowest = best.key + 1;
        if (!check || best.id < 0 || best.key == largest) break;
        race = by_count; /* few tokens have larger logits then */
    }
    return best.id < 0 ? 0 : best.id;
}
