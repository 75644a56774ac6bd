/* linear with weights of F32, F16, BF16 and F8_128 and float32 activations: what its variants
 * share.
 *
 * The weights are repacked when the model is loaded: 32 output features make a panel, and a panel
 * lies in memory input by input, so that it is read sequentially, each activation is broadcast to
 * 32 weights, and no sum crosses lanes:
 *
 *         F32, F16, input i     w[0][i] w[1][i] ... w[31][i]
 *         BF16, inputs i, i+1   w[0][i] w[0][i+1], w[1][i] w[1][i+1], ... w[31][i] w[31][i+1]
 *         F8_128, 128 inputs    scale[0] ... scale[31], then w[0][i] w[1][i] ... w[31][i] for each
 *
 * A shift and a mask convert the pairs to two vectors of float32, with the features in order; AMX
 * uses them as they are. Features after the last are zeros, and BF16 has zeros to the next multiple
 * of 32 inputs, or to 16 if there are no more. A byte of E4M3, shifted to the place of F16's
 * exponent and mantissa, is an F16 of its value over 256, subnormals too, so one conversion makes
 * it a float. Only NaNs would be lost: a block with one has a scale of NaN.
 *
 * The vector variants sum an output in blocks of 256 inputs, each in rising order by fused
 * multiply-adds from zero, and add the blocks' sums in rising order: the same bits in all of them.
 *
 * A matrix of few features (A of an adapter) would be read with up to as many zeros. Its last panel
 * is folded if it has at most 16: features 16 to 31 are the same ones in the next block of 256
 * inputs, so that the panel has half as many inputs. Its kernels are the same; of the sums with x
 * of a block the half that belongs to it is kept.
 *
 * In F8_128 the sum of a block of 256 is that of its two blocks of 128, each summed from zero and
 * then multiplied by 256 and by its scale.
 * Where x is to be rounded to BF16 (OP_X_BF16), BF16 weights are multiplied by vdpbf16ps or bfdot,
 * in the same blocks, or by AMX. Quantised weights are decoded to F32 panels where x is not to be
 * rounded (OP_X_FLOAT): four to eight times the memory. In every variant the order is the same for
 * one row, for many rows, and for any slice of features.
 */
#pragma once

#include "op/linear/linear_rounded.h"
#include "op/op.h"
#include "op/variants.h"

enum {
    LINEAR_FLOAT_PANEL = 32,     /* features of a panel */
    LINEAR_FLOAT_BLOCK = 256,    /* inputs of a block */
    LINEAR_FLOAT_X_STRIDE = 272, /* floats between rows of a block of x: 17 lines, so that the rows
                                  * spread over the sets of the first cache */
    LINEAR_FLOAT_F8_BLOCK = 128, /* inputs that share the scales of F8_128 */
    LINEAR_FLOAT_F8_SCALES = 4 * LINEAR_FLOAT_PANEL /* bytes of them in a panel */
};

typedef enum linear_float_type {
    LINEAR_FLOAT_F32,
    LINEAR_FLOAT_F16,
    LINEAR_FLOAT_BF16,
    LINEAR_FLOAT_F8,
    LINEAR_FLOAT_TYPES
} linear_float_type;

/* sums[r][0..32) += the block's sum of x[r][i] * w[i] over n <= 256 inputs of a panel, for the
 * kernel's number of rows; x rows are LINEAR_FLOAT_X_STRIDE apart. */
typedef void linear_float_tile(const void *panel, const float *x, int64_t n, float *sums);

/* The same for one row and two panels, or two blocks of a panel, `apart` bytes from each other,
 * with x[0] and x[1]: sums (2, 32). Two streams are read faster than one, because the hardware
 * prefetcher stops at page boundaries. */
typedef void linear_float_pair(const char *panel, size_t apart, const float *const *x, int64_t n,
                               float *sums);

/* Decodes n inputs of a panel to the layout of F32; may write one more when n is odd. Scales of
 * F8_128 are copied. */
typedef void linear_float_decode(const void *panel, int64_t n, float *out);

/* Rounds n inputs of x to pairs of BF16, in place, with a zero after an odd number. */
typedef void linear_float_round(float *x, int64_t n);

/* The kernels of an instruction set. */
typedef struct linear_float_kernels {
    int max_rows;              /* of a tile */
    linear_float_round *round; /* each block of x that kernels read; NULL: x is float32 */
    /* [r - 1]: r rows with the panel streaming from memory, decoded on its way */
    linear_float_tile *const *stream[LINEAR_FLOAT_TYPES];
    linear_float_pair *pair[LINEAR_FLOAT_TYPES];
    /* [r - 1]: r rows with a decoded panel in the cache */
    linear_float_tile *const *cached;
    linear_float_tile *const *cached_f8; /* the same for F8_128, whose scales precede 128 inputs */
    linear_float_decode *decode[LINEAR_FLOAT_TYPES]; /* NULL: used as stored */
} linear_float_kernels;

/* Computes the call's slice. */
void linear_float_run(const op_call *call, const linear_float_kernels *kernels);

/* Bytes of `inputs` inputs of a panel of the weight; 16 or a multiple of 32 for BF16, of 128 for
 * F8_128. */
size_t linear_float_panel_bytes(const tensor *weight, int64_t inputs);

/* Whether only linear_float_run() and linear_float_pack() know the weight's form: its last panel is
 * folded, or it has less than 32 inputs of BF16. */
bool linear_float_is_narrow(const tensor *weight);

/* out = sums + bias + residual for the slice's features in panel `panel` and rows [row, row +
 * n_rows); sums (n_rows, 32). */
void linear_float_finish(const op_call *call, int64_t panel, int64_t row, int64_t n_rows,
                         const float *sums);

/* Hooks of the variants. */
bool linear_float_accepts(const op_call *call);
bool linear_float_accepts_quantised(const op_call *call);
size_t linear_float_packed_bytes(const op_call *call);
void linear_float_pack(const op_call *call, void *packed);
void linear_float_pack_avx512(const op_call *call, void *packed);
void linear_float_pack_quantised(const op_call *call, void *packed);
size_t linear_float_scratch_bytes(const op_call *call);

SIMD_LEVELS(SIMD_DECLARE, linear_float)

/* BF16 weights only. All but linear_float_amx round x to BF16. */
bool linear_float_bf16_accepts(const op_call *call);
size_t linear_float_amx_scratch_bytes(const op_call *call);
op_kernel linear_float_avx512_bf16, linear_float_amx_rounded, linear_float_amx,
    linear_float_neon_bf16;
extern const op_tolerance linear_float_bf16_tolerances[];
