/* Quantised weights in the order of chains (op/linear/linear_packed.h), and weights in FP8.
 *
 * Batches of up to 64 rows read a model's quantised weights in this order, which takes a third to
 * two thirds of the bytes of BF16. Q8_0 has no such order, because copies in BF16 are as fast. All
 * matrices that products read have it, or none: a model with a type that has no such order, or a
 * matrix whose columns are no multiple of 64, has none. A part is a matrix, or a gate with its up.
 * Products name a matrix by its address in BF16 (weights.h), which the copy in this order replaces.
 *
 * Of weights in FP8 those with a scale a row have it, whatever others the model has, and products
 * name them by the address of their numbers.
 */
#pragma once

#include "op/cuda_ops.h"
#include "op/linear/linear_chain.h"
#include "plan/program.h"

typedef struct packed_part {
    size_t named_at,
        at;           /* offsets: of the matrix as products name it, and in the memory of parts */
    size_t scales_at; /* of FP8: of its rows' scales, in that memory too */
    int weights[2];   /* the second: of an up; or -1 */
    int64_t rows, columns; /* rows of both */
    int kind;              /* PACKED_... */
} packed_part;

typedef struct cuda_packed {
    packed_part *parts;
    int n_parts;
    size_t bytes, scale_bytes; /* of both, the scales last; and of these */
    bool in_f8;
    cuda_buffer memory;
} cuda_packed;

/* Lays out the parts; `named_at`: offsets of the weights in BF16, or with `in_f8` of numbers in
 * FP8; CUDA_AS_STORED for others. Without parts where the model has none. cuda_packed_free() it,
 * also after a failure. */
qp_status cuda_packed_place(const program *program, const size_t *named_at, bool in_f8,
                            cuda_packed *out, qp_error *error);

/* Allocates their memory and fills it. `from`: the weights as stored, or their numbers in FP8, at
 * `offsets`, and these numbers' scales at `scales_at`. */
qp_status cuda_packed_make(const program *program, cuda_device *device, cuda_address from,
                           const size_t *offsets, const size_t *scales_at, cuda_packed *packed,
                           qp_error *error);
void cuda_packed_free(const cuda_device *device, cuda_packed *packed);

/* What a product reads whose weight is at `named_at`: up to CHAIN_PACKED_PARTS parts, or with
 * `pairs` a gate and its up. False if it is not made of whole parts, or a tile of `tile_rows` rows
 * would have rows of different kinds. `memory`: where the memory of parts begins. */
bool cuda_packed_find(const cuda_packed *packed, size_t named_at, int64_t rows, bool pairs,
                      int tile_rows, cuda_address memory, chain_packed *out);
