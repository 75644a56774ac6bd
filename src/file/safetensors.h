/* safetensors files: one file, or shards named by an index.
 *
 * The header is checked against the file's length when the file is opened: its own length, every
 * tensor's shape times element size against its span, spans against the file and against each
 * other, duplicate names. F32, F16 and BF16 can be viewed; other types are listed.
 *
 * The format: https://github.com/huggingface/safetensors (8 bytes of header length, a JSON header,
 * the data).
 */
#pragma once

#include "base/status.h"
#include "file/stored_tensor.h"

typedef struct safetensors safetensors;

/* `path` is a .safetensors file, a model.safetensors.index.json, or a directory that holds
 * model.safetensors or model.safetensors.index.json. The index's file names must be plain names
 * beside it. safetensors_close() the result. *out is untouched on failure. */
qp_status safetensors_open(const char *path, safetensors **out, qp_error *error);

/* A single file in memory that stays the caller's and outlives the result. `name` is used in
 * messages. */
qp_status safetensors_open_memory(const void *data, size_t size, const char *name,
                                  safetensors **out, qp_error *error);

/* As mapping_read(), for what lies in any of the files. */
bool safetensors_read(const safetensors *file, const void *at, size_t bytes, void *dst);

/* A number for the sizes of the model's files and the times when they were last written. */
uint64_t safetensors_stamp(const safetensors *file);

/* NULL is allowed. */
void safetensors_close(safetensors *file);

/* The file or index that was opened: what messages call the model. */
const char *safetensors_path(const safetensors *file);

/* Tensors of all parts, in the headers' order. */
size_t safetensors_tensor_count(const safetensors *file);
const stored_tensor *safetensors_tensor_at(const safetensors *file, size_t i);

/* NULL when absent. */
const stored_tensor *safetensors_find_tensor(const safetensors *file, const char *name);

/* A view of the tensor's data, read-only although its type allows writing. An absent tensor leaves
 * *out alone and returns QP_OK; a type that quipu does not read is QP_UNSUPPORTED. The format does
 * not promise alignment: data that is not aligned for its type is copied into memory owned by the
 * file on the first call, so calls must not run concurrently. */
qp_status safetensors_get_tensor(safetensors *file, const char *name, tensor *out, qp_error *error);
