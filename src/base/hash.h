/* Counter-based random bits: a pure function of (seed, stream, counter).
 *
 * The same bits on every machine and, since this header also compiles as CUDA C, on the GPU. Each
 * round is the finaliser of SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number
 * generators", OOPSLA 2014).
 */
#pragma once

#include <stdint.h>

#ifdef __CUDACC__
#define HASH_FN __host__ __device__ static inline
#else
#define HASH_FN static inline
#endif

HASH_FN uint64_t hash_mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* 64 random bits for (seed, stream, counter). */
HASH_FN uint64_t hash_random(uint64_t seed, uint64_t stream, uint64_t counter)
{
    return hash_mix(hash_mix(hash_mix(seed) ^ stream) ^ counter);
}

/* A float in (0, 1): the middle of one of 2^23 equal cells, so neither end occurs. */
HASH_FN float hash_uniform(uint64_t bits)
{
    return ((float)(uint32_t)(bits >> 41) + 0.5f) * 0x1p-23f;
}
