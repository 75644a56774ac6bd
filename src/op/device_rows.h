/* Rows of a matrix on the GPU: declarations shared by host and kernels of operators on rows.
 *
 * These kernels' parameters are a few words, not an op_call: in a kernel of two microseconds,
 * reading two kilobytes of parameters is a considerable part of the time.
 */
#pragma once

#include "quipu_kernel.h"

typedef struct device_rows {
    char *data;     /* NULL: there are none */
    int64_t stride; /* bytes */
    int64_t type;   /* of dtype: F32, F16, BF16, or F8 of a cache */
} device_rows;

/* rms_norm, and with a residual add_rms_norm. */
typedef struct norm_rows {
    device_rows x, residual;
    device_rows out;      /* NULL: only stored in BF16 */
    device_rows narrowed; /* out in BF16; or NULL */
    device_rows weight;   /* one row */
    int64_t begin;        /* the first block's row */
    int32_t n;            /* elements of a row */
    float eps;
} norm_rows;
enum {
    NORM_THREADS = 1024,      /* at most */
    NORM_SMALL_THREADS = 128, /* for many rows, with so many eights per thread: */
    NORM_SHORT_EIGHTS = 2,
    NORM_LONG_EIGHTS = 4,
};

/* silu_and_mul of elements begin .. end - 1, both multiples of 8, as n is. */
typedef struct silu_rows {
    device_rows x, out; /* out NULL: only stored in BF16 */
    device_rows narrowed;
    int64_t begin, end;
    int32_t n; /* elements of a row of out */
} silu_rows;
enum { SILU_THREADS = 256 };

/* rope; half of a head's rotated elements is a multiple of 8. */
typedef struct rope_rows {
    device_rows q, k;
    int64_t q_head, k_head; /* bytes from one head to the next */
    const int32_t *positions;
    const char *table; /* float32 */
    int64_t table_stride;
    int64_t begin;              /* the first block's token */
    int32_t half;               /* rotary_dim / 2 */
    int32_t n_q_heads, n_heads; /* n_heads: of q and k */
    int32_t interleaved;
} rope_rows;

/* kv_append of the k that rope rotated, in float32, and of v: follows rope_rows. */
typedef struct append_rows {
    device_rows v;
    int64_t v_head;                     /* bytes from one head to the next */
    device_rows k_cache, v_cache;       /* stride: of a page */
    int64_t k_slot, v_slot;             /* bytes from one position of a page to the next, */
    int64_t k_cache_head, v_cache_head; /* and from one head to the next */
    const int32_t *qo_indptr, *positions, *kv_indptr, *kv_indices;
    int32_t n_sequences, page_size, head_dim;
} append_rows;

enum {
    ROPE_THREADS = 256, /* at most */
    ROPE_HEADS = 4,     /* that a thread rotates together */
};
