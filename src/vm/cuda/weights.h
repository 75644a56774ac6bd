/* A program's weights on the GPU: its rank's parts of them, as stored but contiguous, each at an
 * aligned address. Weights of files are copied once from the mapping; synthetic ones are generated
 * on the GPU.
 *
 * Matrices that are not BF16 are also kept in BF16 where the GPU has room for that: products of
 * many rows read them so, at the speed of a model in BF16, and would otherwise decode them each
 * time. */
#pragma once

#include "base/progress.h"
#include "base/threads.h"
#include "cuda/memory.h"
#include "op/cuda_ops.h"
#include "plan/program.h"
#include "vm/cuda/packed.h"

typedef struct cuda_weights {
    const program *program;
    cuda_buffer memory;
    size_t *offsets;    /* [program->n_weights]; of matrices in panels, those of the panels */
    size_t *scales_at;  /* of matrices by rows: the offset of their scales */
    size_t scale_bytes; /* of all; they follow the weights */
    size_t *rows_at;    /* the same of rows as stored: another place where a matrix is in panels and
                           more than products read it */
    size_t bytes;       /* of all */
    cuda_buffer decoded;
    size_t *decoded_at; /* [program->n_weights]: offset of the matrix in BF16; or CUDA_AS_STORED */
    size_t decoded_bytes;
    bool decodes; /* there are such matrices, and room for them is assumed or found */
    cuda_packed packed;
    bool packs; /* chains read `packed`, and room for it is assumed or found */
} cuda_weights;

#define CUDA_AS_STORED SIZE_MAX

/* Whether products read a matrix of FP8 in panels (op/linear/linear_f8.h), which the GPU then has
 * instead of the matrix as stored. `weight`: one that holds its elements. */
bool cuda_weights_in_panels(const program *program, int weight);

/* Whether such a matrix is not in panels, but rows of numbers with a scale a row elsewhere
 * (op/linear/linear_f8_rows.h), as cuBLASLt multiplies them. */
bool cuda_weights_by_rows(const program *program, int weight);

/* Whether there are such matrices. */
bool cuda_weights_in_f8(const program *program);

/* Whether a single sequence runs by the kernels for batches too, because it has no faster ones:
 * with matrices of FP8 by rows, and over a cache in FP8 with matrices in BF16. */
bool cuda_single_is_batch(const program *program);

/* The exact number of bytes that the weights take on the GPU. */
size_t cuda_weights_bytes(const program *program);

/* Lays out the weights without allocating memory. cuda_weights_free() it, also after a failure. */
qp_status cuda_weights_place(const program *program, cuda_weights *out, qp_error *error);

/* Allocates the memory and fills it; the pool's threads read the files. cuda_weights_free() it,
 * also after a failure. */
qp_status cuda_weights_load(cuda_device *device, const program *program, thread_pool *pool,
                            progress *progress, cuda_weights *out, qp_error *error);
/* Allocates the memory of matrices in BF16, and of the order for chains, and fills it. */
qp_status cuda_weights_decode(cuda_ops *ops, cuda_weights *weights, qp_error *error);

/* Bytes of matrices in BF16 and of the order for chains. */
size_t cuda_weights_copies(const cuda_weights *weights);

/* Whether chains may read weights in BF16 as tiles (tiles.h), and about how many bytes those take:
 * a matrix ends with a whole tile. */
bool cuda_weights_have_tiles(const program *program);
size_t cuda_weights_tiles(const cuda_weights *weights);

void cuda_weights_free(const cuda_device *device, cuda_weights *weights);

/* The address of a weight; 0: there is none. */
cuda_address cuda_weights_address(const cuda_weights *weights, weight_slot slot, int64_t layer);

/* The same of its rows as stored, which products may not read, and of the scales of rows of FP8. */
cuda_address cuda_weights_rows(const cuda_weights *weights, weight_slot slot, int64_t layer);
cuda_address cuda_weights_scales(const cuda_weights *weights, weight_slot slot, int64_t layer);
