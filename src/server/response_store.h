/* Responses that clients go on from by previous_response_id, or look up: in memory. When it is
 * full, those that were used longest ago leave. Each belongs to the key that made it. From any
 * thread.
 */
#pragma once

#include "base/strbuf.h"

#include <pthread.h>
#include <stdint.h>

enum { RESPONSES_KEPT = 4096 };

typedef struct kept_response {
    char *id; /* NULL: free */
    uint64_t owner;
    char *reply;    /* the response, as JSON */
    char *items;    /* the conversation with its output: items of JSON with commas between them */
    size_t n_input; /* bytes of `items` before the output */
    size_t bytes;
    uint64_t used;
} kept_response;

typedef struct response_store {
    pthread_mutex_t lock;
    kept_response *kept; /* [RESPONSES_KEPT]; NULL: nothing is kept */
    size_t bytes, most;
    uint64_t uses;
} response_store;

/* `most`: bytes of all responses; 0, or without memory: nothing is kept. */
void response_store_open(response_store *store, size_t most);
void response_store_close(response_store *store);

/* Keeps a response, if it fits. */
void response_store_put(response_store *store, const char *id, uint64_t owner, const strbuf *reply,
                        const strbuf *items, size_t n_input);

/* Appends copies of the reply, of all items and of the input, each of which may be NULL; false:
 * there is none with this id for the owner. */
bool response_store_get(response_store *store, const char *id, uint64_t owner, strbuf *reply,
                        strbuf *items, strbuf *input);
bool response_store_remove(response_store *store, const char *id, uint64_t owner);
