/* A checksum of much memory, at the speed at which memory is read. It finds damage; it does not
 * withstand people who forge data on purpose. */
#pragma once

#include "base/hash.h"

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* FNV-1a over 64-bit words in eight lanes, whose multiplications do not wait for each other. Every
 * step is invertible, so a change of a single word always changes the sum. */
static inline uint64_t checksum(const void *data, size_t bytes, uint64_t seed)
{
    enum { LANES = 8 };
    const uint64_t prime = UINT64_C(0x00000100000001b3);
    const char *at = data;
    uint64_t sums[LANES], words[LANES], sum = hash_mix(seed) ^ bytes;
    for (int i = 0; i < LANES; i++)
        sums[i] = hash_random(seed, 0, (uint64_t)i);
    for (; bytes >= sizeof words; at += sizeof words, bytes -= sizeof words) {
        memcpy(words, at, sizeof words);
        for (int i = 0; i < LANES; i++)
            sums[i] = (sums[i] ^ words[i]) * prime;
    }
    memset(words, 0, sizeof words);
    memcpy(words, at, bytes);
    for (int i = 0; i < LANES; i++)
        sum = hash_mix(sum ^ ((sums[i] ^ words[i]) * prime));
    return sum;
}
