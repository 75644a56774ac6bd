/* Element types and their blocks. The table is dtype.def; the enum is in quipu_kernel.h, where
 * kernels see it. */
#pragma once

#include "quipu_kernel.h"

const char *dtype_name(dtype type);

/* Elements in a block, and bytes that a block takes. */
int64_t dtype_block_elements(dtype type);
size_t dtype_block_bytes(dtype type);

/* Bytes of a contiguous row of n elements; n must be a multiple of the block. */
size_t dtype_row_bytes(dtype type, int64_t n);

/* Whether values are stored in blocks with shared scales. */
bool dtype_is_quantized(dtype type);

/* Whether a weight's values are levels or entries of grids (grids.h). */
static inline bool dtype_has_levels(dtype type)
{
    return type >= DTYPE_IQ4_NL && type < DTYPE_COUNT;
}

/* DTYPE_COUNT when there is none of that name or id. */
dtype dtype_from_name(const char *name);
dtype dtype_from_gguf(uint32_t id);
dtype dtype_from_safetensors(const char *name);
int dtype_gguf_id(dtype type);
