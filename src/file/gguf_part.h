/* The parts of gguf.h's implementation: one parsed and checked file, and a model of one or more.
 * Private. */
#pragma once

#include "base/arena.h"
#include "file/gguf.h"
#include "file/mapping.h"
#include "file/name_index.h"

/* The format's limits, the same for reading and writing. */
enum {
    GGUF_DEFAULT_ALIGNMENT = 32,
    GGUF_MIN_ALIGNMENT = 8,
    GGUF_MAX_RANK = 4,
    GGUF_MAX_KEY_LENGTH = 65535,
    GGUF_MAX_TENSOR_NAME_LENGTH = 255, /* the format says 64; some writers use more */
};

typedef struct gguf_part {
    mapping map;         /* zero when the bytes are the caller's */
    const char *path;    /* for messages */
    const uint8_t *data; /* [size], the whole file */
    size_t size;
    int number; /* which part of a split, from 0 */
    uint32_t version;
    uint64_t alignment;
    gguf_value *keys; /* [n_keys], in the file's order */
    size_t n_keys;
    name_index key_index;
    stored_tensor *tensors; /* [n_tensors], in the file's order */
    size_t n_tensors;
} gguf_part;

struct gguf {
    gguf_part *parts; /* [n_parts] */
    int n_parts;
    stored_tensor *tensors; /* [n_tensors], of all parts */
    size_t n_tensors;
    name_index tensor_index;
    const text_slice **strings; /* [parts[0].n_keys], tables of string arrays asked for so far */
    arena memory;
};

/* Parses and checks one file. The caller sets path, data, size and number; tables are allocated in
 * `memory`. */
qp_status gguf_part_parse(gguf_part *part, arena *memory, qp_error *error);

/* NULL when absent. */
const gguf_value *gguf_part_find(const gguf_part *part, const char *key);

/* As gguf_get_i64(). */
qp_status gguf_part_i64(const gguf_part *part, const char *key, int64_t *out, qp_error *error);

/* Bytes of one value of a type, 0 for strings and arrays. */
size_t gguf_type_bytes(gguf_type type);

/* The string stored at p: a length of 64 bits and the bytes; its bounds are already checked. */
text_slice gguf_stored_string(const uint8_t *p);
