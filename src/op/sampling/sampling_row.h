/* What sampling's reference and its variants share: the settings of a row, logits as integer keys,
 * and the search for a threshold among them. */
#pragma once

#include "op/element.h"
#include "op/sampling/sampling.h"

#include <math.h>

/* A filter's settings for one row. */
typedef struct settings {
    double temperature, top_p, min_p;
    int64_t top_k; /* 0: all */
} settings;

enum { SAMPLING_MAX_LANES = 16 }; /* tokens that a variant processes at once */
enum { WEIGHT_BITS = 40, RADIX_BITS = 8, RADIX = 1 << RADIX_BITS };

/* A row's setting: the tensor's, where there is one, else the parameter's. */
static inline double setting(const op_call *call, int tensor_index, int param, int64_t row)
{
    const tensor *own = &call->tensors[tensor_index];
    return own->data ? element_load(own->type, own->data, row) : call->params[param];
}

static inline settings row_settings(const op_call *call, int64_t row)
{
    double top_k = setting(call, SAMPLING_TOP_KS, SAMPLING_TOP_K, row);
    return (settings){
        .temperature = setting(call, SAMPLING_TEMPERATURES, SAMPLING_TEMPERATURE, row),
        .top_p = setting(call, SAMPLING_TOP_PS, SAMPLING_TOP_P, row),
        .min_p = setting(call, SAMPLING_MIN_PS, SAMPLING_MIN_P, row),
        .top_k = top_k < 0 ? 0 : (int64_t)top_k,
    };
}

/* Floats as integers of the same order; NaN as minus infinity, -0 as 0. */
static inline uint32_t key_of(float logit)
{
    if (logit != logit) logit = -INFINITY;
    uint32_t bits = float_bits(logit + 0.0f);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

static inline float logit_of(uint32_t key)
{
    return float_from_bits(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

/* Logarithm of a token's probability relative to the largest, at a temperature. */
static inline double distance_of(float logit, float largest, double temperature)
{
    if (logit == largest) return 0;
    return ((double)logit - (double)largest) / temperature;
}

/* What is known to lie above all keys of a search. */
typedef struct above {
    int64_t count;
    uint64_t weight;
} above;

/* The least of n keys such that fewer than max_count tokens, with less weight than max_weight, have
 * larger keys; the largest key if there is none. Without weights only the count limits. */
static inline uint32_t threshold(const uint32_t *keys, const uint64_t *weights, int64_t n,
                                 above above, int64_t max_count, double max_weight)
{
    uint32_t prefix = 0; /* above: of the tokens larger than all that share the prefix */
    for (int shift = 32 - RADIX_BITS; shift >= 0; shift -= RADIX_BITS) {
        int64_t counts[RADIX] = {0};
        uint64_t sums[RADIX] = {0};
        for (int64_t i = 0; i < n; i++) {
            if ((uint64_t)(keys[i] ^ prefix) >> (shift + RADIX_BITS)) continue;
            uint32_t digit = keys[i] >> shift & (RADIX - 1);
            counts[digit]++;
            if (weights) sums[digit] += weights[i];
        }
        int64_t count = above.count;
        uint64_t weight = above.weight;
        int chosen = -1;
        for (int digit = RADIX - 1; digit >= 0; digit--) {
            if (counts[digit] == 0) continue;
            if (chosen >= 0 && (count >= max_count || (weights && (double)weight >= max_weight)))
                break;
            chosen = digit;
            above.count = count;
            above.weight = weight;
            count += counts[digit];
            weight += sums[digit];
        }
        prefix |= (uint32_t)chosen << shift;
    }
    return prefix;
}
