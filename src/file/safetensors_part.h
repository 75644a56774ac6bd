/* The parts of safetensors.h's implementation: the files of a model, and the reader of a header.
 * Private. */
#pragma once

#include "base/arena.h"
#include "file/mapping.h"
#include "file/name_index.h"
#include "file/safetensors.h"

typedef struct shard {
    mapping map;      /* zero when the bytes are the caller's */
    const char *path; /* for messages */
    const uint8_t *data;
    size_t size;
    uint64_t data_start; /* offset of the data section */
} shard;

struct safetensors {
    const char *path;
    shard *shards; /* [n_shards] */
    int n_shards;
    stored_tensor *tensors; /* [n_tensors], of all shards */
    size_t n_tensors, capacity;
    void **copies; /* [n_tensors], aligned copies of what is not aligned in the file, or NULL */
    name_index tensor_index;
    arena memory;
};

/* Reads and checks the header of shard `part`, whose path, data and size are set, and appends its
 * tensors to the list. */
qp_status safetensors_read_header(safetensors *file, int part, qp_error *error);

/* QP_FORMAT with "FILE: tensor "NAME": " and the formatted text. */
qp_status safetensors_refuse(const shard *shard, const char *name, qp_error *error,
                             const char *format, ...) __attribute__((format(printf, 4, 5)));
