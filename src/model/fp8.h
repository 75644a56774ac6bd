/* Matrices that a safetensors file stores in FP8 (F8_E4M3), with scales in a second tensor.
 *
 * An element stands for its FP8 number (float8.h) times the scale of its block, whatever the scale
 * is called:
 *
 *     weight_scale       one for the matrix, or one a row
 *     weight_scale_inv   one for each block, as a rule of 128 x 128; not an inverse
 *
 * The rest of the program sees such a matrix in F8_128 where whole blocks of that type share a
 * scale, and else, or where BF16 is asked for, in BF16: the product, in float32, rounded once.
 */
#pragma once

#include "file/safetensors.h"
#include "model/config.h"

enum { FP8_BLOCK = 128 }; /* rows and columns of a block, where config.json does not say */

typedef struct fp8_matrix {
    const uint8_t *data; /* (rows, columns) */
    int64_t rows, columns;
    const char *scales; /* (blocks of rows, blocks of columns), of scale_type, not aligned */
    dtype scale_type;
    int64_t block_rows, block_columns; /* elements that share a scale; the last may have fewer */
} fp8_matrix;

/* Whether the tensor is there and of this type. */
bool fp8_is_stored(const safetensors *file, const char *name);

/* The matrix of that name, which fp8_is_stored(). Its scales may be missing, or of another shape
 * than its sizes and config.json's blocks have: QP_FORMAT. */
qp_status fp8_find(const safetensors *file, const model_config *config, const char *name,
                   fp8_matrix *out, qp_error *error);

/* QP_FORMAT where a scale is infinite or NaN. */
qp_status fp8_check_scales(const fp8_matrix *matrix, const char *path, const char *name,
                           qp_error *error);

/* DTYPE_F8_128 where each 128 elements of a row share a scale, else DTYPE_BF16. */
dtype fp8_type(const fp8_matrix *matrix);

/* Rows [begin, begin + rows) in F8_128, which fp8_type() says. */
void fp8_join_scales(const fp8_matrix *matrix, int64_t begin, int64_t rows, void *dst);

/* Rows [begin, begin + rows) in BF16. */
void fp8_decode(const fp8_matrix *matrix, int64_t begin, int64_t rows, uint16_t *dst);

/* Whether the tensor belongs to a matrix in FP8: its scales, or what an engine that rounds inputs
 * or the cache to FP8 would need. The latter are not used, because quipu rounds neither. */
bool fp8_is_companion(const safetensors *file, const char *name);
