/* linear with weights of F32, F16 and BF16 and float32 activations: what its variants share.
 *
 * The weights are repacked when the model is loaded: 32 output features make a panel, and a panel
 * lies in memory as one line of 32 weights for each input feature, so that it is read in one
 * stream, each activation is broadcast to a whole line, and nothing is ever summed across lanes:
 *
 *     panel p, input i:  F32, F16  w[32p][i] w[32p+1][i] ... w[32p+31][i]
 *                            BF16  w[32p][i] w[32p+16][i], w[32p+1][i] w[32p+17][i], ...
 *
 * (a shift and a mask of such pairs give two vectors with the features in order).
 *
 * An output is summed in blocks of 256 inputs, each in rising order by fused multiply-adds from
 * zero, and the blocks' sums are added in rising order. That order is the same for one row as for
 * many, for any slice of features and in every variant, so the bits are too. Features past the last
 * are zeros.
 */
#ifndef QUIPU_OP_LINEAR_FLOAT_H
#define QUIPU_OP_LINEAR_FLOAT_H

#include "op/op.h"

enum {
    LINEAR_FLOAT_PANEL = 32,    /* features of a panel */
    LINEAR_FLOAT_BLOCK = 256,   /* inputs of a block */
    LINEAR_FLOAT_X_STRIDE = 272 /* floats between rows of a block of x: 17 lines, so that the rows
                                 * spread over the sets of the first cache */
};

typedef enum linear_float_type {
    LINEAR_FLOAT_F32,
    LINEAR_FLOAT_F16,
    LINEAR_FLOAT_BF16,
    LINEAR_FLOAT_TYPES
} linear_float_type;

/* sums[r][0..32) += the block's sum of x[r][i] * lines[i] over n <= 256 inputs, for as many rows as
 * the kernel is made for; x rows are LINEAR_FLOAT_X_STRIDE apart. */
typedef void linear_float_tile(const void *lines, const float *x, int64_t n, float *sums);

/* n lines to float32, features in order. */
typedef void linear_float_decode(const void *lines, int64_t n, float *out);

/* What an instruction set brings. */
typedef struct linear_float_kernels {
    int max_rows; /* of a tile */
    /* [r - 1]: r rows with the panel streaming from memory, decoded on its way */
    linear_float_tile *const *stream[LINEAR_FLOAT_TYPES];
    /* [r - 1]: r rows with a decoded panel in the cache */
    linear_float_tile *const *cached;
    linear_float_decode *decode[LINEAR_FLOAT_TYPES]; /* F32: NULL, used as it lies */
} linear_float_kernels;

/* Computes the call's slice. */
void linear_float_run(const op_call *call, const linear_float_kernels *kernels);

/* Hooks of the variants. */
bool linear_float_accepts(const op_call *call);
size_t linear_float_packed_bytes(const op_call *call);
void linear_float_pack(const op_call *call, void *packed);
size_t linear_float_scratch_bytes(const op_call *call);

op_kernel linear_float_avx2, linear_float_avx512;

#endif
