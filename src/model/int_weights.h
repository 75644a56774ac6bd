/* Matrices that a directory stores as whole numbers of 4 or 8 bits in groups: GPTQ, AWQ, and
 * compressed-tensors' pack-quantized.
 *
 * An element is scale * (q - zero) with the scale and the zero of its group. In place of "X.weight"
 * a file has, packed in words of 32 bits,
 *
 *     GPTQ    X.qweight (in / n, out)   X.qzeros (groups, out / n)   X.scales (groups, out)
 *             X.g_idx (in), the group of each input, where it is not input / group_size
 *     AWQ     X.qweight (in, out / n)   X.qzeros (groups, out / n)   X.scales (groups, out)
 *     compressed-tensors
 *             X.weight_packed (out, in / n)   X.weight_scale (out, groups)
 *             X.weight_zero_point (out / n, groups), X.weight_g_idx (in), X.weight_shape
 *
 * with n = 32 / bits numbers in a word. No bit is lost: the matrix is seen in Q4_0 or Q8_0 where
 * all zeros are the middle, groups are whole blocks and the scales are F16 numbers; else in F32, in
 * which the product is exact.
 */
#pragma once

#include "file/safetensors.h"
#include "model/config.h"

typedef struct int_matrix {
    const stored_tensor *words, *zeros, *scales, *groups; /* zeros, groups: NULL: the middle, in
                                                           * order */
    int_layout layout;
    int bits;
    int64_t rows, columns; /* out, in */
    int64_t group_size, n_groups;
} int_matrix;

/* Whether "X.weight" of that name is stored so. */
bool int_is_stored(const safetensors *file, const model_config *config, const char *name);

/* QP_FORMAT: a part of the matrix is missing, or the parts do not fit each other. */
qp_status int_find(const safetensors *file, const model_config *config, const char *name,
                   int_matrix *out, qp_error *error);

/* QP_FORMAT where a scale is infinite or NaN. */
qp_status int_check_scales(const int_matrix *matrix, const char *path, const char *name,
                           qp_error *error);

/* DTYPE_Q4_0, DTYPE_Q8_0 or DTYPE_F32; it reads all scales and zeros. */
dtype int_type(const int_matrix *matrix);

/* Rows [begin, begin + rows) in that type. */
void int_read(const int_matrix *matrix, dtype type, int64_t begin, int64_t rows, void *dst);

/* Whether the tensor belongs to such a matrix; also a bias of zeros, which some programs write. */
bool int_is_companion(const safetensors *file, const model_config *config, const char *name);
