/* Writes GGUF version 3 files.
 *
 * Order of calls: gguf_writer_create, any gguf_put_* and gguf_put_tensor, gguf_writer_begin, the
 * tensors' bytes through gguf_writer_data in the order declared, gguf_writer_finish, and in every
 * case gguf_writer_destroy. Data streams through: only keys and names are held in memory.
 *
 * The file appears whole or not at all: bytes go to a temporary file in the same directory, which
 * is synced and renamed at the end and removed on any failure. A mistake in a gguf_put_* call (a
 * duplicate key, no memory) is remembered and reported by gguf_writer_begin.
 */
#pragma once

#include "base/status.h"
#include "file/gguf.h"

typedef struct gguf_writer gguf_writer;

/* `alignment` of the tensors' data: 0 for the usual 32, or a power of two from 8 to 65536, which is
 * then stored as general.alignment. Nothing is written yet. */
qp_status gguf_writer_create(const char *path, uint32_t alignment, gguf_writer **out,
                             qp_error *error);

void gguf_put_u16(gguf_writer *writer, const char *key, uint16_t value);
void gguf_put_u32(gguf_writer *writer, const char *key, uint32_t value);
void gguf_put_i32(gguf_writer *writer, const char *key, int32_t value);
void gguf_put_u64(gguf_writer *writer, const char *key, uint64_t value);
void gguf_put_f32(gguf_writer *writer, const char *key, float value);
void gguf_put_bool(gguf_writer *writer, const char *key, bool value);
void gguf_put_string(gguf_writer *writer, const char *key, text_slice value);
void gguf_put_strings(gguf_writer *writer, const char *key, const text_slice *values, size_t count);

/* A scalar or an array of any type except strings and arrays, from values laid out as in the file
 * (little-endian, packed). */
void gguf_put_scalar(gguf_writer *writer, const char *key, gguf_type type, const void *value);
void gguf_put_array(gguf_writer *writer, const char *key, gguf_type element_type,
                    const void *values, size_t count);

/* Copies a key of another file, of any type. */
void gguf_put_value(gguf_writer *writer, const gguf_value *value);

/* Declares the next tensor: shape outermost first, rank 1 to 4, rows of whole blocks. */
void gguf_put_tensor(gguf_writer *writer, text_slice name, dtype type, int rank,
                     const int64_t *shape);

/* Creates the temporary file and writes all that precedes the data. QP_IO if the disk has not
 * enough room for the whole file. */
qp_status gguf_writer_begin(gguf_writer *writer, qp_error *error);

/* The next bytes of the tensors' data, in pieces of any size that do not cross a tensor's end.
 * Padding between tensors is added here. */
qp_status gguf_writer_data(gguf_writer *writer, const void *bytes, size_t count, qp_error *error);

/* Checks that all data was given, syncs and renames. */
qp_status gguf_writer_finish(gguf_writer *writer, qp_error *error);

/* Frees the writer and removes the temporary file of one that was not finished. NULL is allowed. */
void gguf_writer_destroy(gguf_writer *writer);
