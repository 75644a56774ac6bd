/* API keys, as clients send them: "Authorization: Bearer KEY", or "X-Api-Key: KEY". */
#pragma once

#include "base/keyed_hash.h"
#include "base/status.h"
#include "server/http_parser.h"

#include <stdint.h>

/* Zero-initialise; keys_free() at the end. */
typedef struct api_keys {
    char **keys; /* [count] */
    size_t count;
    hash_key secret; /* of the numbers that stand for keys; keys_read() leaves it as it is */
} api_keys;

/* Replaces the keys by `key` (may be NULL) and those of the file, one a line; lines that begin with
 * '#' and empty ones are none. On failure the keys stay as they were. */
qp_status keys_read(api_keys *keys, const char *path, const char *key, qp_error *error);
void keys_free(api_keys *keys);

/* Whether the request has one of the keys, or none is needed. The time does not depend on how
 * much of a key is right. *owner: a number made from the key and keys->secret, the same after the
 * keys were read again; 0 if no key is needed. */
bool keys_accept(const api_keys *keys, const http_parser *request, uint64_t *owner);
