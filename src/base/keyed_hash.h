/* Hash values for tables whose keys come from files or requests.
 *
 * An attacker who chooses the keys must not be able to choose keys that collide, because each
 * lookup would then walk the whole table. So the values depend on a secret that is drawn once per
 * process. They differ from run to run, and nothing that is printed or saved may depend on them.
 */
#pragma once

#include "base/hash.h"

#include <stddef.h>
#include <stdint.h>

typedef struct hash_key {
    uint64_t k[2];
} hash_key;

/* This process's secret. */
hash_key hash_key_get(void);

/* SipHash-1-3 of the bytes (Aumasson and Bernstein: "SipHash: a fast short-input PRF", 2012, with
 * one round a word and three at the end). */
uint64_t keyed_hash(hash_key key, const void *bytes, size_t length);

/* The same for one number: two rounds of SplitMix64's finaliser, with the secret before each. */
static inline uint64_t keyed_hash_number(hash_key key, uint64_t number)
{
    return hash_mix(hash_mix(number ^ key.k[0]) ^ key.k[1]);
}
