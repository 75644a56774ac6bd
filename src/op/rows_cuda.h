/* Operators on rows on the GPU: what the launchers of rms_norm, add_rms_norm, silu_and_mul, rope
 * and kv_append share. */
#pragma once

#include "op/cuda_ops.h"
#include "op/device_rows.h"

enum { CUDA_ROWS_EIGHT = 8 /* elements of a vector */ };

/* A view's rows; a vector is one row. */
device_rows cuda_rows_of(const tensor *view);

/* Rows of n elements in BF16, contiguous; none where `at` is 0. */
device_rows cuda_narrowed_rows(cuda_address at, int64_t n);

/* Whether eight elements from a multiple of 8 on are at a multiple of 16 bytes. */
bool cuda_on_vectors(const void *data, int64_t stride);
bool cuda_rows_on_vectors(device_rows rows);

/* Whole warps for this many threads, at most `most`. */
int64_t cuda_warps_of(int64_t threads, int64_t most);

/* A kernel of cuda_ops.cu whose parameter is the call, `units` units per block. */
qp_status cuda_launch_plainly(cuda_ops *ops, const char *name, const op_call *call, int64_t units,
                              qp_error *error);

/* What a norm's kernel reads and writes; and whether all its rows are aligned so that a thread
 * loads eight neighbours at once. Without this a norm takes several times as long. */
norm_rows cuda_norm_rows(const op_call *call);
norm_rows cuda_add_norm_rows(const op_call *call);
bool cuda_norm_by_eights(const norm_rows *rows);

/* Whether a norm of this many aligned rows uses small blocks. */
bool cuda_norm_is_small(const norm_rows *rows, int64_t n_rows, int n_multiprocessors);

qp_status cuda_launch_norm(cuda_ops *ops, norm_rows rows, int64_t n_rows, const cuda_forms *forms,
                           qp_error *error);

/* What the kernels of rope and of kv_append read and write, and whether eights of both caches are
 * aligned. */
rope_rows cuda_rope_rows(const op_call *call);
append_rows cuda_append_rows(const op_call *call);
bool cuda_caches_on_vectors(const append_rows *append);

/* Whether the kv_append calls[1] stores what the rope calls[0] rotates. */
bool cuda_rope_is_appended(const cuda_ops *ops, const op_call *calls);
