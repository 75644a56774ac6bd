/* Sizes that linear's kernels (linear.cuh, linear_eight.cuh) share with the host. */
#pragma once

enum {
    LINEAR_FEW_ROWS = 8, /* of x, which kernels for few rows multiply at once */
    LINEAR_WARPS = 8,    /* of a block of those in linear.cuh */
    /* Tiles of x and of the weight, for any number of rows. */
    LINEAR_TILE_ROWS = 64,
    LINEAR_TILE_THREADS = 128,
};
