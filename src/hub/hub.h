/* Models from a hub that speaks Hugging Face's API, kept in the cache that its Python library uses.
 *
 *     CACHE/models--OWNER--NAME/blobs/ETAG                  the bytes of a file, once
 *                               snapshots/COMMIT/FILE       a link to its blob
 *                               refs/main                   the commit that "main" is
 *
 * A blob appears under its name only after its hash was checked, and a snapshot only after all of
 * its blobs are there; so nothing half-written is ever opened. An interrupted download is resumed.
 * Formats: huggingface_hub's documentation, "Understand caching", and its HTTP API.
 */
#pragma once

#include "base/progress.h"
#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct hub {
    const char *endpoint;       /* "https://huggingface.co", without a slash at its end */
    const char *cache;          /* the folder that holds models--* */
    const char *token;          /* for gated and private models; NULL: none */
    bool offline;               /* only what is in the cache */
    progress *progress;         /* may be NULL */
    const volatile int *cancel; /* may be NULL */
} hub;

enum { HUB_NAME_SIZE = 256, HUB_PATH_SIZE = 4096 };

/* A reference to a model: "OWNER/NAME", "OWNER/NAME:FILE.gguf", "OWNER/NAME:Q4_K_M", or a short
 * name of names.def such as "llama3.2:1b". */
typedef struct hub_reference {
    char owner[HUB_NAME_SIZE], name[HUB_NAME_SIZE];
    char select[HUB_NAME_SIZE]; /* a file, or a type of weights; empty: chosen by quipu */
    const char *licence;        /* the short name, if it was one; else NULL */
} hub_reference;

/* Whether a word is a short name of names.def. */
bool hub_is_short_name(const char *text);

/* The first short name that begins with a text, or the nearest to it; NULL: none is near. */
const char *hub_nearest_name(const char *text);

/* QP_INVALID describes the form of a reference and names the nearest short name. */
qp_status hub_parse(const char *text, hub_reference *out, qp_error *error);

/* "OWNER/NAME" or "OWNER/NAME:SELECT", as hub_parse() takes it. */
void hub_print_reference(const hub_reference *reference, char *text, size_t size);

/* Finds the model in the cache, as "main" was when it was fetched: a GGUF file, or the folder of a
 * safetensors model. QP_IO, with `quipu pull` in the message, where it is missing or incomplete. */
qp_status hub_find(const hub *hub, const hub_reference *reference, char path[HUB_PATH_SIZE],
                   qp_error *error);

/* Fetches the missing files of the model as "main" is now, and finds it. Needs the network. QP_IO
 * distinguishes a gated model, a missing one, a wrong hash, a full disk and an unreachable hub. */
qp_status hub_pull(const hub *hub, const hub_reference *reference, char path[HUB_PATH_SIZE],
                   qp_error *error);

/* A model in the cache, for lists. */
typedef struct hub_entry {
    char reference[2 * HUB_NAME_SIZE + HUB_NAME_SIZE];
    char path[HUB_PATH_SIZE];
    uint64_t bytes;
} hub_entry;

/* Called with each model that can be run, in the order of names; a status other than QP_OK ends the
 * list. */
typedef qp_status hub_visitor(void *context, const hub_entry *entry, qp_error *error);
qp_status hub_list(const hub *hub, hub_visitor *visit, void *context, qp_error *error);

/* Removes a model from the cache: one file of it where the reference names one, else all. *bytes:
 * how much that freed. */
qp_status hub_remove(const hub *hub, const hub_reference *reference, uint64_t *bytes,
                     qp_error *error);

/* A row of names.def. */
typedef struct hub_short_name {
    const char *name, *reference, *licence;
} hub_short_name;

/* The index-th short name; NULL past the last. */
const hub_short_name *hub_short_name_at(int index);
