/* Weights in BF16 in the order in which chains read them: a product's tiles one after another, each
 * as its stages, so that one bulk copy of contiguous memory brings a stage. A tensor map over rows
 * brings a stage as 128 bytes from each of 128 rows, which memory delivers more slowly.
 *
 * The tiles are copies: other kernels read rows. They have the same numbers, so they change no
 * result. Which products there are, and how they are cut, is read from a list of launches.
 */
#pragma once

#include "cuda/launch.h"
#include "cuda/memory.h"
#include "op/linear/linear_chain.h"

/* A product's weight. Two products may read the same weight in other tiles. */
typedef struct tiles_part {
    cuda_address from; /* of the rows, symbolic (cuda/launch.h) */
    int64_t pitch;     /* bytes from row to row */
    int32_t rows, columns, tile_rows;
    bool pairs; /* eights of gates and of ups alternate in a tile; rows are those of both */
    size_t at;  /* offset in the memory of tiles */
} tiles_part;

typedef struct cuda_tiles {
    tiles_part *parts;
    int n_parts, capacity;
    size_t bytes;
    int area; /* of the memory, for symbolic addresses */
    cuda_buffer memory;
} cuda_tiles;

/* Adds the weights of all products of a chain that read rows of BF16. */
qp_status cuda_tiles_add(cuda_tiles *tiles, const linear_chain *chain, qp_error *error);

/* Allocates the memory and fills it. `areas`: the address of each area. */
qp_status cuda_tiles_make(cuda_tiles *tiles, cuda_device *device,
                          const cuda_address areas[CUDA_MAX_AREAS], qp_error *error);

/* Makes a product read its weight's tiles, if there are any. */
void cuda_tiles_take(const cuda_tiles *tiles, chain_product *product);

void cuda_tiles_free(const cuda_device *device, cuda_tiles *tiles);
