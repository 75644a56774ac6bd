/* The models that can be asked for.
 *
 * Of a folder: its GGUF files (of a split model the first part), its folders with a config.json,
 * and what was pulled into it, which lies as in the hub's cache. Of a file: one model a line, its
 * name, where it is as `-m` takes it, and options of `quipu serve` for it; '#' begins a comment:
 *
 *     small   /models/smollm2-135m.Q8_0.gguf
 *     coder   hf:Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF:Q4_K_M   --context 8192
 */
#pragma once

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

typedef struct catalog_entry {
    char *name, *path;
    char **options; /* [n_options] */
    size_t n_options;
    uint64_t bytes;  /* of its file; 0: unknown */
    time_t modified; /* 0: unknown */
    uint64_t file;   /* changes with it */
    bool pulled;     /* into the folder */
} catalog_entry;

typedef struct catalog {
    catalog_entry *entries; /* [count], by name */
    size_t count;
} catalog;

/* Replaces *out by what is there now; on failure it stays. QP_FORMAT names the line. */
qp_status catalog_read(const char *where, catalog *out, qp_error *error);
void catalog_free(catalog *c);

/* A model by its name, or by that and ":latest", as Ollama's clients write it; NULL: none. */
const catalog_entry *catalog_find(const catalog *c, const char *name);

/* A number that changes with the entry's file, path and options. */
uint64_t catalog_stamp(const catalog_entry *e);

/* Whether the models are those of a folder, into which others can be pulled. */
bool catalog_is_folder(const char *where);
