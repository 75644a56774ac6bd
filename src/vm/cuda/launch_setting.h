/* What launch lists are made from: the program's tensors, the weights and the exchange with other
 * ranks, each an area of its own instead of an address. */
#pragma once

#include "base/strbuf.h"
#include "plan/program.h"
#include "vm/cuda/tiles.h"
#include "vm/cuda/weights.h"

/* Areas (cuda/launch.h): these, then the program's tensors by their ids, with whole caches. */
enum {
    LAUNCH_WEIGHTS,
    LAUNCH_DECODED, /* matrices in BF16 that are stored in other types */
    LAUNCH_PACKED,  /* matrices in the order of chains (packed.h) */
    LAUNCH_TILES,   /* matrices in BF16 as tiles of chains (tiles.h) */
    LAUNCH_WORKSPACE,
    LAUNCH_LIKELIEST, /* where the likeliest token of each row goes */
    LAUNCH_COUNTERS,  /* counters of the exchange with other ranks */
    LAUNCH_FAILURE,   /* where a failure of the exchange is written */
    LAUNCH_RECEIVE,   /* the receive buffers of all ranks, an area each */
    LAUNCH_TENSORS = LAUNCH_RECEIVE + EXCHANGE_RANKS,
};
_Static_assert((int)LAUNCH_TENSORS + (int)PLAN_MAX_TENSORS <= (int)CUDA_MAX_AREAS, "an area each");

/* What lists are made from. */
typedef struct launch_setting {
    const program *program;
    program_memory memory; /* areas */
    cuda_ops ops;          /* its workspace is LAUNCH_WORKSPACE; it has no recording */
    exchange exchange;     /* with the other ranks, in areas; ops refers to it if there are any */
    const void **weights;  /* [program->n_weights]: places in LAUNCH_WEIGHTS, of rows as stored */
    const void **panels;   /* the same of matrices of FP8, in panels or as rows with their scales
                            * elsewhere; NULL for a weight that is not */
    int64_t *scales;       /* and the distance to these scales; 0: panels */
    const void *
        *decoded; /* the same in LAUNCH_DECODED, or NULL for a weight; NULL: none is there */
    const cuda_packed *packed; /* what chains read; NULL: weights in BF16 */
    const cuda_tiles *tiles;   /* what they read of weights in BF16; NULL: rows */
    uint32_t rules;            /* launch rules that are taken, a bit each (lower/launches.h) */
    strbuf *explained;         /* as in a lowering; usually NULL */
} launch_setting;

/* Up to how many rows products keep x in float32 (cuda_ops.few_rows): none where
 * cuda_single_is_batch(), so that all passes of up to 64 rows run as chains; one where the GPU has
 * the kernels for batches and the program has several sequences, because batches of 2 to 64 rows
 * then have the same bits and run as chains. The engine's settings decide that, never a batch. */
int cuda_few_rows(const program *program, const cuda_device *device);

/* The GPU may be a description only: the function needs the device's properties, and no cuBLAS
 * handle if cuBLAS can be assumed to exist. launch_setting_free() it, also after a failure. */
qp_status launch_setting_init(launch_setting *setting, const program *program,
                              const cuda_weights *weights, cuda_device *device, cuda_blas *blas,
                              bool has_blas, size_t workspace_bytes, qp_error *error);

/* Rows are exchanged with the other ranks by this in place of kernels. */
void launch_setting_carry(launch_setting *setting, struct cuda_carrier *carrier);
void launch_setting_free(launch_setting *setting);

/* A node's call for a batch of these sizes, in areas, as lists take it. */
void launch_bind(const launch_setting *setting, const program_sizes *sizes, int node,
                 op_call *call);
