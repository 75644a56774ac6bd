/* The prefix tree in a file, so that a restarted engine finds the texts of the one before.
 *
 * The file, whose format page_file.h has, holds pages with their tokens, keys and parents, the most
 * recently used first, so parents come before their children. A damaged page is left out with all
 * texts that go on from it.
 */
#pragma once

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

struct qp_engine;

typedef struct prefix_file_result {
    bool found;     /* there was a file */
    uint64_t pages; /* saved or restored */
    uint64_t
        skipped; /* save: pages past the limit; restore: pages for which the cache has no room */
    uint64_t damaged; /* restore: pages that were left out */
    uint64_t bytes;   /* of the file */
} prefix_file_result;

/* Writes the tree's idle pages to `path`, at most `most` bytes. No sequence may be under way. QP_IO
 * says what failed, also where another process writes the same file; the old file then stays. */
qp_status prefix_file_save(struct qp_engine *engine, const char *path, uint64_t most,
                           prefix_file_result *out, qp_error *error);

/* Adds the pages of `path` to the engine's tree, which must be open. No file is no error.
 * QP_FORMAT: another model or other settings wrote the file, or it is damaged as a whole; nothing
 * was added then. */
qp_status prefix_file_restore(struct qp_engine *engine, const char *path, prefix_file_result *out,
                              qp_error *error);
