/* GGUF files, versions 2 and 3, little-endian, mapped; split files are opened as one.
 *
 * Everything is checked against the file's length when the file is opened: counts, string lengths,
 * dimension products, offsets, alignment, overlaps, duplicate names. After gguf_open() succeeds,
 * every view lies inside the mapping and is aligned for its element type. Big-endian files, version
 * 1 and arrays of arrays are refused.
 *
 * The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
 */
#pragma once

#include "base/status.h"
#include "file/slice.h"
#include "file/stored_tensor.h"

typedef struct gguf gguf;

/* The types of metadata values, by their numbers in the file. */
typedef enum gguf_type {
    GGUF_U8 = 0,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64,
    GGUF_TYPE_COUNT
} gguf_type;

/* "u32", "string", "array", ... */
const char *gguf_type_name(gguf_type type);

/* Opens the file and, when it is the first of a split, all parts beside it
 * (NAME-00001-of-0000N.gguf); given another part, the message names the one to pass.
 * gguf_close() the result. *out is untouched on failure. */
qp_status gguf_open(const char *path, gguf **out, qp_error *error);

/* The same over memory that stays the caller's and outlives the result. `name` is used in messages.
 * `data` is aligned to 8 bytes or more. A split is refused. */
qp_status gguf_open_memory(const void *data, size_t size, const char *name, gguf **out,
                           qp_error *error);

/* NULL is allowed. */
void gguf_close(gguf *file);

/* A number for the sizes of the model's files and the times when they were last written. */
uint64_t gguf_stamp(const gguf *file);

/* Gives the memory of pages that were read back to the system; they are read from the file again
 * when touched. */
void gguf_release_pages(const gguf *file);

/* As mapping_read(), for what lies in any of the files. */
bool gguf_read(const gguf *file, const void *at, size_t bytes, void *dst);

/* The path given to gguf_open(): what messages call the file. */
const char *gguf_path(const gguf *file);

/* --- Keys. Of a split file: the keys of its first part. --- */

typedef struct gguf_value {
    text_slice key;
    gguf_type type;         /* GGUF_ARRAY for an array */
    gguf_type element_type; /* of an array's elements; otherwise as `type` */
    uint64_t count;         /* elements of an array; otherwise 1 */
    const uint8_t *data;    /* the stored bytes, not aligned; of an array: its first element */
} gguf_value;

/* Keys in the file's order. */
size_t gguf_key_count(const gguf *file);
const gguf_value *gguf_key_at(const gguf *file, size_t i);

/* NULL when absent. */
const gguf_value *gguf_find(const gguf *file, const char *key);

/* The value as a person reads it: 'llama', 32, 1e-05, true, "128256 strings", "5 x u32: 1, 2, ...".
 * Writes into text and returns it. */
const char *gguf_value_describe(const gguf_value *value, char *text, size_t size);

/* Typed getters. Each leaves *out alone and returns QP_OK when the key is absent; another type, or
 * a value that does not fit, is QP_FORMAT with file, key, expected and found. An integer may be
 * stored in any width; a double may be stored as F32, F64 or an integer. */
qp_status gguf_get_i64(const gguf *file, const char *key, int64_t *out, qp_error *error);
qp_status gguf_get_double(const gguf *file, const char *key, double *out, qp_error *error);
qp_status gguf_get_bool(const gguf *file, const char *key, bool *out, qp_error *error);
/* *out points into the mapping. */
qp_status gguf_get_string(const gguf *file, const char *key, text_slice *out, qp_error *error);

/* Copies of a whole array, to free(): integers (or booleans, as 0 and 1) of any width, or numbers
 * of any type. An empty array gives a valid pointer and *count = 0. */
qp_status gguf_get_i64_array(const gguf *file, const char *key, int64_t **out, size_t *count,
                             qp_error *error);
qp_status gguf_get_double_array(const gguf *file, const char *key, double **out, size_t *count,
                                qp_error *error);

/* An array of strings as slices of the mapping: (*out)[0 .. *count). The table is built on the
 * first call for the key and belongs to the file; the first call must not run beside another one.
 */
qp_status gguf_get_strings(gguf *file, const char *key, const text_slice **out, size_t *count,
                           qp_error *error);

/* --- Tensors of all parts, in the files' order. --- */

size_t gguf_tensor_count(const gguf *file);
const stored_tensor *gguf_tensor_at(const gguf *file, size_t i);

/* NULL when absent. */
const stored_tensor *gguf_find_tensor(const gguf *file, const char *name);

/* A view of the tensor's data, shape outermost first. The pages are read-only although the view's
 * type allows writing: a write faults. An absent tensor leaves *out alone and returns QP_OK; a type
 * that quipu does not read is QP_UNSUPPORTED. */
qp_status gguf_get_tensor(const gguf *file, const char *name, tensor *out, qp_error *error);
