/* Packed weights in files, so that the next start maps them instead of packing again.
 *
 *     header | checksum of each block | padding to DATA_AT | packed weights
 *
 * A file is only correct for the model's files, the build of the program and the kernels that
 * packed it: the header has a fingerprint of these, which is also the file's name. Each block has a
 * checksum, and all are verified before any is used. A file that does not fit, is damaged or
 * belongs to another user is not used; weights are then packed as always.
 */
#pragma once

#include "base/buffer.h"
#include "base/progress.h"
#include "base/threads.h"

#include <stdbool.h>

typedef struct pack_cache {
    const char *folder; /* outlives the machine's opening */
    uint64_t most;      /* bytes that the folder's files may take together */
    uint64_t key[2];    /* of the model's files and the program */
    /* What came of it, for the person. */
    char path[4096];        /* of the file */
    uint64_t bytes;         /* of packed weights */
    bool loaded, saved;     /* at most one of them */
    int removed;            /* files that made room */
    char load_problem[256]; /* why a file that exists was not used; empty: there is none */
    char save_problem[512]; /* why none was written */
} pack_cache;

/* Maps the packed weights, `bytes` of them, read-only. `shape` is a number for what is packed and
 * by which kernels. False: there is no such file, or the cache says what is wrong with it. */
bool pack_cache_load(pack_cache *cache, thread_pool *pool, uint64_t shape, size_t bytes,
                     buffer *out);

/* Writes them, and removes the files that have not been used for longest, so that the folder's stay
 * within the limit. */
void pack_cache_save(pack_cache *cache, thread_pool *pool, uint64_t shape, const buffer *packed,
                     progress *progress);
