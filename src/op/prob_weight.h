/* Probabilities as whole numbers, whose sums are exact and so the same in any order: a choice that
 * depends on a sum is then the same in every variant. */
#pragma once

#include <stdint.h>

#define PROB_WEIGHT_ONE 0x1p40

/* Multiples of 2^-40, rounded down; 0 for NaN and what is negative, 1 for what is more. */
static inline uint64_t prob_weight(double probability)
{
    if (!(probability > 0)) return 0;
    return (uint64_t)((probability < 1 ? probability : 1) * PROB_WEIGHT_ONE);
}
