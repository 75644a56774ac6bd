/* A tensor as a model file lists it, whatever the format of the file. */
#pragma once

#include "file/slice.h"
#include "tensor/tensor.h"

typedef struct stored_tensor {
    text_slice name;
    dtype type;            /* DTYPE_COUNT: a type that quipu does not read */
    const char *type_name; /* the type's name in the file's format: "Q4_1", "IQ2_XS", "F8_E4M3" */
    uint32_t type_id;      /* GGUF's number of the type; 0 in safetensors */
    int rank;              /* 1 .. TENSOR_MAX_RANK */
    int64_t shape[TENSOR_MAX_RANK]; /* outermost first, for every format */
    int part;                       /* which file of a split or sharded model, from 0 */
    uint64_t offset;                /* of the data, from the start of that file */
    uint64_t bytes;   /* 0 when not known: a GGUF type of which only the id is known */
    const void *data; /* in the mapping */
} stored_tensor;

/* "F32 [4, 2048]", the type by the file's name for it. Writes into text and returns it. */
const char *stored_tensor_describe(const stored_tensor *stored, char *text, size_t size);
