/* A view of values in memory: element type, shape, strides. Owns nothing.
 *
 * shape[0] is the outermost dimension, as in a comment `(n_heads * head_dim, hidden_size)`. Strides
 * are in bytes. The innermost dimension is contiguous (for quantised types: whole blocks).
 */
#pragma once

#include "tensor/dtype.h"

/* A contiguous view. (No compound literals in here: CUDA C++ includes this header.) */
tensor tensor_make(void *data, dtype type, int rank, const int64_t *shape);
static inline tensor tensor_1d(void *data, dtype type, int64_t n0)
{
    const int64_t shape[] = {n0};
    return tensor_make(data, type, 1, shape);
}
static inline tensor tensor_2d(void *data, dtype type, int64_t n0, int64_t n1)
{
    const int64_t shape[] = {n0, n1};
    return tensor_make(data, type, 2, shape);
}
static inline tensor tensor_3d(void *data, dtype type, int64_t n0, int64_t n1, int64_t n2)
{
    const int64_t shape[] = {n0, n1, n2};
    return tensor_make(data, type, 3, shape);
}

/* The part [begin, begin + count) of dimension `dim`; for the innermost dimension of a quantised
 * type both must be whole blocks. */
tensor tensor_slice(tensor view, int dim, int64_t begin, int64_t count);

/* Dimension `dim` of n = outer * inner split in two; the strides stay exact. */
tensor tensor_split(tensor view, int dim, int64_t outer);

/* Address of the row (the innermost dimension) at the given outer indices. */
static inline void *tensor_row(const tensor *view, int64_t i0)
{
    return (char *)view->data + i0 * view->stride[0];
}
static inline void *tensor_row2(const tensor *view, int64_t i0, int64_t i1)
{
    return (char *)view->data + i0 * view->stride[0] + i1 * view->stride[1];
}

int64_t tensor_elements(const tensor *view);

/* Bytes that the elements take (without gaps between rows). */
size_t tensor_bytes(const tensor *view);

bool tensor_is_contiguous(const tensor *view);

/* Writes "F32 [4, 2048]" into text and returns it. */
const char *tensor_describe(const tensor *view, char *text, size_t size);
