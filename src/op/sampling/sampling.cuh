/* sampling on the GPU: a block a row, the same token as on the CPU, bit for bit.
 *
 * Compiled without fused products (a file *_exact.cu). The steps are the reference's; keys and
 * weights are made again at each pass over the row instead of being kept, and sums are of integers,
 * so that the order in which threads add does not matter.
 */
#ifndef QUIPU_OP_SAMPLING_CUH
#define QUIPU_OP_SAMPLING_CUH

#include "op/device.cuh"
#include "op/sampling/definite.h"
#include "op/sampling/sampling.h"

enum { SAMPLE_WEIGHT_BITS = 40, SAMPLE_RADIX_BITS = 8, SAMPLE_RADIX = 1 << SAMPLE_RADIX_BITS };

struct sample_settings {
    double temperature, top_p, min_p;
    int64_t top_k; /* 0: all */
};

/* One row as the filters see it. */
struct sample_row {
    const char *logits;
    dtype type;
    int64_t n;
    uint32_t max_key;
    double temperature;
};

struct sample_shared {
    unsigned long long counts[SAMPLE_RADIX], sums[SAMPLE_RADIX], total;
    uint32_t keys[MAX_WARPS], chosen;
    unsigned long long above_count, above_weight;
    double scores[MAX_WARPS];
    int32_t ids[MAX_WARPS];
};

/* Floats as integers of the same order; NaN as minus infinity, -0 as 0. */
DEVICE_FN uint32_t sample_key_of(float logit)
{
    if (isnan(logit)) logit = -CUDART_INF_F;
    uint32_t bits = float_bits(logit + 0.0f);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

DEVICE_FN float sample_logit_of(uint32_t key)
{
    return float_from_bits(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

DEVICE_FN uint32_t sample_key(const sample_row &row, int64_t i)
{
    return sample_key_of(device_load(row.type, row.logits, i));
}

/* Logarithm of a token's probability over the largest one's. */
DEVICE_FN double sample_distance(const sample_row &row, uint32_t key)
{
    if (key == row.max_key) return 0;
    return ((double)sample_logit_of(key) - (double)sample_logit_of(row.max_key)) / row.temperature;
}

DEVICE_FN unsigned long long sample_weight(const sample_row &row, uint32_t key)
{
    double share = definite_exp(sample_distance(row, key));
    return (unsigned long long)(share * (double)(1ull << SAMPLE_WEIGHT_BITS));
}

DEVICE_FN double sample_setting(const op_call &call, int index, int param, int64_t row)
{
    const tensor &own = call.tensors[index];
    if (!own.data) return call.params[param];
    return own.type == DTYPE_I32 ? (double)((const int32_t *)own.data)[row]
                                 : (double)((const float *)own.data)[row];
}

DEVICE_FN sample_settings sample_settings_of(const op_call &call, int64_t row)
{
    double top_k = sample_setting(call, SAMPLING_TOP_KS, SAMPLING_TOP_K, row);
    return sample_settings{
        sample_setting(call, SAMPLING_TEMPERATURES, SAMPLING_TEMPERATURE, row),
        sample_setting(call, SAMPLING_TOP_PS, SAMPLING_TOP_P, row),
        sample_setting(call, SAMPLING_MIN_PS, SAMPLING_MIN_P, row),
        top_k < 0 ? 0 : (int64_t)top_k,
    };
}

/* The largest key, and the first id that has it, in every thread. */
DEVICE_FN int32_t sample_largest(sample_row &row, sample_shared &shared)
{
    uint32_t best = 0;
    int32_t id = INT32_MAX;
    for (int64_t i = threadIdx.x; i < row.n; i += blockDim.x) {
        uint32_t key = sample_key(row, i);
        if (key > best || id == INT32_MAX) best = key, id = (int32_t)i;
    }
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, n_warps = blockDim.x / WARP;
    for (int round = 0; round < 2; round++) {
        for (int step = WARP / 2; step > 0; step /= 2) {
            uint32_t key = __shfl_xor_sync(ALL_LANES, best, step);
            int32_t other = __shfl_xor_sync(ALL_LANES, id, step);
            if (key > best || (key == best && other < id)) best = key, id = other;
        }
        if (round == 1) break;
        __syncthreads();
        if (lane == 0) shared.keys[warp] = best, shared.ids[warp] = id;
        __syncthreads();
        best = lane < n_warps ? shared.keys[lane] : 0;
        id = lane < n_warps ? shared.ids[lane] : INT32_MAX;
    }
    row.max_key = best;
    return id;
}

/* The sum of the weights of keys from `lowest`, in every thread. */
DEVICE_FN unsigned long long sample_total(const sample_row &row, uint32_t lowest,
                                          sample_shared &shared)
{
    unsigned long long sum = 0;
    for (int64_t i = threadIdx.x; i < row.n; i += blockDim.x) {
        uint32_t key = sample_key(row, i);
        if (key >= lowest) sum += sample_weight(row, key);
    }
    __syncthreads();
    if (threadIdx.x == 0) shared.total = 0;
    __syncthreads();
    atomicAdd(&shared.total, sum);
    __syncthreads();
    return shared.total;
}

/* Chooses the digit of the threshold from the counts and sums; one thread. */
DEVICE_FN void sample_choose(sample_shared &shared, bool weighted, unsigned long long max_count,
                             double max_weight)
{
    unsigned long long count = shared.above_count, weight = shared.above_weight;
    int chosen = -1;
    for (int digit = SAMPLE_RADIX - 1; digit >= 0; digit--) {
        if (shared.counts[digit] == 0) continue;
        if (chosen >= 0 && (count >= max_count || (weighted && (double)weight >= max_weight)))
            break;
        chosen = digit;
        shared.above_count = count;
        shared.above_weight = weight;
        count += shared.counts[digit];
        weight += shared.sums[digit];
    }
    shared.chosen = (uint32_t)chosen;
}

/* The least key than which fewer than max_count tokens, and tokens of less weight than max_weight,
 * are larger; the largest key if there is no such. By radix selection, as in sampling_row.h. */
DEVICE_FN uint32_t sample_threshold(const sample_row &row, bool weighted,
                                    unsigned long long max_count, double max_weight,
                                    sample_shared &shared)
{
    uint32_t prefix = 0;
    __syncthreads();
    if (threadIdx.x == 0) shared.above_count = shared.above_weight = 0;
    for (int shift = 32 - SAMPLE_RADIX_BITS; shift >= 0; shift -= SAMPLE_RADIX_BITS) {
        __syncthreads();
        for (int i = threadIdx.x; i < SAMPLE_RADIX; i += blockDim.x)
            shared.counts[i] = shared.sums[i] = 0;
        __syncthreads();
        for (int64_t i = threadIdx.x; i < row.n; i += blockDim.x) {
            uint32_t key = sample_key(row, i);
            if ((uint64_t)(key ^ prefix) >> (shift + SAMPLE_RADIX_BITS)) continue;
            uint32_t digit = key >> shift & (SAMPLE_RADIX - 1);
            atomicAdd(&shared.counts[digit], 1ull);
            if (weighted) atomicAdd(&shared.sums[digit], sample_weight(row, key));
        }
        __syncthreads();
        if (threadIdx.x == 0) sample_choose(shared, weighted, max_count, max_weight);
        __syncthreads();
        prefix |= shared.chosen << shift;
    }
    return prefix;
}

/* The least key that top-k and top-p keep. */
DEVICE_FN uint32_t sample_filter(const sample_row &row, const sample_settings &with,
                                 bool top_k_first, sample_shared &shared)
{
    int64_t max_count = with.top_k > 0 ? with.top_k : row.n;
    uint32_t lowest = 0;
    if (max_count < row.n)
        lowest = sample_threshold(row, false, (unsigned long long)max_count, 0, shared);
    if (!(with.top_p < 1)) return lowest;
    unsigned long long total = sample_total(row, top_k_first ? lowest : 0, shared);
    uint32_t lightest =
        sample_threshold(row, true, (unsigned long long)row.n, with.top_p * (double)total, shared);
    return lightest > lowest ? lightest : lowest;
}

/* The larger score, the lower id of equals, any before none (-1). */
DEVICE_FN bool sample_before(double score, int32_t id, double best_score, int32_t best)
{
    if (id < 0 || best < 0) return id >= 0;
    return score > best_score || (score == best_score && id < best);
}

/* The kept token with the largest noisy logit, in every thread. */
DEVICE_FN int32_t sample_draw(const sample_row &row, uint32_t lowest, double min_p, uint64_t seed,
                              uint64_t position, sample_shared &shared)
{
    uint32_t nothing = sample_key_of(-CUDART_INF_F);
    int32_t best = -1;
    double best_score = 0;
    for (int64_t i = threadIdx.x; i < row.n; i += blockDim.x) {
        uint32_t key = sample_key(row, i);
        if (key < lowest || key == nothing) continue;
        double log_share = sample_distance(row, key);
        if (min_p > 0 && key != row.max_key && definite_exp(log_share) < min_p) continue;
        double score = log_share + definite_gumbel(seed, position, (uint64_t)i);
        if (sample_before(score, (int32_t)i, best_score, best))
            best = (int32_t)i, best_score = score;
    }
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, n_warps = blockDim.x / WARP;
    for (int round = 0; round < 2; round++) {
        for (int step = WARP / 2; step > 0; step /= 2) {
            double score = __shfl_xor_sync(ALL_LANES, best_score, step);
            int32_t id = __shfl_xor_sync(ALL_LANES, best, step);
            if (sample_before(score, id, best_score, best)) best = id, best_score = score;
        }
        if (round == 1) break;
        __syncthreads();
        if (lane == 0) shared.scores[warp] = best_score, shared.ids[warp] = best;
        __syncthreads();
        best_score = lane < n_warps ? shared.scores[lane] : 0;
        best = lane < n_warps ? shared.ids[lane] : -1;
    }
    return best < 0 ? 0 : best;
}

DEVICE_FN void sampling_block(const op_call &call, int64_t begin, int64_t end)
{
    __shared__ sample_shared shared;
    const tensor &logits = call.tensors[SAMPLING_LOGITS];
    const int64_t *seeds = (const int64_t *)call.tensors[SAMPLING_SEEDS].data;
    const int32_t *positions = (const int32_t *)call.tensors[SAMPLING_POSITIONS].data;
    int32_t *ids = (int32_t *)call.tensors[SAMPLING_IDS].data;
    for (int64_t r = begin; r < end; r++) {
        sample_settings with = sample_settings_of(call, r);
        sample_row row = {device_row(logits, r), logits.type, logits.shape[1], 0, with.temperature};
        int32_t id = sample_largest(row, shared);
        if (with.temperature != 0) {
            bool top_k_first = call.params[SAMPLING_TOP_K_FIRST] != 0;
            uint32_t lowest = sample_filter(row, with, top_k_first, shared);
            id = sample_draw(row, lowest, with.min_p, (uint64_t)seeds[r], (uint64_t)positions[r],
                             shared);
        }
        if (threadIdx.x == 0) ids[r] = id;
    }
}

#endif
